"""Entropic transport: equal to POT's and to FedOTP's own, and no problem minds those beside it."""

from __future__ import annotations

import importlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedtailor.algorithms import optimal_transport
from fedtailor.algorithms.optimal_transport import plan
from golden_numbers import close, golden

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
HALVES = torch.tensor([0.5, 0.5])


def problem(seed: int, *batch: int, M: int = 9, N: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Costs, what rows have (1 in all), and what columns get (0.7)."""
    rng = torch.Generator().manual_seed(seed)
    cost, a, b = (torch.rand(shape, generator=rng) for shape in ((*batch, M, N), (M,), (N,)))
    a, b = a + 0.1, b + 0.1
    return cost, a / a.sum(), 0.7 * b / b.sum()


def column(*kernel: float, eps: float = 0.5) -> Tensor:
    """(M, 1): the costs whose kernel is this."""
    return -eps * torch.tensor(kernel).log()[:, None]


def test_by_hand() -> None:
    """0.6 in proportion 3 to 1 is (0.45, 0.15), within the rows' halves; 9 to 1 would be (0.54, 0.06): half is all
    that the first row has, the second gives the rest. Two columns of a flat kernel are two even splits."""
    assert plan(column(3, 1), HALVES, torch.tensor([0.6]), 0.5).flatten().tolist() == pytest.approx([0.45, 0.15])
    solved = plan(column(9, 1), HALVES, torch.tensor([0.6]), 0.5, tolerance=0)
    assert solved.flatten().tolist() == pytest.approx([0.5, 0.1])
    flat = plan(torch.zeros(2, 2), HALVES, torch.tensor([0.2, 0.6]), 0.5)
    torch.testing.assert_close(flat, torch.tensor([[0.1, 0.3], [0.1, 0.3]]))


def test_each_iteration_and_when_to_stop() -> None:
    """u = min(a / K v, 1) and v = b / Kᵀ u, from v = 1, until |Δv| < tolerance; rows (0.5, 0.5), K = (9, 1), b = 0.6.

    v = 1
    for _ in range(4):
        u = np.minimum(0.5 / (np.array([9, 1]) * v), 1); v = 0.6 / (9 * u[0] + u[1])
        print(u, v, 9 * u[0] * v)       # v 0.6, 0.36, 0.251163, 0.200619; T 0.3, 0.3, 0.348837, 0.399381
    """

    def first_row(**how: float) -> float:
        return plan(column(9, 1), HALVES, torch.tensor([0.6]), 0.5, **how)[0].item()  # type: ignore[arg-type]

    by_count = [first_row(iterations=n, tolerance=0) for n in (1, 2, 3, 4)]
    assert by_count == pytest.approx([0.3, 0.3, 0.348837, 0.399381], abs=2e-6)
    assert first_row(tolerance=0.41) == by_count[0]  # |0.6 − 1|
    assert first_row(tolerance=0.11) == by_count[2]  # |0.2512 − 0.36|
    assert first_row(tolerance=0.10) == by_count[3]


def test_the_mean_over_columns_stops() -> None:
    """K = (9, 1) in both columns, b twice as large in the second: Δv is (δ, 2δ), and its mean 1.5 δ.

    K, b, v = np.array([[9, 9], [1, 1]]), np.array([0.2, 0.4]), np.ones(2)
    for _ in range(4):
        u = np.minimum(0.5 / (K @ v), 1); new = b / (K.T @ u); print(np.abs(new - v)); v = new
    # (0.6, 0.2), (0.16, 0.32), (0.096, 0.192), (0.0513, 0.1026): means 0.4, 0.24, 0.144, 0.0769
    """
    cost, b = column(9, 1).expand(2, 2), torch.tensor([0.2, 0.4])
    third, fourth = (plan(cost, HALVES, b, 0.5, iterations=n, tolerance=0) for n in (3, 4))
    assert not torch.equal(third, fourth)
    assert torch.equal(plan(cost, HALVES, b, 0.5, tolerance=0.145), third)
    assert torch.equal(plan(cost, HALVES, b, 0.5, tolerance=0.143), fourth)


def released(cost: Tensor, rows: Tensor, columns: Tensor, eps: float, iterations: int) -> Tensor:
    """So many iterations from v = 1, as in FedOTP's code, before anything can stop them."""
    K = (-cost / eps).exp()
    v = torch.ones_like(cost[..., 0, :])
    for _ in range(iterations):
        u = (rows / torch.einsum("...mn,...n->...m", K, v)).clamp_max(1)
        v = columns / torch.einsum("...mn,...m->...n", K, u)
    return u[..., None] * K * v[..., None, :]


@pytest.mark.parametrize("iterations", [1, 2, 3, 5, 25, 45])
@pytest.mark.parametrize("eps", [0.1, 0.5, 2.0])
def test_few_iterations_are_the_released_ones(iterations: int, eps: float) -> None:
    """Where a row's kernel sums up to more than its mass, u starts below 1 and may rise again, over spells too; from
    u = 1, as one could start as well, the first plans are others."""
    cost, a, b = (t.double() for t in problem(7, 40))
    theirs = released(cost, a, b, eps, iterations)
    torch.testing.assert_close(plan(cost, a, b, eps, iterations, 0.0), theirs, atol=1e-12, rtol=1e-9)
    if eps > 0.1 and iterations < 4:
        u_is_1 = b * (-cost / eps).softmax(-2)
        assert (released(cost, a, b, eps, 1) - u_is_1).abs().amax() > 1e-3


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("eps", [0.5, 0.1, 0.05])
def test_equal_to_pot(seed: int, eps: float) -> None:
    """Where columns get all the mass that moves, the partial problem of POT is ours."""
    ot = importlib.import_module("ot")
    cost, a, b = (t.double() for t in problem(seed, M=5 + 2 * seed, N=1 + seed % 4))
    mass = float(b.sum())
    theirs = ot.partial.entropic_partial_wasserstein(
        a.numpy(), b.numpy(), cost.numpy(), eps, m=mass, numItermax=1000, stopThr=1e-15
    )
    torch.testing.assert_close(plan(cost, a, b, eps, 1000, 0.0), torch.from_numpy(theirs), atol=1e-10, rtol=1e-7)


@pytest.mark.parametrize(("M", "N", "eps"), [(1, 1, 0.1), (2, 3, 1.0), (16, 1, 0.1), (196, 2, 0.1), (11, 5, 0.2)])
def test_solved(M: int, N: int, eps: float) -> None:
    """Columns are full, rows give at most what they have; T is u K v, and u < 1 only in rows that gave all."""
    cost, a, b = (t.double() for t in problem(M, 50, M=M, N=N))
    T = plan(cost, a, b, eps, 1000, 0.0)
    torch.testing.assert_close(T.sum(1), b.expand(50, N))
    given = T.sum(2)
    assert (given <= a * (1 + 1e-6)).all()
    log_uv = T.log() + cost / eps
    log_u = log_uv - log_uv.amax(1, keepdim=True)  # some row has something left, and u = 1
    torch.testing.assert_close(log_u, log_u[:, :, :1].expand_as(log_u), atol=1e-6, rtol=0)
    spare = log_u[given < a * (1 - 1e-6)]
    assert len(spare) >= 50
    torch.testing.assert_close(spare, torch.zeros_like(spare), atol=1e-6, rtol=0)


@pytest.mark.parametrize("eps", [0.1, 0.01, 0.001])
def test_order_is_nothing(eps: float) -> None:
    """Permuted patches, prompts and problems give the permuted plans."""
    cost, a, b = problem(3, 4)
    rows, columns, problems = torch.randperm(9), torch.tensor([2, 0, 1]), torch.tensor([3, 1, 0, 2])
    there = plan(cost, a, b, eps)[problems][:, rows][:, :, columns]
    torch.testing.assert_close(plan(cost[problems][:, rows][:, :, columns], a[rows], b[columns], eps), there)


@pytest.mark.parametrize("eps", [0.1, 0.01])
@pytest.mark.parametrize(("M", "N"), [(16, 2), (37, 3)])
def test_a_problem_does_not_mind_those_beside_it(M: int, N: int, eps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: alone, in a crowd, in pieces."""
    cost, a, b = (t.double() for t in problem(5, 3, 41, M=M, N=N))
    cost[0, :20] *= 0.01  # soon solved
    whole = plan(cost, a, b, eps, 70)
    assert whole.shape == cost.shape
    for i, j in ((0, 0), (0, 40), (1, 7), (2, 39)):
        assert torch.equal(plan(cost[i, j], a, b, eps, 70), whole[i, j])
    assert torch.equal(plan(cost[:, 3:30], a, b, eps, 70), whole[:, 3:30])
    monkeypatch.setattr(optimal_transport, "HELD", 5 * M * N)
    assert torch.equal(plan(cost, a, b, eps, 70), whole)


@pytest.mark.parametrize("eps", [0.01, 0.001])
@pytest.mark.parametrize("N", [1, 2])
def test_sharp_plans_are_finite(eps: float, N: int) -> None:
    """Cosines over their whole range in single precision, and a single picture; columns still get what is theirs."""
    cost = 1 - torch.linspace(-1, 1, 16 * N).reshape(16, N)
    b = torch.full((N,), 0.8 / N)
    T = plan(cost, torch.full((16,), 1 / 16), b, eps)
    assert T.dtype == torch.float32
    assert T.isfinite().all()
    torch.testing.assert_close(T.sum(0), b)
    exact = plan(cost.double(), torch.full((16,), 1 / 16), b, eps)
    assert torch.equal(T, exact.float())  # single precision is not felt


@given(entries=st.lists(FINITE, min_size=8, max_size=8), eps=st.sampled_from([1.0, 0.1, 0.001]))
@settings(max_examples=40, deadline=None)
def test_any_cost_has_a_plan(entries: list[float], eps: float) -> None:
    T = plan(torch.tensor(entries).reshape(4, 2), torch.full((4,), 0.25), torch.tensor([0.4, 0.4]), eps)
    assert T.isfinite().all()
    torch.testing.assert_close(T.sum(0), torch.tensor([0.4, 0.4]))


def test_many_iterations_reach_far() -> None:
    """One column and a gap of 300 eps: u has to fall to e⁻³⁰⁰ · …, and a far larger one to what a double can't hold.

    Rows (½, ½), b = 0.6, K = (1, e^−g): T is (0.5, 0.1), with u = 5 e^−g; each iteration takes 6/5 off it at most.
    """
    for gap, iterations in ((300.0, 2000), (2000.0, 12000)):
        T = plan(torch.tensor([[0.0], [gap]]), HALVES, torch.tensor([0.6]), 1.0, iterations, 0.0)
        assert T.flatten().tolist() == pytest.approx([0.5, 0.1])
        few = plan(torch.tensor([[0.0], [gap]]), HALVES, torch.tensor([0.6]), 1.0, 100, 0.0)
        assert few.flatten().tolist() == pytest.approx([0.6, 0.0])


def test_a_row_of_next_to_nothing() -> None:
    """The best row by far has 1e-12: each iteration takes as much off its u. The other has to give all in the end."""
    rows = torch.tensor([1e-12, 1.0], dtype=torch.float64)
    cost = torch.tensor([[0.0], [1000.0]], dtype=torch.float64)
    for iterations, expected in ((30, [0.6, 0.0]), (100, [1e-12, 0.6])):
        T = plan(cost, rows, torch.tensor([0.6], dtype=torch.float64), 1.0, iterations, 0.0)
        assert T.flatten().tolist() == pytest.approx(expected)


def test_released_plans() -> None:
    """FedOTP's own 42 plans: an iteration more or less is what their common stop rule makes of them."""
    g = golden("fedotp_cot_eps0.1")
    eps = float(g["eps"])
    cost = -eps * g["kernel_bc_M_N"].log()
    b = torch.full((2,), float(g["top_percent"]) / 2)
    T = plan(cost, torch.full((16,), 1 / 16), b, eps, tolerance=float(g["thresh"]))
    torch.testing.assert_close(T, g["plan_bc_M_N"], atol=3e-6, rtol=0)
    close(100 * (T * (1 - cost)).sum((1, 2)).reshape(6, 7), g["logits_one_image_at_a_time"])


def test_no_gradient_passes() -> None:
    cost, a, b = problem(0)
    assert not plan(cost.requires_grad_(), a, b, 0.1).requires_grad


def test_more_than_there_is() -> None:
    with pytest.raises(ValueError, match=r"columns get 1.2 in all, more than the rows' 1"):
        plan(torch.zeros(2, 2), HALVES, torch.tensor([0.6, 0.6]), 0.1)
    balanced = plan(column(9, 1), HALVES, torch.tensor([1.0]), 0.5, 1000)  # all of it moves
    assert balanced.flatten().tolist() == pytest.approx([0.5, 0.5], abs=1e-2)
    assert math.isclose(balanced.sum().item(), 1, rel_tol=1e-6)
