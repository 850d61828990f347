"""Fed-GraB: controllers, weights and gradients, by hand and as the authors compute them."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from fedtailor.base.rng import generator
from fedtailor.core.losses import candidate_loss
from fedtailor.core.types import Batch, Params
from fedtailor.rebalancers import REBALANCERS, fedgrab
from fedtailor.rebalancers.fedgrab import STATE, Controllers, FedGraB, mapped, released
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from golden_numbers import GOLDEN, golden
from world import world

THEIRS = golden("fedgrab_tail_all")
GAINS = ("rebalance.Kp", "rebalance.Ki", "rebalance.Kd")
PID = json.loads((GOLDEN / "fedgrab_pid.json").read_text())


def make(C: int, memory: Params | None = None, counts: list[int] | None = None, **settings: Any) -> Controllers:
    settings = {"release": False, **settings}
    held = torch.ones(C, dtype=torch.int64) if counts is None else torch.tensor(counts)
    return FedGraB(**settings).begin(memory or {}, held, generator(3, "rebalance"))


def batch_of(y: list[int], candidates: Tensor | None = None) -> Batch:
    return Batch(torch.zeros(len(y), 1), torch.tensor(y), torch.arange(len(y)), candidates=candidates)


def take(balance: Controllers, logits: Tensor, batch: Batch) -> Tensor:
    """One step: the gradient on the logits."""
    leaf = logits.clone().requires_grad_()
    return torch.autograd.grad(balance.loss(leaf, batch), leaf)[0]


def m(x: float, most: float = 10) -> float:
    return most / (1 + (most - 1) * math.exp(-x / 2))


def near(ours: Tensor, theirs: Tensor | list[float], tolerance: float = 1e-5) -> None:
    wanted = torch.as_tensor(theirs, dtype=torch.float64)
    torch.testing.assert_close(ours.double(), wanted, atol=tolerance, rtol=tolerance)


# --- the formulas ---------------------------------------------------------------------------------------------------


def test_a_controllers_increment() -> None:
    """e, e1, e2 = 3, 1, 2: Kp·2 + Ki·3 + Kd·(3 − 2 + 2); and with 10, 0.01, 0.1: 20 + 0.03 + 0.3."""
    e, e1, e2 = (torch.tensor([v]) for v in (3.0, 1.0, 2.0))
    assert FedGraB(Kp=1, Ki=0, Kd=0).increment(e, e1, e2).item() == 2
    assert FedGraB(Kp=0, Ki=1, Kd=0).increment(e, e1, e2).item() == 3
    assert FedGraB(Kp=0, Ki=0, Kd=1).increment(e, e1, e2).item() == 3
    assert FedGraB().increment(e, e1, e2).item() == pytest.approx(20.33)


def test_a_controller_is_the_authors() -> None:
    """Their seven imbalances one after the other, each put into the memory between two passes; there is no limit."""
    memory: Params = {}
    for current, out in zip(PID["current"], PID["out"], strict=True):
        memory |= {"rebalance.pos": torch.tensor([current]).double(), "rebalance.neg": torch.zeros(1).double()}
        balance = make(1, memory)
        balance.step()
        memory = balance.keep()
        assert memory["rebalance.out"].item() == pytest.approx(out, rel=1e-9)


def test_the_mapping() -> None:
    """10 / (1 + 9·e^{−x/2}); at 2·ln 9 it is 10/2, at 2·ln 3 it is 10/4; with most = 4, at 2·ln 3: 4/2."""
    x = torch.tensor([0.0, 2 * math.log(9), 2 * math.log(3), 1e6, -1e6]).double()
    near(mapped(x, 10), [1.0, 5.0, 2.5, 10.0, 0.0])
    assert mapped(x, 4)[2].item() == pytest.approx(2)
    for at, weight in PID["map_at"].items():
        assert mapped(torch.tensor(float(at)), 10).item() == pytest.approx(weight, rel=1e-5)


def test_what_is_summed_up_and_the_factor_of_the_next_step() -> None:
    """Two pictures of class 0 and logits of 0: every p is 1/2, the gradient (p − y)/2 is ∓1/4.

    pos = (1/2, 0) and neg = (0, 1/2), so e = −Δ = (−1/2, 1/2), and after a first output of 0
    out = 10·e + 0.01·e + 0.1·e = (−5.055, 5.055). Class 0's gradients are for it, class 1's against it:
    both are multiplied with m(−5.055) = 10 / (1 + 9·e^{2.5275}).
    """
    balance, batch, logits = make(2), batch_of([0, 0]), torch.zeros(2, 2)
    plain = torch.tensor([[-0.25, 0.25], [-0.25, 0.25]])
    near(take(balance, logits, batch), plain)
    near(balance.pos, [0.5, 0.0])
    near(balance.neg, [0.0, 0.5])
    near(take(balance, logits, batch), plain * m(-5.055))
    near(balance.out, [-5.055, 5.055])
    # What is summed up is the gradient that is followed, not the one before its weight.
    near(balance.pos, [0.5 + 0.5 * m(-5.055), 0.0])
    near(balance.neg, [0.0, 0.5 + 0.5 * m(-5.055)])


def test_weights_for_and_against_a_class() -> None:
    """An output of 1 before, Ki alone: e = 0 leaves it. Column 0 has m(1) where it is the label, m(−1) elsewhere."""
    memory = {"rebalance.out": torch.tensor([1.0, 0.0]).double()}
    gradient = take(make(2, memory), torch.zeros(2, 2), batch_of([0, 1]))
    near(gradient, torch.tensor([[-0.25 * m(1), 0.25], [0.25 * m(-1), -0.25]]))


def test_errors_move_on() -> None:
    """e = 1, 1: the second increment is 0.01·1 + 0.1·(1 − 2 + 0), with the first of 10 + 0.01 + 0.1 before it."""
    balance = make(1, {"rebalance.neg": torch.ones(1).double()})
    balance.step()
    near(balance.out, [10.11])
    balance.step()
    near(balance.out, [10.11 + 0.01 - 0.1])
    balance.step()
    near(balance.out, [10.11 + 0.01 - 0.1 + 0.01])


# --- classes that go free -------------------------------------------------------------------------------------------


def test_which_classes_go_free() -> None:
    """n = 3: probabilities 1, 0.1^{1/2} = 0.316 after one, 0.1 after two. The index goes on only with a release."""
    three = torch.ones(3, dtype=torch.bool)
    assert released(three, torch.tensor([0.99, 0.32, 0.31])).tolist() == [True, False, True]
    assert released(three, torch.tensor([0.99, 0.31, 0.11])).tolist() == [True, True, False]
    assert released(three, torch.tensor([0.99, 0.31, 0.09])).tolist() == [True, True, True]
    tail = torch.tensor([False, True, False, True])
    assert released(tail, torch.tensor([0.0, 0.9, 0.0, 0.11])).tolist() == [False, True, False, False]
    assert released(tail, torch.tensor([0.0, 0.9, 0.0, 0.09])).tolist() == [False, True, False, True]
    assert not released(torch.zeros(3, dtype=torch.bool), torch.zeros(3)).any()
    assert released(torch.tensor([False, True]), torch.tensor([0.9, 0.9])).tolist() == [False, True]


def test_a_free_class_has_its_own_gradient_and_is_not_summed_up() -> None:
    """The first class always goes free; with two classes the other does in a tenth of the steps."""
    memory = {"rebalance.out": torch.tensor([3.0, 3.0]).double()}
    balance = make(2, memory, release=True)
    balance.rng = generator(0, "kept")
    assert torch.rand(2, generator=generator(0, "kept"), dtype=torch.float64)[1] > 0.1
    gradient = take(balance, torch.zeros(2, 2), batch_of([0, 1]))
    near(gradient, torch.tensor([[-0.25, 0.25 * m(-3)], [0.25, -0.25 * m(3)]]))
    near(balance.pos, [0.0, 0.25 * m(3)])
    near(balance.neg, [0.0, 0.25 * m(-3)])


def test_draws_come_from_the_generator() -> None:
    def outs(seed: int) -> Tensor:
        balance = make(6, release=True)
        balance.rng = generator(seed, "rebalance")
        for _ in range(6):
            take(balance, torch.zeros(2, 6), batch_of([0, 1]))
        return balance.out

    assert torch.equal(outs(1), outs(1))
    assert not torch.equal(outs(1), outs(2))


def test_only_the_tail_has_controllers() -> None:
    """Counts 5, 1, 0 have a mean of 2: class 0 keeps its gradient in every step."""
    balance, logits, batch = make(3, counts=[5, 1, 0], tail="below-mean"), torch.zeros(2, 3), batch_of([0, 1])
    assert balance.tail.tolist() == [False, True, True]
    plain = take(make(3), logits, batch)
    for _ in range(3):
        gradient = take(balance, logits, batch)
    near(gradient[:, 0], plain[:, 0])
    assert balance.pos[0] == balance.neg[0] == 0
    assert (gradient[:, 2].abs() < 0.5 * plain[:, 2].abs()).all()
    # Nor has it one when it was in the tail before, and has an output from then.
    kept = {"rebalance.out": torch.tensor([4.0, 0.0, 0.0]).double()}
    for release in (False, True):
        near(take(make(3, kept, counts=[5, 1, 0], tail="below-mean", release=release), logits, batch), plain)
    assert make(3, counts=[4, 3, 2], tail="below-mean").tail.tolist() == [False, False, True]  # 3 is the mean


# --- the authors' five steps ----------------------------------------------------------------------------------------


def test_five_steps_are_the_authors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their loss, outputs, weights, gradients and sums, with their draws: none for the first class, then Python's."""
    draws = random.Random(5)
    rule, free = fedgrab.released, []

    def as_drawn(tail: Tensor, _: Tensor) -> Tensor:
        free.append(rule(tail, torch.tensor([0.0, *(draws.random() for _ in range(5))])))
        return free[-1]

    monkeypatch.setattr(fedgrab, "released", as_drawn)
    memory: Params = {}
    before = torch.zeros(6)
    for s in range(5):
        step = {key.split(".")[1]: value for key, value in THEIRS.items() if key.startswith(f"step{s}.")}
        balance = make(6, memory, loss="bce", release=True)  # each step in a pass of its own
        logits = step["logits"].clone().requires_grad_()
        loss = balance.loss(logits, batch_of(step["labels"].tolist()))
        near(loss.detach(), step["loss"])
        near(balance.out, step["pid_out"], 2e-5)
        near(mapped(balance.out, 10), step["pos_w"], 2e-5)
        near(mapped(-balance.out, 10), step["neg_w"], 2e-5)
        assert torch.equal(free[s], step["neg_grad_acc"] == before)  # a free class's sums stay as they were
        assert (step["weight_used"][:, free[s]] == 1).all()
        (gradient,) = torch.autograd.grad(loss, logits)
        near(gradient, step["grad_wrt_logits"], 2e-6)
        near(balance.pos, step["pos_grad_acc"], 2e-6)
        near(balance.neg, step["neg_grad_acc"], 2e-6)
        memory, before = balance.keep(), step["neg_grad_acc"]
    assert [row.nonzero().flatten().tolist() for row in free] == [[0, 1], [0, 2], [0, 2, 4], [0, 1, 2, 3], [0, 2, 4]]


