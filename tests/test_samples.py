"""A client's samples: every picture once an epoch, and no way to labels that were not given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.base.errors import UserError
from fedtailor.base.rng import generator
from fedtailor.client.data import ClientData
from fedtailor.client.features import CachedFeatures, LiveFeatures, make_features
from fedtailor.clip import encoder as encoder_module
from fedtailor.clip import feature_cache
from fedtailor.clip.encoder import Encoder
from fedtailor.clip.feature_cache import NotKept
from fedtailor.core.model import Model
from fedtailor.data.preprocess import Preprocess
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from world import checkpoint, dataset, make_tuner, world

LABELS = np.array([2, 0, 1, 1, 2, 0, 1, 2, 2, 0], dtype=np.int64)
VALUES = np.arange(20, dtype=np.float32).reshape(10, 2)


@settings(deadline=None, max_examples=60)
@given(
    indices=st.lists(st.integers(0, 9), min_size=1, max_size=10, unique=True),
    size=st.integers(1, 12),
    drop_last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_an_epoch_has_every_sample_once(indices: list[int], size: int, drop_last: bool, seed: int) -> None:
    """Each batch pairs a picture with its label and its place on the data; only a last, smaller one may be missing."""
    data = ClientData(CachedFeatures(VALUES), np.array(indices), LABELS, 3)
    met: list[int] = []
    for batch in data.batches(size, drop_last, generator(seed)):
        where = np.array(indices)[batch.index.numpy()]
        assert batch.x.tolist() == VALUES[where].tolist()
        assert batch.y.tolist() == LABELS[where].tolist()
        assert len(batch.y) <= size
        met += batch.index.tolist()
    whole = len(indices) // size * size
    assert len(met) == (whole if drop_last and whole else len(indices))
    assert len(set(met)) == len(met)
    assert set(met) <= set(range(len(indices)))


def test_counts() -> None:
    """(C,) samples of each class, those it has none of too."""
    data = ClientData(CachedFeatures(VALUES), np.array([0, 4, 7, 1]), LABELS, 5)
    assert data.counts().tolist() == [1, 0, 3, 0, 0]
    assert len(data) == 4
    assert data.labels.tolist() == [2, 2, 2, 0]


def test_what_a_pass_does_to_a_batch_stays_there() -> None:
    """Labels and pictures are copies: writing into them changes no later batch."""
    data = ClientData(CachedFeatures(VALUES.copy()), np.arange(10), LABELS, 3)
    data.labels.fill_(1)
    for batch in data.batches(5, False, generator(0)):
        batch.x.zero_()
        batch.y.zero_()
    batch = next(data.batches(10, False, generator(0)))
    assert batch.y.tolist() == LABELS[batch.index.numpy()].tolist()
    assert batch.x.tolist() == VALUES[batch.index.numpy()].tolist()


def arrays(thing: Any, seen: set[int] | None = None) -> list[np.ndarray]:
    """Every array and tensor that can be reached from a thing, and what they are views of."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, str | bytes | int | float | type | None):
        return []
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        return [thing.detach().numpy()]
    if isinstance(thing, np.ndarray):
        return [np.asarray(thing), *arrays(thing.base, seen)]
    if isinstance(thing, dict):
        parts = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        parts = list(thing)
    else:
        parts = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
    return [array for part in parts for array in arrays(part, seen)]


@pytest.mark.parametrize("training", [True, False])
def test_labels_that_are_not_given_cannot_be_reached(training: bool, tmp_path: Path) -> None:
    """Nothing that hangs on an unlabelled data equals the labels or the client's part of them; asking is an error."""
    train, part = dataset().train, np.arange(0, 40, 3)
    model = Model.of(checkpoint(), make_tuner("text_prompt", {}), dataset().classes, "a {}.")
    transform = Preprocess(32, (0.5,) * 3, (0.5,) * 3, augment=True)
    pool = make_features(model, "digest", train.images, transform, training, tmp_path)

    def found(data: ClientData) -> bool:
        hidden = [train.labels.tolist(), train.labels[part].tolist()]
        return any(array.ndim == 1 and array.tolist() in hidden for array in arrays(data))

    assert found(ClientData(pool, part, train.labels, 5))  # the search can find them
    bare = ClientData(pool, part, None, 5)
    assert not found(bare)
    for ask in (lambda: bare.labels, bare.counts, lambda: next(bare.batches(4, False, generator(0)))):
        with pytest.raises(UserError, match=r"no labels; choose a labeler"):
            ask()


