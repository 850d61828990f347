from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from toys import GOLDEN, blank, toy

from fedtailor.base.errors import UserError
from fedtailor.data.dataset import Dataset, Split
from fedtailor.data.datasets.drawn import drawn
from fedtailor.data.federation import federate
from fedtailor.data.groups import profile, thin
from fedtailor.data.partitions import PARTITIONS, dirichlet
from fedtailor.data.partitions.base import Partition, Shares, capped, check_size
from fedtailor.data.partitions.dirichlet import Dirichlet
from fedtailor.data.partitions.dirichlet_plain import PlainDirichlet
from fedtailor.data.partitions.iid import Iid
from fedtailor.data.partitions.pachinko import Pachinko
from fedtailor.data.partitions.quantity import Quantity
from fedtailor.data.partitions.site import BySite
from fedtailor.data.released import ReleasedDraws
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import deal


def covers(shares: Shares, dataset: Dataset) -> bool:
    """Every picture is held once."""
    train = sorted(np.concatenate([share.train for share in shares]).tolist())
    test = sorted(np.concatenate([share.test for share in shares]).tolist())
    return train == list(range(len(dataset.train))) and test == list(range(len(dataset.test)))


def with_sites(dataset: Dataset, train: list[int], test: list[int] | None) -> Dataset:
    return replace(
        dataset,
        train=replace(dataset.train, sites=np.array(train)),
        test=replace(dataset.test, sites=None if test is None else np.array(test)),
    )


def unlabelled(dataset: Dataset) -> Dataset:
    return replace(dataset, train=Split(dataset.train.images, None, dataset.train.sites))


@pytest.mark.parametrize(("case", "clients", "alpha"), [("K6_beta0.5", 6, 0.5), ("K5_beta0.1", 5, 0.1)])
def test_capts_partition_is_replayed(case: str, clients: int, alpha: float) -> None:
    """10 classes × 300, IF 10: numpy is seeded with 1, the class lists are shuffled, then the shares are drawn."""
    golden = np.load(GOLDEN / "partition_dirichlet_small_capt.npz")
    rng = np.random.RandomState(1)  # as the authors do
    whole = toy([300] * 10, [60] * 10)
    assert whole.train.labels is not None
    kept = thin(whole.train.labels, profile(300, 10, 10), rng)
    assert kept.tolist() == golden[f"{case}.longtail_index"].tolist()
    dataset = replace(whole, train=whole.train.subset(kept))
    for client, share in enumerate(Dirichlet(alpha=alpha)(dataset, clients, rng)):
        assert share.train.tolist() == golden[f"{case}.client{client}.train"].tolist()
        assert share.test.tolist() == golden[f"{case}.client{client}.test"].tolist()


counts = st.lists(st.integers(0, 60), min_size=2, max_size=8).filter(lambda counts: sum(counts) >= 40)
seeds = st.integers(0, 1000)


@settings(max_examples=60, deadline=None)
@given(counts, st.integers(1, 6), seeds, st.sampled_from([0.1, 1.0, 10.0]))
def test_every_picture_is_dealt_to_one_client(sizes: list[int], clients: int, seed: int, alpha: float) -> None:
    dataset = toy(sizes, [7] * len(sizes))
    partitions: list[Partition] = [Dirichlet(alpha=alpha, min_size=0), PlainDirichlet(alpha=alpha), Iid()]
    for partition in partitions:
        shares = partition(dataset, clients, np.random.default_rng(seed))
        assert len(shares) == clients
        assert covers(shares, dataset)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(5, 60), min_size=5, max_size=12), st.sampled_from([5, 10, 15, 20]), seeds)
