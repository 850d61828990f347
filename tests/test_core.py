"""The vocabulary: scopes by pattern, the weighted mean, what a client is sent, who takes part."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.base.errors import UserError
from fedtailor.base.rng import generator
from fedtailor.core.method import Method, resolve, weighted_mean
from fedtailor.core.types import FIXED, GLOBAL, LOCAL, Cluster, Params, Reply, Server


def named(*names: str) -> Params:
    return {name: torch.zeros(1) for name in names}


def test_first_pattern_wins() -> None:
    """`text.bias` is fixed although `text.*` and `*` match it too; the order of the patterns decides."""
    share = {"*.bias": FIXED, "text.*": LOCAL, "*": GLOBAL}
    found = resolve(share, named("text.ctx", "text.bias", "visual.ctx"))
    assert found == {"text.ctx": LOCAL, "text.bias": FIXED, "visual.ctx": GLOBAL}
    assert resolve({"visual.*": Cluster("a"), "*": GLOBAL}, named("visual.ctx", "x"))["visual.ctx"] == Cluster("a")


def test_patterns_are_case_sensitive_on_every_system() -> None:
    """`*.A` and `*.a` are two patterns."""
    assert resolve({"*.A": GLOBAL, "*.a": LOCAL}, named("x.A", "x.a")) == {"x.A": GLOBAL, "x.a": LOCAL}


def test_misfits_are_all_listed() -> None:
    """Parameters that no pattern takes and patterns that take none are an error that names both kinds."""
    with pytest.raises(UserError) as caught:
        resolve({"text.*": GLOBAL, "couple.*": LOCAL, "deep.*": FIXED}, named("text.ctx", "visual.ctx", "lora.A"))
    told = str(caught.value)
    assert "without a pattern: visual.ctx, lora.A;" in told
    assert "without a parameter: couple.*, deep.*;" in told
    with pytest.raises(UserError, match=r"without a pattern: b; patterns without a parameter: none"):
        resolve({"a": GLOBAL}, named("a", "b"))
    with pytest.raises(UserError, match=r"without a pattern: none; patterns without a parameter: b"):
        resolve({"a": GLOBAL, "b": GLOBAL}, named("a"))


def test_a_tuner_without_parameters_fits_any_share() -> None:
    """Zero-shot CLIP has nothing to share."""
    assert resolve({"*": GLOBAL}, {}) == {}


def test_weighted_mean_by_hand() -> None:
    """(1·1 + 3·2 + 4·4) / 8 = 23/8; b comes from clients 1 and 2 alone: (3·10 + 4·3) / 7 = 6."""
    replies = {
        0: Reply({"a": torch.tensor([1.0])}, weight=1),
        1: Reply({"a": torch.tensor([2.0]), "b": torch.tensor([10.0])}, weight=3),
        2: Reply({"a": torch.tensor([4.0]), "b": torch.tensor([3.0])}, weight=4),
    }
    mean = weighted_mean(replies)
    assert list(mean) == ["a", "b"]
    assert (mean["a"].item(), mean["b"].item()) == (23 / 8, 6.0)
    assert mean["a"].dtype == torch.float32


def test_a_client_of_weight_zero_counts_for_nothing() -> None:
    """One client without samples does not disturb the others'."""
    replies = {0: Reply({"a": torch.tensor([5.0])}, weight=0), 1: Reply({"a": torch.tensor([2.0])}, weight=3)}
    assert weighted_mean(replies)["a"].item() == 2.0


def test_no_weight_at_all_is_an_error() -> None:
    """A mean over nothing would be 0/0; it names the parameter instead."""
    with pytest.raises(UserError, match=r"replies for text\.ctx have a total weight of 0"):
        weighted_mean({0: Reply({"text.ctx": torch.zeros(1)}, weight=0.0)})