def test_augmented_views_are_drawn_from_the_seed(tmp_path: Path) -> None:
    """The same generator gives the same views, another gives others; without one there is a single plain view."""
    images = dataset().train.images
    model = world("fedavg", "text_prompt").job.model
    transform = Preprocess(32, (0.5,) * 3, (0.5,) * 3, augment=True)
    pool = make_features(model, "digest", images, transform, training=True, folder=tmp_path)
    assert isinstance(pool, LiveFeatures)
    assert not list(tmp_path.iterdir())  # nothing of it is cached
    some = np.array([3, 1])
    first = pool.fetch(some, generator(1))
    assert torch.equal(pool.fetch(some, generator(1)), first)
    assert not torch.allclose(pool.fetch(some, generator(2)), first)
    plain = make_features(model, "digest", images, transform, training=False, folder=tmp_path)
    assert isinstance(plain, CachedFeatures)
    assert torch.allclose(pool.fetch(some), plain.fetch(some), atol=1e-6)
    assert not torch.allclose(pool.fetch(some), first)


def test_views_differ_from_epoch_to_epoch(tmp_path: Path) -> None:
    """A live pool is fetched anew with the epoch's generator; the whole pass is the same for the same seed."""
    model = world("fedavg", "text_prompt").job.model
    transform = Preprocess(32, (0.5,) * 3, (0.5,) * 3, augment=True)
    pool = make_features(model, "digest", dataset().train.images, transform, training=True, folder=tmp_path)
    data = ClientData(pool, np.arange(3), dataset().train.labels, 5)

    def epochs(seed: int) -> list[torch.Tensor]:
        rng = generator(seed)
        batches = [next(data.batches(3, False, rng)) for _ in range(2)]
        return [batch.x[batch.index.argsort()] for batch in batches]

    first, second = epochs(0)
    assert not torch.allclose(first, second)
    assert all(torch.equal(a, b) for a, b in zip(epochs(0), (first, second), strict=True))


def test_views_show_every_picture_in_order_without_labels() -> None:
    plain = CachedFeatures(VALUES * 10)
    data = ClientData(CachedFeatures(VALUES), np.array([3, 1, 4, 0, 9]), None, 3, plain=plain)
    views = list(data.views(size=2))
    assert [len(view.x) for view in views] == [2, 2, 1]
    assert torch.cat([view.index for view in views]).tolist() == [0, 1, 2, 3, 4]
    assert torch.cat([view.x for view in views]).tolist() == VALUES[[3, 1, 4, 0, 9]].tolist()
    assert torch.cat([view.plain for view in views]).tolist() == (VALUES * 10)[[3, 1, 4, 0, 9]].tolist()
    assert not hasattr(views[0], "y")
    assert list(ClientData(CachedFeatures(VALUES), np.empty(0, np.int64), None, 3).views()) == []


def test_other_labels_on_some_of_the_pictures() -> None:
    """A labeler's choice: some pictures, one of them twice, each with its label and candidates."""
    data = ClientData(CachedFeatures(VALUES), np.array([3, 1, 4]), None, 3)
    candidates = torch.tensor([[1.0, 0, 1], [0, 1, 0], [0, 1, 1]])
    part = data.labelled(torch.tensor([2, 0, 2]), torch.tensor([2, 1, 1]), candidates)
    assert (len(part), part.counts().tolist()) == (3, [0, 2, 1])
    (batch,) = part.batches(8, False, generator(0))
    for row, place in enumerate(batch.index.tolist()):
        assert batch.x[row].tolist() == VALUES[[4, 3, 4]][place].tolist()
        assert batch.y[row] == [2, 1, 1][place]
        assert batch.candidates is not None
        assert batch.candidates[row].tolist() == candidates[place].tolist()
    with pytest.raises(UserError, match="no labels"):
        _ = data.labels


