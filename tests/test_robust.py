"""Robust aggregation: each rule by hand, with any method, and against clients that attack."""

from __future__ import annotations

import itertools
from fnmatch import fnmatchcase

import numpy as np
import pytest
import torch
from torch import Tensor

from fedtailor.attacks.backdoor import Marked
from fedtailor.base.errors import UserError
from fedtailor.core import Params, Reply, weighted_mean
from fedtailor.evaluation.testing import ask_shared
from fedtailor.methods import METHODS
from fedtailor.methods.released.relay import CarriedMomentum
from fedtailor.robust import ROBUST
from fedtailor.robust.bounded import Bounded
from fedtailor.robust.krum import Krum
from fedtailor.robust.ordered import Median, Trimmed, within
from fedtailor.runs.execute import train
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from world import CLIENTS, world

START: Params = {"w": torch.tensor([1.0, 1.0])}


def replies(*updates: list[float], weights: tuple[float, ...] = ()) -> tuple[dict[int, Reply], dict[int, Params]]:
    """From clients 0, 1, … that were sent (1, 1)."""
    weighed = weights or (1.0,) * len(updates)
    made = {
        k: Reply({"w": START["w"] + torch.tensor(update)}, weight, {"s": torch.tensor(update), "n": torch.tensor([k])})
        for k, (update, weight) in enumerate(zip(updates, weighed, strict=True))
    }
    return made, dict.fromkeys(made, START)


def updates(after: dict[int, Reply]) -> dict[int, list[float]]:
    return {k: [round(v, 5) for v in (reply.params["w"] - START["w"]).tolist()] for k, reply in after.items()}


def test_bounded_by_hand() -> None:
    """Lengths 1, 2, 5 (of 3, 4): the median is 2; what is longer is shortened to it, in its own direction."""
    after = Bounded(times=1)(*replies([1.0, 0.0], [0.0, 2.0], [3.0, 4.0]))
    assert updates(after) == {0: [1.0, 0.0], 1: [0.0, 2.0], 2: [1.2, 1.6]}
    assert after[2].stats["s"].tolist() == pytest.approx([1.2, 1.6])  # statistics alike …
    assert after[2].stats["n"].tolist() == [2]  # … but for counts
    assert updates(Bounded(times=1.5)(*replies([1.0, 0.0], [0.0, 2.0], [3.0, 4.0])))[2] == [1.8, 2.4]


def test_who_changed_nothing_sets_no_bound() -> None:
    """Two clients without pictures: the third's update is not cut to nothing."""
    assert updates(Bounded()(*replies([0.0, 0.0], [0.0, 0.0], [3.0, 4.0])))[2] == [3.0, 4.0]


@pytest.mark.parametrize(
    ("cut", "expected"),
    [(0, [1, 2, 3, 4, 100]), (1, [2, 2, 3, 4, 4]), (2, [3, 3, 3, 3, 3]), (5, [3, 3, 3, 3, 3])],
)
def test_within_by_hand(cut: int, expected: list[int]) -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 100.0])[:, None]
    assert within(values, cut).flatten().tolist() == expected
    assert within(values.flip(0), cut).flatten().tolist() == expected[::-1]  # each stays with its client


def test_the_median_of_an_even_number() -> None:
    assert within(torch.tensor([1.0, 2.0, 4.0, 100.0])[:, None], 4).flatten().tolist() == [3.0] * 4


def test_median_is_the_median_of_each_number() -> None:
    """Numbers (1, 2, 9) and (0, 5, 1), medians 2 and 1; what the method averages is that, whatever the weights."""
    after = Median()(*replies([1.0, 0.0], [2.0, 5.0], [9.0, 1.0], weights=(1, 1, 3)))
    assert set(map(tuple, updates(after).values())) == {(2.0, 1.0)}
    assert weighted_mean(after)["w"].tolist() == [3.0, 2.0]


def test_trimmed_cuts_a_share_at_either_end() -> None:
    """Of five, one at either end: (0, 1, 2, 3, 50) becomes (1, 1, 2, 3, 3)."""
    after = Trimmed(share=0.2)(*replies(*([float(v), 0.0] for v in (0, 1, 2, 3, 50))))
    assert [update[0] for update in updates(after).values()] == [1, 1, 2, 3, 3]