def test_mean_does_not_depend_on_arrival() -> None:
    """Every order in which four replies may arrive gives the same bits, of sums that do depend on their order."""
    numbers = [0.1, 1e16, -1e16, 0.7]
    assert len({sum(order) for order in permutations(numbers)}) > 1
    replies = {k: Reply({"a": torch.tensor([v], dtype=torch.float64)}) for k, v in enumerate(numbers)}
    first = weighted_mean(replies)["a"]
    for order in permutations(replies):
        assert torch.equal(weighted_mean({k: replies[k] for k in order})["a"], first)


def test_mean_leaves_replies_as_they_are() -> None:
    """The fold is a tensor of its own, even with one reply of weight 1."""
    sent = torch.tensor([1.0, 2.0])
    mean = weighted_mean({0: Reply({"a": sent})})["a"]
    mean += 1
    assert sent.tolist() == [1.0, 2.0]


def test_aggregate_keeps_what_nobody_sent() -> None:
    """Absent means unchanged."""
    server = Server(4, {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])}, state={"s": torch.ones(1)})
    new = Method().aggregate(server, {0: Reply({"a": torch.tensor([9.0])})})
    assert (new.params["a"].item(), new.params["b"].item(), new.state["s"].item()) == (9.0, 2.0, 1.0)
    assert server.params["a"].item() == 1.0


def test_what_a_client_is_sent() -> None:
    """Its clusters' copies; the server's where it is in no cluster or the cluster has no copy of that parameter."""
    scopes = {"g": GLOBAL, "near": Cluster("similar"), "far": Cluster("diverse"), "far2": Cluster("diverse")}
    server = Server(
        round=1,
        params={name: torch.tensor([float(i)]) for i, name in enumerate(scopes)},
        clusters={
            "similar": {0: {"near": torch.tensor([10.0])}, 1: {"near": torch.tensor([11.0])}},
            "diverse": {5: {"far": torch.tensor([20.0]), "g": torch.tensor([99.0])}},
        },
        cluster_of={"similar": {7: 0, 8: 1}, "diverse": {8: 5}},
    )

    def sent(client: int) -> list[float]:
        return [value.item() for value in server.params_for(client, scopes).values()]

    assert sent(7) == [0, 10, 2, 3]
    assert sent(8) == [0, 11, 20, 3]  # no copy of far2 in the cluster, and a cluster cannot hold a global parameter
    assert sent(9) == [0, 1, 2, 3]
    assert list(server.params_for(8, scopes)) == list(scopes)


class Everyone(Method):
    everyone_first = True


@settings(deadline=None, max_examples=80)
@given(
    t=st.integers(0, 50),
    clients=st.integers(1, 60),
    fraction=st.floats(0.001, 1.0),
    seed=st.integers(0, 1000),
    everyone=st.booleans(),
)
def test_cohort(t: int, clients: int, fraction: float, seed: int, everyone: bool) -> None:
    """max(int(fraction · K), 1) different clients in order, the same for the same seed; all in round 0 where asked."""
    method = Everyone() if everyone else Method()
    chosen = method.cohort(t, clients, fraction, generator(seed, "cohort", t))
    size = clients if everyone and t == 0 else max(int(fraction * clients), 1)
    assert len(chosen) == size
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(clients))
    assert chosen == method.cohort(t, clients, fraction, generator(seed, "cohort", t))


def test_every_client_is_drawn_alike() -> None:
    """Over 600 rounds of 2 of 5, each client has 240 ± 5 standard deviations (√(600 · 0.4 · 0.6) = 12)."""
    drawn = [k for t in range(600) for k in Method().cohort(t, 5, 0.4, generator(0, "cohort", t))]
    assert all(abs(drawn.count(k) - 240) < 60 for k in range(5))


def test_scopes_read_as_words() -> None:
    """As `fedtailor show` prints them."""
    assert [str(s) for s in (GLOBAL, LOCAL, FIXED, Cluster("similar"))] == [
        "global",
        "local",
        "fixed",
        "cluster similar",
    ]