# --- losses ---------------------------------------------------------------------------------------------------------


def test_binary_loss_by_hand() -> None:
    """Logits of 0: ln 2 for each of three classes, the mean over pictures; its gradient (σ − y)/2 = ∓1/4."""
    balance, logits = make(3, loss="bce"), torch.zeros(2, 3, requires_grad=True)
    loss = balance.loss(logits, batch_of([0, 1]))
    assert loss.item() == pytest.approx(3 * math.log(2))
    expected = torch.tensor([[-0.25, 0.25, 0.25], [0.25, -0.25, 0.25]])
    near(torch.autograd.grad(loss, logits)[0], expected)


def test_candidates_are_all_positive() -> None:
    """The candidate-set loss; with logits of 0 and two of four candidates p = 1/4, so p − 1/2 = −1/4 on each."""
    candidates = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    memory = {"rebalance.out": torch.full((4,), 2.0).double()}
    balance, logits = make(4, memory), torch.zeros(1, 4, requires_grad=True)
    loss = balance.loss(logits, batch_of([0], candidates))
    assert loss.item() == pytest.approx(candidate_loss(logits, candidates).item())
    weight = torch.tensor([[-0.25 * m(2), -0.25 * m(2), 0.25 * m(-2), 0.25 * m(-2)]])
    near(torch.autograd.grad(loss, logits)[0], weight)
    near(balance.pos, weight[0].abs() * torch.tensor([1, 1, 0, 0]))
    near(balance.neg, weight[0].abs() * torch.tensor([0, 0, 1, 1]))


