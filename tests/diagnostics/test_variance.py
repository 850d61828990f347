"""CAPT's Appendix F on measured gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from seen_rounds import seen_round

from fedtailor.core.losses import task_loss
from fedtailor.evaluation.diagnostics import gradients
from fedtailor.evaluation.diagnostics.gradients import decomposed, sample_gradients, variance
from world import world

Pairs = list[tuple[torch.Tensor, int]]


def client(*pairs: tuple[tuple[float, ...], int]) -> Pairs:
    return [(torch.tensor(g, dtype=torch.float64), c) for g, c in pairs]


def test_by_hand() -> None:
    """Client 1 has (1, 0) and (3, 0) of class 0, client 2 has (0, 2) of class 1.

    ∇F_1 = (2, 0), ∇F_2 = (0, 2), ∇F = (1, 1); σ_1² = 1, σ_2² = 0; ‖∇F_k − ∇F‖² = 2 and 2
    total: ((1 + 5)/2 + 2)/2 = 2.5; π = (1, 0) and (0, 1), Δ² = 1/2; class gradients (2, 0), (0, 2), G = 2
    """
    found = decomposed([client(((1, 0), 0), ((3, 0), 0)), client(((0, 2), 1))], C=5)
    assert found == {
        "sigma2": 0.5, "delta2": 2, "total": 2.5, "gap": 0, "delta2_classes": 2, "delta_pi2": 0.5, "G": 2,
        "bound": 2, "bound_C": 10, "below": True, "below_C": True, "clients": 2, "samples": 3,
    }  # fmt: skip


def test_the_first_bound_fails_where_classes_pull_against_each_other() -> None:
    """(1, 0) and (−1, 0): δ² = 1, Δ² = 1/2, G = 1. Cross terms are no longer nothing; C = 2 makes up for them."""
    found = decomposed([client(((1, 0), 0)), client(((-1, 0), 1))], C=2)
    assert found is not None
    assert (found["delta2"], found["bound"], found["bound_C"]) == (1, 0.5, 1)
    assert (found["below"], found["below_C"]) == (False, True)


def test_both_fail_where_a_class_differs_between_clients() -> None:
    """The same class with other gradients: proportions are equal, so that no bound by them leaves any room."""
    found = decomposed([client(((1, 0), 0)), client(((-1, 0), 0))], C=2)
    assert found is not None
    assert (found["delta2"], found["delta2_classes"], found["bound_C"]) == (1, 0, 0)
    assert (found["below"], found["below_C"]) == (False, False)


def test_clients_count_the_same_whatever_their_size() -> None:
    """π is the mean of π^k, as ∇F is of ∇F_k: (2/3, 1/3), (0, 1) → (1/3, 2/3), Δ² = (2/9 + 2/9)/2."""
    found = decomposed([client(((1,), 0), ((1,), 0), ((1,), 1)), client(((1,), 1)), []], C=2)
    assert found is not None
    assert found["delta_pi2"] == pytest.approx(2 / 9)
    assert (found["clients"], found["samples"]) == (2, 4)


def test_nobody() -> None:
    assert decomposed([], C=2) is None
    assert decomposed([[], []], C=2) is None


@pytest.mark.parametrize("seed", range(5))
def test_lemma_1_and_2_on_random_gradients(seed: int) -> None:
    """Within + between = total, each computed outright; with each class's gradient the same, C·G²·Δ² always holds."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, 6)
    drawn = [(rng.normal(size=(n, 7)) + rng.normal(size=7), rng.integers(0, 4, n)) for n in sizes]
    found = decomposed([list(zip(torch.from_numpy(g), c.tolist(), strict=True)) for g, c in drawn], C=4)
    assert found is not None
    means = np.stack([g.mean(0) for g, _ in drawn])
    assert found["total"] == pytest.approx(np.mean([np.square(g - means.mean(0)).sum(1).mean() for g, _ in drawn]))
    assert found["sigma2"] == pytest.approx(np.mean([np.square(g - g.mean(0)).sum(1).mean() for g, _ in drawn]))
    assert found["delta2"] == pytest.approx(np.square(means - means.mean(0)).sum(1).mean())
    assert found["gap"] < 1e-12
    everything, classes = np.concatenate([g for g, _ in drawn]), np.concatenate([c for _, c in drawn])
    by_class = np.stack([everything[classes == c].mean(0) for c in range(4)])
    assert found["G"] == pytest.approx(np.linalg.norm(by_class, axis=1).max(), rel=1e-5)
    pi = np.stack([np.bincount(c, minlength=4) / len(c) for _, c in drawn])
    assert found["delta_pi2"] == pytest.approx(np.square(pi - pi.mean(0)).sum(1).mean())
    explained = np.square((pi - pi.mean(0)) @ by_class).sum(1).mean()
    assert found["delta2_classes"] == pytest.approx(explained, rel=1e-5)
    assert found["delta2_classes"] <= found["bound_C"]


@pytest.mark.parametrize("tuner", ["text_prompt", "coupled+class_prompt"])
def test_a_round(tuner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples' gradients average to the batch's, and the two variances to the whole."""
    monkeypatch.setattr(gradients, "SAMPLES", 5)
    seen = seen_round(world("fedavg", tuner), number=2)
    k = seen.cohort[0]
    pairs, batch = list(sample_gradients(seen, k)), seen.batch(k, 5, "variance")
    assert batch is not None
    assert [c for _, c in pairs] == batch.y.tolist()
    theta = {n: v.clone().requires_grad_() for n, v in seen.before.params.items()}
    loss = task_loss(seen.job.model.logits(theta, batch.x), batch)
    whole = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(theta.values()))])
    torch.testing.assert_close(torch.stack([g for g, _ in pairs]).mean(0).float(), whole, atol=1e-4, rtol=1e-3)
    found = variance(seen)
    assert found is not None
    assert found["samples"] == 5 * len(seen.cohort)
    assert 0 < found["delta2"] < found["total"]
    assert found["gap"] < 1e-4  # Lemma 1


def test_candidate_sets() -> None:
    """A labeler that leaves several classes open has a loss of its own, sample by sample too."""
    seen = seen_round(world("fedavg", "text_prompt", labels="cpl"))
    k = next(k for k in seen.cohort if seen.batch(k, 2, "variance") is not None)
    batch = seen.batch(k, gradients.SAMPLES, "variance")
    assert batch is not None
    assert batch.candidates is not None
    theta = {n: v.clone().requires_grad_() for n, v in seen.before.params.items()}
    loss = task_loss(seen.job.model.logits(theta, batch.x), batch)
    (whole,) = torch.autograd.grad(loss, [theta["text.ctx"]])
    mean = torch.stack([g for g, _ in sample_gradients(seen, k)]).mean(0)
    torch.testing.assert_close(mean.float(), whole.flatten(), atol=1e-4, rtol=1e-3)