def test_quantity_covers_and_every_client_has_something(sizes: list[int], clients: int, seed: int) -> None:
    dataset = toy(sizes, [5] * len(sizes))
    try:
        shares = Quantity()(dataset, clients, np.random.default_rng(seed))
    except UserError as error:
        assert "clients" in str(error)  # noqa: PT017 (few classes cannot reach all of them)
        return
    assert covers(shares, dataset)
    assert min(len(share.train) for share in shares) > 0


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(1, 30))
def test_the_smallest_client_has_what_was_asked(seed: int, least: int) -> None:
    dataset = toy([100] * 5, [60] * 5)
    shares = Dirichlet(alpha=1.0, min_size=least)(dataset, 5, np.random.default_rng(seed))
    assert min(min(len(share.train), len(share.test)) for share in shares) >= least


@settings(max_examples=40, deadline=None)
@given(seeds, st.sampled_from([0.05, 0.5, 5.0]))
def test_plain_shares_are_the_same_for_train_and_test(seed: int, alpha: float) -> None:
    federation = federate(toy([200, 150, 90], [50, 50, 50]), PlainDirichlet(alpha=alpha), 6, seed)
    train = federation.counts / federation.counts.sum(axis=0)
    test = federation.test_counts / federation.test_counts.sum(axis=0)
    assert np.abs(train - test).max() <= 1 / 50 + 1 / 90  # each edge is rounded down once in either