@pytest.mark.parametrize(("n", "held"), [(0, 0), (1, 0), (9, 0), (10, 1), (29, 2), (30, 3)])
def test_a_held_out_slice_is_every_tenth(n: int, held: int) -> None:
    """The two parts are disjoint, the same every time, and hold everything."""
    values = np.arange(n, dtype=np.float32)[:, None]
    data = ClientData(CachedFeatures(values), np.arange(n), np.zeros(n, np.int64), 1)

    def pictures(part: ClientData) -> list[float]:
        return [float(x) for view in part.views() for x in view.x.flatten()]

    rest, slice_ = data.split(0.1)
    assert (len(rest), len(slice_)) == (n - held, held)
    assert sorted(pictures(rest) + pictures(slice_)) == list(range(n))
    assert pictures(slice_) == pictures(data.split(0.1)[1])


# --- pools of what the cache has no room for ---

PLAIN = Preprocess(32, (0.5,) * 3, (0.5,) * 3)
AUGMENTED = Preprocess(32, (0.5,) * 3, (0.5,) * 3, augment=True)


def two_pools(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: Model,
    gigabytes: str,
    transform: Preprocess = PLAIN,
    training: bool = True,
    stage: str = "",
) -> tuple[CachedFeatures, LiveFeatures]:
    """With room for it, and without."""
    images = dataset().train.images
    kept = make_features(model, "digest", images, transform, training, folder, stage=stage)
    monkeypatch.setenv("FEDTAILOR_CACHE_GB", gigabytes)
    live = make_features(model, "digest", images, transform, training, folder / "other", stage=stage)
    assert isinstance(kept, CachedFeatures)
    assert isinstance(live, LiveFeatures)
    return kept, live