def test_candidates_are_the_targets_of_the_binary_loss() -> None:
    """σ(0) − w = 1/2 − (0.75, 0.25, 0); both classes with a weight are positive."""
    candidates = torch.tensor([[0.75, 0.25, 0.0]])
    balance = make(3, loss="bce")
    near(take(balance, torch.zeros(1, 3), batch_of([0], candidates)), torch.tensor([[-0.25, 0.25, 0.5]]))
    near(balance.pos, [0.25, 0.25, 0.0])
    near(balance.neg, [0.0, 0.0, 0.5])


@pytest.mark.parametrize("release", [False, True])
def test_without_gains_it_is_the_plain_loss_bit_for_bit(release: bool) -> None:
    balance, rng = make(5, Kp=0, Ki=0, Kd=0, release=release), torch.Generator().manual_seed(1)
    for _ in range(4):
        logits, batch = torch.randn(6, 5, generator=rng, requires_grad=True), batch_of([0, 0, 0, 1, 4, 0])
        (plain,) = torch.autograd.grad(F.cross_entropy(logits, batch.y), logits)
        assert torch.equal(take(balance, logits.detach(), batch), plain)


def test_other_losses_of_the_same_logits_keep_their_gradient() -> None:
    memory = {"rebalance.out": torch.tensor([3.0, -3.0]).double()}
    logits, batch = torch.tensor([[1.0, -2.0]]), batch_of([0])
    alone = take(make(2, memory), logits, batch)
    leaf = logits.clone().requires_grad_()
    used = leaf * 1.0  # as a model's logits: no leaf
    for order in (1, -1):
        terms = [make(2, memory).loss(used, batch), 3 * used.square().sum()][::order]
        (both,) = torch.autograd.grad(terms[0] + terms[1], leaf, retain_graph=True)
        near(both, alone + 6 * logits)