@pytest.mark.parametrize("name", sorted(set(PARTITIONS) - {"site"}))
def test_the_seed_decides(name: str) -> None:
    dataset = toy([200] * 10, [200] * 10, coarse=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    one, again, other = (federate(dataset, PARTITIONS[name](), 10, seed).shares for seed in (1, 1, 2))
    same = [
        np.array_equal(a.train, b.train) and np.array_equal(a.test, b.test) for a, b in zip(one, again, strict=True)
    ]
    assert all(same)
    assert any(not np.array_equal(a.train, b.train) for a, b in zip(one, other, strict=True))


def test_a_full_client_gets_no_more() -> None:
    """Ten equal classes, two clients, α small: nearly whole classes go to one, none to whoever has half already."""
    for seed in range(10):
        shares = Dirichlet(alpha=0.01, min_size=1)(toy([10] * 10, [10] * 10), 2, np.random.default_rng(seed))
        assert max(len(share.train) for share in shares) <= 59  # below 50 when the last class came


def test_fedcopls_test_cap_is_its_own() -> None:
    """Train is one class only, so CAPT's cap never binds on the test pictures of the others; FedCoPL's does."""
    dataset = toy([40, 0, 0, 0], [10, 10, 10, 10])
    for seed in range(10):
        partition = Dirichlet(alpha=0.01, min_size=0, own_test_cap=True)
        shares = partition(dataset, 2, np.random.default_rng(seed))
        assert covers(shares, dataset)
        assert max(len(share.test) for share in shares) <= 29


def test_an_impossible_minimum_says_what_to_change() -> None:
    with pytest.raises(UserError, match=r"lower data\.min_size or data\.min_test, or raise data\.alpha"):
        Dirichlet(alpha=0.01)(toy([50] * 2, [50] * 2), 10, np.random.default_rng(0))


def test_without_test_pictures_the_minimum_is_for_training_only() -> None:
    dataset = toy([50, 50], [0, 0])
    assert covers(Dirichlet(alpha=1.0)(dataset, 2, np.random.default_rng(0)), dataset)


def test_quantity_uses_started_quotas_up() -> None:
    """47 classes, 10 clients: a quota of 9.4 gives ten classes to eight clients and seven to the last two."""
    federation = federate(toy([40] * 47, [20] * 47), Quantity(), 10, 0)
    assert (federation.counts > 0).sum(axis=1).tolist() == [10] * 8 + [7] * 2
    assert ((federation.counts > 0).sum(axis=0) == 2).all()
    assert (federation.counts[0, :10] < 20).all()  # the first holder has less than its even part, the last the rest
    assert np.array_equal(federation.counts > 0, federation.test_counts > 0)


def test_quantity_refuses_what_it_cannot_deal() -> None:
    with pytest.raises(UserError, match="needs 5 clients or more, got 4"):
        Quantity()(toy([40] * 10, [20] * 10), 4, np.random.default_rng(0))
    with pytest.raises(UserError, match=r"client\(s\) 10, 11 of 12 without pictures; take 10 clients"):
        Quantity()(toy([40] * 10, [20] * 10), 12, np.random.default_rng(0))


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(1, 9), st.sampled_from([0.001, 0.1, 10.0]))
def test_pachinko_deals_equal_pools_and_leaves_the_remainder(seed: int, clients: int, alpha: float) -> None:
    dataset = toy([30, 20, 10, 5], [9, 9, 9, 9], coarse=[0, 0, 1, 1])
    shares = Pachinko(alpha=alpha)(dataset, clients, np.random.default_rng(seed))
    assert {len(share.train) + len(share.test) for share in shares} == {101 // clients}
    held = [*np.concatenate([share.train for share in shares]), *(65 + np.concatenate([s.test for s in shares]))]
    assert len(set(held)) == len(held)
    assert set(held) <= set(range(101))


def test_pachinko_follows_the_super_classes() -> None:
    """With α tiny a client draws from one super-class until that runs out."""
    dataset = toy([50] * 8, [10] * 8, coarse=[0, 0, 0, 0, 1, 1, 1, 1])
    federation = federate(dataset, Pachinko(alpha=0.001), 4, 3)
    assert dataset.coarse is not None
    by_parent = np.stack([federation.counts[:, dataset.coarse == parent].sum(axis=1) for parent in (0, 1)], axis=1)
    assert (by_parent.max(axis=1) / by_parent.sum(axis=1)).mean() > 0.9


def test_pachinko_needs_super_classes() -> None:
    with pytest.raises(UserError, match="super-classes"):
        Pachinko()(toy([40], [10]), 2, np.random.default_rng(0))


def test_sites_are_clients() -> None:
    dataset = with_sites(toy([3, 2], [2, 1]), [0, 2, 2, 0, 5], [5, 0, 2])
    shares = BySite()(dataset, 3, np.random.default_rng(0))
    assert [(share.train.tolist(), share.test.tolist()) for share in shares] == [
        ([0, 3], [1]),
        ([1, 2], [2]),
        ([4], [0]),
    ]
    assert covers(BySite()(with_sites(dataset, [0, 2, 2, 0, 5], None), 3, np.random.default_rng(0)), dataset)


def test_sites_that_do_not_fit_are_refused() -> None:
    dataset = with_sites(toy([3, 2], [2, 1]), [0, 1, 1, 0, 1], [0, 7, 7])
    with pytest.raises(UserError, match="has 2 sites and was to go to 3 clients; set clients=2"):
        BySite()(dataset, 3, np.random.default_rng(0))
    with pytest.raises(UserError, match=r"site number 7"):
        BySite()(dataset, 2, np.random.default_rng(0))
    with pytest.raises(UserError, match="take iid"):
        BySite()(toy([3], [3]), 1, np.random.default_rng(0))


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet-plain", "quantity", "pachinko"])
def test_only_iid_and_site_deal_unlabelled_pictures(name: str) -> None:
    dataset = unlabelled(with_sites(toy([20, 20], [5, 5], coarse=[0, 0]), [0, 1] * 20, None))
    with pytest.raises(UserError, match=f"partition {name} needs labels"):
        PARTITIONS[name]()(dataset, 2, np.random.default_rng(0))
    for partition in (Iid(), BySite()):
        assert covers(partition(dataset, 2, np.random.default_rng(0)), dataset)


@pytest.mark.parametrize("name", sorted(set(PARTITIONS) - {"site"}))
def test_more_clients_than_pictures_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="clients"):
        PARTITIONS[name]()(toy([2, 2], [9, 9], coarse=[0, 0]), 5, np.random.default_rng(0))
    with pytest.raises(UserError, match="clients"):
        PARTITIONS[name]()(toy([2, 2], [9, 9], coarse=[0, 0]), 0, np.random.default_rng(0))