@pytest.mark.parametrize(
    ("tuner", "reads", "stage"),
    [
        ("text_prompt", "features", ""),
        ("text_prompt", "patches", ""),
        ("lora", "features", ""),
        ("lora", "features", "features"),  # CLIP's own features beside the stage that the tuner enters at
    ],
)
def test_without_room_the_numbers_are_the_same(
    tuner: str, reads: str, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in type, in more pictures than are encoded at once, in any order, and whatever generator there is."""
    model = Model.of(checkpoint(), make_tuner(tuner, {}), dataset().classes, "a {}.", reads=reads)
    kept, live = two_pools(tmp_path, monkeypatch, model, "0", stage=stage)
    monkeypatch.setattr(encoder_module, "CHUNK", 4)
    some = np.array([7, 0, 3, 3, 12, 1, 40, 2, 5])
    x, y = kept.fetch(some), live.fetch(some, generator(1))
    assert x.dtype == y.dtype == (torch.float16 if reads == "patches" else torch.float32)
    torch.testing.assert_close(x, y, atol=2e-3 if reads == "patches" else 1e-6, rtol=0)
    assert not (tmp_path / "other").exists()


def test_patches_are_read_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they are kept in; from either pool the model says the same."""
    model = Model.of(checkpoint(), make_tuner("text_prompt", {}), dataset().classes, "a {}.", reads="patches")
    kept, live = two_pools(tmp_path, monkeypatch, model, "0")
    some, theta = np.arange(4), model.init(generator(0))
    for read in (model.patches, model.image, model.logits):
        said = read(theta, kept.fetch(some))
        assert said.dtype == torch.float32
        torch.testing.assert_close(said, read(theta, live.fetch(some)), atol=2e-2, rtol=0)
    exact = Model.of(checkpoint(), make_tuner("text_prompt", {}), dataset().classes, "a {}.")
    features = make_features(exact, "digest", dataset().train.images, PLAIN, True, tmp_path)
    torch.testing.assert_close(
        model.image(theta, kept.fetch(some)), exact.image(theta, features.fetch(some)), atol=1e-3, rtol=0
    )


def test_a_live_pool_takes_a_chunk_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test set that is asked for whole is not held in pixels whole."""
    _, live = two_pools(tmp_path, monkeypatch, world().job.model, "0")
    sizes: list[int] = []
    encode = Encoder.encode

    def counting(encoder: Encoder, pixels: torch.Tensor) -> torch.Tensor:
        sizes.append(len(pixels))
        return encode(encoder, pixels)

    monkeypatch.setattr(Encoder, "encode", counting)
    monkeypatch.setattr(encoder_module, "CHUNK", 4)
    live.fetch(np.arange(10))
    assert sizes == [4, 4, 2]


def test_without_room_the_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a warning that names the setting, and the pool is live."""
    feature_cache.tell.cache_clear()
    with pytest.warns(NotKept, match=r"caching 45 images takes 3\.0 kB, more than FEDTAILOR_CACHE_GB=1e-06"):
        two_pools(tmp_path, monkeypatch, world().job.model, "1e-6")
    assert list((tmp_path / "other").iterdir()) == []


def test_fixed_is_whether_a_picture_looks_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached, or live without augmentation: a test pool of an augmenting transform ignores the generator, too."""
    model, images = world().job.model, dataset().train.images

    def fixed(pool: Any) -> bool:
        some = np.array([3, 1])
        same = torch.equal(pool.fetch(some, generator(1)), pool.fetch(some, generator(2)))
        assert same == pool.fixed
        return ClientData(pool, some, None, 5).fixed

    assert all(fixed(pool) for pool in two_pools(tmp_path, monkeypatch, model, "0"))
    monkeypatch.delenv("FEDTAILOR_CACHE_GB")
    assert all(fixed(pool) for pool in two_pools(tmp_path, monkeypatch, model, "0", AUGMENTED, training=False))
    assert not fixed(make_features(model, "digest", images, AUGMENTED, True, tmp_path))


def test_a_run_without_a_cache_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedPuReL, which computes what is fixed once and asks CLIP for its own view: every number, to the last places."""

    def trained() -> dict[str, torch.Tensor]:
        experiment = world("fedpurel", "lora", rounds=2)
        engine, server = make_engine(experiment), experiment.job.first_server()
        while server.round < experiment.rounds:
            server, _ = run_round(experiment, server, engine)
        assert experiment.client_data[0].fixed
        assert isinstance(experiment.client_data[0]._pool, pools.pop(0))
        return {**server.params, **engine.clients[1].local}

    pools: list[type] = [CachedFeatures, LiveFeatures]
    cached = trained()
    assert any(name.startswith("local.") for name in cached)
    monkeypatch.setenv("FEDTAILOR_CACHE_GB", "0")
    live = trained()
    assert cached.keys() == live.keys()
    for name, value in cached.items():
        torch.testing.assert_close(live[name], value, atol=1e-5, rtol=1e-3)


def test_epochs_in_a_given_order() -> None:
    """Broken: an epoch is shuffled all the same, or an order is used twice, or one that leaves samples out is taken."""
    data = ClientData(CachedFeatures(VALUES), np.array([3, 7, 5]), LABELS, 3).in_order(
        [np.array([2, 0, 1]), np.array([0, 1, 2]), np.array([0, 1])]
    )
    rng = torch.Generator()
    seen = [torch.cat([batch.index for batch in data.batches(2, False, rng)]).tolist() for _ in range(2)]
    assert seen == [[2, 0, 1], [0, 1, 2]]
    with pytest.raises(UserError, match="each of 3 samples once, got 2 places"):
        next(data.batches(2, False, rng))
    with pytest.raises(UserError, match="got no further one"):
        next(data.batches(2, False, rng))


def test_a_round_of_a_given_cohort() -> None:
    """Broken: others are asked, or the average is of others. Nobody, or a client that is not there, is refused."""
    experiment = world(rounds=2)
    engine, server = make_engine(experiment), experiment.job.first_server()
    after, asked = run_round(experiment, server, engine, cohort=[2, 1, 2])
    assert asked == [1, 2]
    assert sorted(engine.clients) == [1, 2]
    replies = make_engine(experiment)(experiment.job.method.train, server, [1, 2])
    averaged = experiment.job.method.aggregate(server, replies).params
    assert all(torch.equal(value, averaged[name]) for name, value in after.params.items())
    for wrong in ([], [4]):
        with pytest.raises(UserError, match=r"needs one or more of the clients \[0, 1, 2, 3\]"):
            run_round(experiment, server, engine, cohort=wrong)