def test_a_losss_factor_is_seen_by_the_controllers() -> None:
    balance, logits = make(2), torch.zeros(2, 2, requires_grad=True)
    (0.5 * balance.loss(logits, batch_of([0, 0]))).backward()
    near(balance.pos, [0.25, 0.0])


def test_each_call_is_a_step() -> None:
    """Two losses of one batch: the second finds the same sums as the first, which is e1 by then."""
    balance, logits = make(1, {"rebalance.neg": torch.ones(1).double()}), torch.zeros(1, 1, requires_grad=True)
    both = balance.loss(logits, batch_of([0])) + balance.loss(logits, batch_of([0]))
    near(balance.out, [10.11 + 0.01 - 0.1])
    assert both.requires_grad


def test_what_is_not_differentiated_is_no_step() -> None:
    balance, draws = make(3, release=True), generator(3, "rebalance").get_state()
    with torch.no_grad():
        loss = balance.loss(torch.zeros(2, 3), batch_of([0, 1]))
    assert loss.item() == pytest.approx(math.log(3))
    balance.neg = torch.ones(3).double()
    balance.loss(torch.zeros(2, 3), batch_of([0, 1]))
    assert not balance.out.any()
    assert torch.equal(balance.rng.get_state(), draws)


def test_half_precision_logits() -> None:
    balance, logits = make(2), torch.zeros(2, 2, dtype=torch.bfloat16)
    for _ in range(2):
        gradient = take(balance, logits, batch_of([0, 0]))
    assert gradient.dtype == torch.bfloat16
    near(gradient[0], [-0.25 * m(-5.055), 0.25 * m(-5.055)], 1e-2)
    # Sums are not rounded to it: 1/6 is 0.1670 there, three times that is 0.5010 and not 0.5.
    balance = make(2)
    gradient = take(balance, torch.zeros(3, 2, dtype=torch.bfloat16), batch_of([0, 0, 0]))
    assert balance.pos[0] == gradient[:, 0].float().abs().sum() != 0.5


# --- memory ---------------------------------------------------------------------------------------------------------


def test_state_is_kept_from_pass_to_pass() -> None:
    rng = torch.Generator().manual_seed(2)
    steps = [(torch.randn(4, 3, generator=rng), batch_of([0, 0, 1, 2])) for _ in range(6)]
    straight, memory = make(3), {}
    for logits, batch in steps:
        at_once = take(straight, logits, batch)
        stopped = make(3, memory)
        assert torch.equal(take(stopped, logits, batch), at_once)
        memory = stopped.keep()
    assert set(memory) == set(STATE)
    assert all(name.startswith("rebalance.") for name in memory)
    assert all(value.any() for value in memory.values())


def test_nothing_is_changed_in_place() -> None:
    memory = {name: torch.full((2,), 0.5).double() for name in STATE}
    balance = make(2, memory)
    kept = balance.keep()
    take(balance, torch.zeros(2, 2), batch_of([0, 0]))
    for value in (*memory.values(), *kept.values()):
        assert (value == 0.5).all()
    for value in balance.keep().values():
        value.fill_(7.0)
    assert not any((value == 7).any() for value in balance.keep().values())