def test_krum_by_hand() -> None:
    """Five replies, f = 1: scores are sums over the 2 nearest. Those at 0, 1, 2, 3 have 5, 2, 2, 5, that at 50 more."""
    after = Krum(share=0.2)(*replies(*([float(v), 0.0] for v in (0, 1, 2, 3, 50))))
    assert sorted(after) == [0, 1, 2, 3]
    assert sorted(Krum(share=0.4)(*replies(*([float(v), 0.0] for v in (0, 1, 2, 30, 50))))) == [0, 1, 2]


def test_krum_leaves_a_pass_that_only_counts_alone() -> None:
    counting = {k: Reply({}, stats={"n": torch.tensor([k])}) for k in range(4)}
    assert Krum()(counting, dict.fromkeys(counting, START)) == counting


@pytest.mark.parametrize("name", ROBUST)
def test_no_weight_is_above_a_multiple_of_the_median(name: str) -> None:
    after = ROBUST[name](max_weight=2)(*replies([1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [1.0, 0.3], weights=(1, 2, 2, 90)))
    assert {reply.weight for reply in after.values()} <= {1.0, 2.0, 4.0}


@pytest.mark.parametrize("name", ROBUST)
def test_of_two_replies_none_can_be_called_unlike_the_other(name: str) -> None:
    given, starts = replies([1.0, 0.0], [1e6, 0.0], weights=(1, 90))
    assert ROBUST[name]()(given, starts) == given


@pytest.mark.parametrize("name", ROBUST)
def test_the_order_of_arrival_does_not_matter(name: str) -> None:
    given, starts = replies([1.0, 0.0], [2.0, 5.0], [9.0, 1.0], [-3.0, 2.0])
    first = updates(ROBUST[name]()(given, starts))
    assert all(updates(ROBUST[name]()(dict(p), starts)) == first for p in itertools.permutations(given.items()))


def test_settings() -> None:
    run = make_run("capt", {"robust": "trimmed", "robust.share": 0.3, "robust.max_weight": 5})
    assert run.document()["robust"] == {"name": "trimmed", "max_weight": 5.0, "share": 0.3}
    with pytest.raises(UserError, match=r"robust\.share: input should be less than 0\.5"):
        make_run("capt", {"robust": "trimmed", "robust.share": 0.5})
    with pytest.raises(UserError, match=r"unknown robust 'medain'; did you mean 'median'"):
        make_run("capt", {"robust": "medain"})
    with pytest.raises(UserError, match=r"train one after the other, so robust=median has none to compare"):
        make_run("fedavg-released", {"robust": "median"})


# --- with any method ------------------------------------------------------------------------------------------------


# Averaging of every kind: plain, in clusters, by class, with statistics; the others in `pytest -m slow`.
SOME = ("fedavg", "capt", "scaffold", "rucr", "fedsa-lora")
FEDERATED = [
    pytest.param(name, marks=[] if name in SOME else [pytest.mark.slow])
    for name, entry in METHODS.items()
    if entry.method.trains and not issubclass(entry.method, CarriedMomentum) and name not in ("local", "central")
]


def end(experiment: Experiment) -> Params:
    """The server's parameters after all rounds."""
    engine, server = make_engine(experiment), experiment.job.first_server()
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
    return server.params


def far(experiment: Experiment, first: Params) -> float:
    """How far the server's averaged parameters come, at most."""
    made, after = experiment.job.method.made, end(experiment)
    names = [name for name in first if not any(fnmatchcase(name, pattern) for pattern in made)]
    return max(float((after[n] - first[n]).abs().max()) for n in names)


@pytest.mark.parametrize("method", FEDERATED)
def test_any_method_goes_with_it(method: str) -> None:
    """One of four clients sends its update a hundred times as long: with a bound, the model stays where honest ones are
    to the order of their own updates."""
    tuner = METHODS[method].tuner
    more = {"fraction": 1.0, "rounds": 2, "labels": "given"}
    honest = world(method, tuner, **more)
    first = honest.job.first_server().params
    moved = far(honest, first)
    attacked = {**more, "attack": "scale", "attack.share": 0.25, "attack.times": 100.0}
    assert far(world(method, tuner, **attacked), first) > 5 * moved
    assert far(world(method, tuner, robust="bounded", **attacked), first) < 4 * moved


# --- attacks ----------------------------------------------------------------------------------------------------------


def test_who_is_bad_comes_from_the_seed() -> None:
    one, other = (world(attack="flip-sign", seed=seed, **{"attack.share": 0.5}).job for seed in (3, 4))
    assert len(one.bad) == CLIENTS // 2
    assert one.bad == world(attack="flip-sign", seed=3, **{"attack.share": 0.5}).job.bad != other.bad
    assert world(attack="flip-sign", **{"attack.share": 0.0}).job.bad == frozenset()
    assert world().job.bad == frozenset()


def sent(experiment: Experiment) -> dict[int, Tensor]:
    """What each client adds in the first round."""
    job, engine = experiment.job, make_engine(experiment)
    server = job.first_server()
    got = engine(job.method.train, server, range(CLIENTS))
    return {k: reply.params["text.ctx"] - server.params["text.ctx"] for k, reply in got.items()}


@pytest.mark.parametrize(("attack", "times"), [("flip-sign", -1.0), ("scale", 10.0)])
def test_what_is_sent_is_multiplied_at_bad_clients_alone(attack: str, times: float) -> None:
    bad = world(attack=attack, **{"attack.share": 0.25})
    honest, got = sent(world()), sent(bad)
    for k in range(CLIENTS):
        assert torch.allclose(got[k], honest[k] * (times if k in bad.job.bad else 1.0), atol=1e-6), k


def test_flipped_labels_are_of_the_class_at_the_other_end() -> None:
    bad = world("tailor", "head", attack="flip-labels", **{"attack.share": 0.25})
    honest = world("tailor", "head")
    counted = []
    for experiment in (honest, bad):
        engine = make_engine(experiment)
        engine(experiment.job.method.count, experiment.job.first_server(), range(CLIENTS))  # type: ignore[attr-defined]
        counted.append({k: engine.clients[k].local["own.log_prior"] for k in range(CLIENTS)})
    for k in range(CLIENTS):
        assert torch.equal(counted[1][k], counted[0][k].flip(0) if k in bad.job.bad else counted[0][k])


def test_a_backdoor_marks_a_part_of_bad_clients_pictures() -> None:
    """Half of them, in a corner, under the target's label; everyone else's are as they were."""
    honest, bad = world("fedavg", "head"), world("fedavg", "head", attack="backdoor", **{"attack.share": 0.25})
    for k in range(CLIENTS):
        before, after = honest.client_data[k], bad.client_data[k]
        seen = [torch.cat([view.x for view in data.views()]) for data in (before, after)]
        changed = (seen[0] != seen[1]).any(1)
        assert int(changed.sum()) == (round(len(before) / 2) if k in bad.job.bad else 0)
        assert torch.equal(after.labels[~changed], before.labels[~changed])
        assert after.labels[changed].tolist() == [0] * int(changed.sum())


def test_marks_are_in_the_corner_and_part_of_the_cache_key() -> None:
    images = world().federation.dataset.test.images
    marked = Marked(images, frozenset([1]), 0.25)
    assert np.array_equal(marked.read(0), images.read(0))
    assert (marked.read(1)[-8:, -8:] == 255).all()
    assert np.array_equal(marked.read(1)[:-8], images.read(1)[:-8])
    assert len({images.fingerprint, marked.fingerprint, Marked(images, frozenset([2]), 0.25).fingerprint}) == 3
    some = marked.subset(np.array([3, 1]))
    assert some.which == {1}
    assert np.array_equal(some.read(1), marked.read(1))


def test_how_often_a_backdoor_works_is_measured() -> None:
    """By hand: marked test pictures of classes other than the target, asked of the server's model."""
    experiment = world("fedavg", "head", rounds=1, attack="backdoor", **{"attack.share": 0.5, "attack.times": 30.0})
    (record,) = train(experiment)
    job, engine = experiment.job, make_engine(experiment)
    server, _ = run_round(experiment, job.first_server(), engine)
    assert experiment.triggered is not None
    said = ask_shared(job, server, experiment.triggered)
    others = experiment.triggered.labels != 0
    assert record.diagnostics["backdoor"]["success"] == pytest.approx(100 * (said[others] == 0).mean())
    assert any("simulated attack (backdoor) by 2 of the clients" in note for note in experiment.notes)


def test_attacks_are_for_simulations() -> None:
    with pytest.raises(UserError, match=r"attack=scale is for simulations in this process; take engine=local"):
        make_run("fedavg", {"attack": "scale", "engine": "flower"})