def test_hyper_parameters_are_checked_and_fixed() -> None:
    with pytest.raises(ValidationError):
        Dirichlet(alpha=0)
    with pytest.raises(ValidationError):
        Dirichlet(beta=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        Dirichlet().alpha = 1.0  # type: ignore[misc]


def test_iid_parts_are_equal_up_to_one() -> None:
    dataset = replace(toy([10], [10]), train=Split(blank(11), None))
    sizes = sorted(len(share.train) for share in Iid()(dataset, 3, np.random.default_rng(0)))
    assert sizes == [3, 4, 4]


def pachinko_toy() -> tuple[Dataset, dict[str, np.ndarray]]:
    """100 classes × 12 in CIFAR-100's super-classes, IF 10, as the released codes thin it; 4 test pictures each."""
    golden = dict(np.load(GOLDEN / "partition_pachinko_small.npz"))
    whole = toy([12] * 100, [4] * 100, golden["coarse"].tolist())
    assert whole.train.labels is not None
    kept = thin(whole.train.labels, profile(12, 100, 10), np.random.RandomState(1))
    assert kept.tolist() == golden["longtail_index"].tolist()
    return replace(whole, train=whole.train.subset(kept)), golden


@pytest.mark.parametrize(("seed", "clients", "alpha"), [(1, 5, 0.3), (12345, 8, 1.0)])
def test_pachinko_is_replayed(seed: int, clients: int, alpha: float) -> None:
    """FedPuReL's seed and CAPT's; every class runs out at some client, most super-classes too."""
    dataset, golden = pachinko_toy()
    draws = ReleasedDraws.seeded(seed, first=1)
    for client, share in enumerate(Pachinko(alpha=alpha).released(dataset, clients, draws)):
        case = f"seed{seed}_K{clients}_beta{alpha}.client{client}"
        assert share.train.tolist() == golden[f"{case}.train"].tolist()
        assert share.test.tolist() == golden[f"{case}.test"].tolist()


@pytest.mark.parametrize(("seed", "classes", "clients"), [(2, 47, 10), (1, 10, 20)])
def test_quantity_is_replayed(seed: int, classes: int, clients: int) -> None:
    golden = np.load(GOLDEN / "partition_quantity_small.npz")
    draws = ReleasedDraws.seeded(seed, first=seed)
    shares = Quantity().released(toy([40] * classes, [30] * classes), clients, draws)
    for client, share in enumerate(shares):
        case = f"seed{seed}_C{classes}_K{clients}.client{client}"
        assert share.train.tolist() == golden[f"{case}.train"].tolist()
        assert share.test.tolist() == golden[f"{case}.test"].tolist()


def test_a_run_has_the_released_clients() -> None:
    """From the key to the shares: the tail by data.seed, the clients go on with the same generator, as in CAPT's code,
    whatever the run's seed. Without a tail they begin with the run's seed."""

    def dealt(seed: int, imbalance: int) -> list[list[int]]:
        keys = {"data": "drawn", "data.imbalance": imbalance, "data.draws": "released", "seed": seed, "clients": 5}
        return [share.train.tolist() for share in deal(make_run("promptfl", keys))[0].shares]

    assert dealt(0, 10) == dealt(3, 10)
    assert dealt(0, 1) != dealt(3, 1)
    whole = drawn()
    assert whole.train.labels is not None
    rng = np.random.RandomState(1)
    C = len(whole.classes)
    kept = thin(whole.train.labels, profile(len(whole.train) / C, C, 10), rng)
    thinned = replace(whole, train=whole.train.subset(kept))
    assert dealt(0, 10) == [share.train.tolist() for share in Dirichlet()(thinned, 5, rng)]
    plain = Dirichlet()(whole, 5, np.random.RandomState(3))
    assert dealt(3, 1) == [share.train.tolist() for share in plain]


def test_a_tail_by_rank() -> None:
    """Fashion-MNIST's largest class is 8: the released codes shuffle it first, and its pictures come first."""
    labels = np.repeat(np.arange(3), 4).astype(np.int64)
    counts = np.array([2, 1, 4])
    by_rank = thin(labels, counts, np.random.RandomState(0), order=(2, 0, 1))
    rng = np.random.RandomState(0)
    parts = [rng.permutation(np.arange(4) + first)[:n] for first, n in ((8, 4), (0, 2), (4, 1))]
    assert by_rank.tolist() == np.concatenate(parts).tolist()


def test_released_draws_say_where_they_end() -> None:
    draws = ReleasedDraws.seeded(0, 0)
    with pytest.raises(UserError, match=r"data.partition=iid; take dirichlet, quantity or pachinko"):
        Iid().released(toy([10], [10]), 2, draws)
    with pytest.raises(UserError, match=r"data.server=0.1 keeps some back"):
        federate(toy([40], [10]), Dirichlet(), 2, 0, 0.1, draws)
    with pytest.raises(UserError, match="seeds up to 4294967295"):
        ReleasedDraws.seeded(2**32, 0)
    with pytest.raises(UserError, match=r"the released code fails here; take data.draws=own"):
        Quantity().released(toy([2] * 10, [20] * 10), 10, draws)
    with pytest.raises(UserError, match=r"larger data.alpha or data.draws=own"):
        Pachinko(alpha=1e-300).released(toy([9] * 4, [9] * 4, coarse=[0, 0, 1, 1]), 1, draws)


def test_too_few_pictures_are_refused_before_any_draw() -> None:
    """Broken: what no draw can give is drawn for a minute, since only training pictures were counted."""

    class Untouched(np.random.Generator):
        def permutation(self, *_: object, **__: object) -> NoReturn:
            raise AssertionError("something was drawn")

    rng = Untouched(np.random.PCG64(0))
    with pytest.raises(
        UserError, match=r"5 clients with 10 .* need 50 to test on, toy has 20; take 2 clients or fewer"
    ):
        Dirichlet()(toy([100, 100], [10, 10]), 5, rng)
    with pytest.raises(UserError, match=r"need 20 to test on, .* or lower data\.min_test"):
        Dirichlet(min_test=4)(toy([100, 100], [10, 9]), 5, rng)
    with pytest.raises(UserError, match=r"need 50 to train on, toy has 40; .* or lower data\.min_size"):
        Dirichlet()(toy([20, 20], [90, 90]), 5, rng)


def test_a_hopeless_partition_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: clients=100 on drawn-lt, where each draw leaves a fifth of them short, draws 2000 times first."""
    draws = []
    monkeypatch.setattr(dirichlet, "capped", lambda *given: draws.append(1) or capped(*given))
    counts = profile(300, 40, 100)
    with pytest.raises(UserError, match=r"in 20 draws with alpha=0\.1, \d\d or more of 100 clients always had fewer"):
        Dirichlet()(toy(counts.tolist(), [50] * 40), 100, np.random.default_rng(0))
    assert len(draws) == 20 * 40


def test_draws_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a partition that fails now and then, and then always, is drawn for ever."""
    monkeypatch.setattr(dirichlet, "TRIES", 30)
    with pytest.raises(UserError, match=r"in 30 draws .* take fewer clients, lower data\.min_size"):
        Dirichlet(alpha=0.01, min_size=9)(toy([20, 20], [20, 20]), 4, np.random.default_rng(0))


def test_too_few_for_anyone() -> None:
    """Broken: who has too few pictures for one client is told to take 0 clients or fewer."""
    with pytest.raises(UserError, match=r"need 10 to train on, toy has 3; lower data.min_size$"):
        check_size(toy([2, 1], [1, 1]), 1, least=10)
    with pytest.raises(UserError, match=r"toy has 0; add pictures$"):
        check_size(toy([0, 0], [1, 1]), 1)