def test_one_clients_state_is_not_anothers() -> None:
    settings, counts = FedGraB(), torch.ones(2)
    first = settings.begin({}, counts, generator(1))
    take(first, torch.zeros(2, 2), batch_of([0, 0]))
    assert not any(value.any() for value in settings.begin({}, counts, generator(1)).keep().values())


# --- what it is for -------------------------------------------------------------------------------------------------


def factor(pressure: int, rare_logit: float = 0.0) -> float:
    """Of the gradient for the rare class 2, after so many steps with pictures of the dominant class 0 alone."""
    balance, logits = make(3), torch.tensor([[0.0, 0.0, rare_logit]]).expand(4, 3)
    for _ in range(pressure):
        take(balance, logits, batch_of([0, 0, 0, 0]))
    probe, batch = torch.zeros(1, 3), batch_of([2])
    return (take(balance, probe, batch)[0, 2] / take(make(3), probe, batch)[0, 2]).item()


def test_a_rare_class_is_pulled_up_by_as_much_as_it_was_pressed_down() -> None:
    """Each picture of class 0 pushes class 2 down by p = 1/3: after one step e = 1/3, out = 10.11/3 = 3.37."""
    grown = [factor(pressure) for pressure in range(5)]
    assert grown[0] == 1
    assert grown[1] == pytest.approx(m(10.11 / 3), rel=1e-5)
    assert all(after > before for before, after in pairwise(grown))
    assert grown[-1] < 10
    # Where the dominant class's pictures don't press on it (p = 0), nothing grows.
    assert factor(5, rare_logit=-200.0) == pytest.approx(1)


def test_a_dominant_class_is_held_back() -> None:
    """Three pictures of class 0, one of class 2, p = 1/3: a gradient for a class is −2/12, one against it 1/12.

    Class 0: pos = 6/12, neg = 1/12, e = −5/12. Class 2: pos = 2/12, neg = 3/12, e = 1/12. out = 10.11·e.
    """
    balance, batch = make(3), batch_of([0, 0, 0, 2])
    take(balance, torch.zeros(4, 3), batch)
    gradient = 12 * take(balance, torch.zeros(4, 3), batch)
    head, tail = 10.11 * -5 / 12, 10.11 * 1 / 12
    assert m(head) < 1 < m(tail)
    near(gradient[0, [0, 2]], [-2 * m(head), m(-tail)])
    near(gradient[3, [0, 2]], [m(-head), -2 * m(tail)])


# --- with any method ------------------------------------------------------------------------------------------------


def learned(method: str, tuner: str, **more: Any) -> tuple[Params, dict[int, Params]]:
    """What the server knows at the end, and what each client keeps."""
    experiment = world(method, tuner, rounds=2, fraction=1.0, **more)
    engine, server = make_engine(experiment), experiment.job.first_server()
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
    return {**server.params, **server.state}, {k: client.memory for k, client in engine.clients.items()}


@pytest.mark.parametrize(("method", "tuner"), [("promptfl", "text_prompt"), ("fedpurel", "text_prompt")])
@pytest.mark.parametrize("labels", ["given", "cpl"])
def test_any_method_takes_it(method: str, tuner: str, labels: str) -> None:
    plain, _ = learned(method, tuner, labels=labels)
    idle, _ = learned(method, tuner, labels=labels, rebalance="fedgrab", **dict.fromkeys(GAINS, 0.0))
    ours, kept = learned(method, tuner, labels=labels, rebalance="fedgrab")
    assert plain.keys() == ours.keys() == idle.keys()  # the controllers' state stays with the clients
    assert all(torch.equal(plain[name], idle[name]) for name in plain)
    assert not all(torch.equal(plain[name], ours[name]) for name in plain)
    for memory in kept.values():
        assert set(STATE) <= set(memory)
        assert memory["rebalance.neg"].any()


# --- settings -------------------------------------------------------------------------------------------------------


def test_settings() -> None:
    assert REBALANCERS["fedgrab"] is FedGraB
    released_code = {"Kp": 10.0, "Ki": 0.01, "Kd": 0.1, "most": 10.0, "tail": "all", "release": True}
    assert FedGraB().model_dump() == {**released_code, "loss": "ce"}
    for wrong in ({"most": 1}, {"Kp": -1}, {"tail": "head"}, {"loss": "mse"}, {"kp": 1}):
        with pytest.raises(ValidationError):
            FedGraB(**wrong)
