"""CPL: candidate sets, pools and loss, by hand and as the authors compute them."""

from __future__ import annotations

import pytest
import torch
from crowd import Crowd, labels, own_model, pairs
from torch import Tensor

from fedtailor.core.losses import candidate_loss
from fedtailor.labelers.cpl import CPL, candidates, inter, intra, pools, softened, threshold
from fedtailor.runs.execute import train
from fedtailor.simulation.engine import make_engine
from golden_numbers import close, close_gradient, golden
from world import world

THEIRS = golden("cpl_candidates")
each_case = pytest.mark.parametrize("case", ["a", "b", "c"])
each_pool = pytest.mark.parametrize("k", [2, 4])


def quantiles(case: str) -> tuple[float, float]:
    return THEIRS[f"{case}.conf_quantile"].item() / 100, THEIRS[f"{case}.beta"].item()


def probs_of(case: str) -> Tensor:
    return THEIRS[f"{case}.logits"].softmax(1)


@each_case
def test_candidates_are_the_authors(case: str) -> None:
    probs, (alpha, beta) = probs_of(case), quantiles(case)
    assert threshold(probs, alpha).item() == pytest.approx(THEIRS[f"{case}.alpha_threshold"].item(), abs=1e-7)
    assert torch.equal(intra(probs, threshold(probs, alpha)), THEIRS[f"{case}.intra_mask"])
    assert torch.equal(inter(probs, beta), THEIRS[f"{case}.inter_mask"])
    ours = candidates(probs, alpha, beta)
    assert torch.equal(ours, THEIRS[f"{case}.candidate_mask"])
    assert torch.equal(ours.any(1), THEIRS[f"{case}.row_kept"])
    close(softened(probs, ours), THEIRS[f"{case}.soft_labels"])


@each_case
@each_pool
def test_pools_are_the_authors(case: str, k: int) -> None:
    ours = pools(probs_of(case), THEIRS[f"{case}.candidate_mask"], k)
    assert pairs(*ours) == pairs(THEIRS[f"{case}.pool{k}.selected_index"], THEIRS[f"{case}.pool{k}.pool_class"])


@each_case
@each_pool
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_loss_is_the_authors(case: str, k: int, kind: str) -> None:
    chosen = THEIRS[f"{case}.pool{k}.selected_index"]
    weights = THEIRS[f"{case}.candidate_mask"].float() if kind == "hard" else THEIRS[f"{case}.soft_labels"]
    logits = THEIRS[f"{case}.logits"][chosen].clone().requires_grad_()
    loss = candidate_loss(logits, weights[chosen])
    close(loss, THEIRS[f"{case}.pool{k}.cc_loss_{kind}"])
    close_gradient(torch.autograd.grad(loss, logits)[0], THEIRS[f"{case}.pool{k}.cc_grad_{kind}"])


@each_case
@each_pool
def test_a_whole_labeling_is_the_authors(case: str, k: int) -> None:
    alpha, beta = quantiles(case)
    (kept,) = Crowd([THEIRS[f"{case}.logits"]]).label(CPL(alpha=alpha, beta=beta, k=k)).values()
    assert labels(kept) == pairs(THEIRS[f"{case}.pool{k}.selected_index"], THEIRS[f"{case}.pool{k}.pool_class"])
    mask = THEIRS[f"{case}.candidate_mask"].float()
    assert torch.equal(kept["labels.candidates"], mask[kept["labels.index"]])


# Top probabilities .5, .8, .6; the median of them is .6. In the classes' columns the medians are .3, .3, .1.
THREE = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.3, 0.1, 0.6]])


def test_intra_instance() -> None:
    """Classes in descending order until their sum exceeds .6: .5 + .3; .8; .6 + .3, as .6 does not exceed itself."""
    assert threshold(THREE, 0.5).item() == pytest.approx(0.6)
    assert intra(THREE, threshold(THREE, 0.5)).int().tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 1]]
    assert intra(THREE, torch.tensor(1.5)).all()
    assert intra(THREE, torch.tensor(0.0)).sum(1).tolist() == [1, 1, 1]


def test_inter_instance() -> None:
    """Pictures at or above a class's own median: .5 .3; .3 .8; .2 .6."""
    assert inter(THREE, 0.5).int().tolist() == [[1, 1, 1], [0, 1, 0], [1, 0, 1]]
    assert inter(THREE, 1.0).sum(0).tolist() == [1, 1, 1]


def test_candidates_are_in_both() -> None:
    assert candidates(THREE, 0.5, 0.5).int().tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 1]]
    assert candidates(THREE, 0.5, 1.0).int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    # Picture 0 is in nobody's top third but is not dropped; picture 3 has no class at all.
    four = torch.cat([THREE, torch.tensor([[0.4, 0.35, 0.25]])])
    assert candidates(four, 0.5, 1.0).any(1).tolist() == [True, True, True, False]


def test_what_is_all_but_impossible_is_no_candidate() -> None:
    """Where most pictures are certain, the sum never exceeds the threshold of 1."""
    certain = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.6, 0.4, 0.0]])
    assert candidates(certain, 0.75, 0.0).int().tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 0]]


def test_soft_weights() -> None:
    """.5 and .3 of .8; nothing where there is no candidate."""
    open_ = torch.tensor([[True, True, False], [False, True, False], [False, False, False]])
    expected = torch.tensor([[0.625, 0.375, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(softened(THREE, open_), expected)


def test_a_full_pool_sends_pictures_on() -> None:
    """One place a class. 0 asks class 0 first, 1 throws it out, it goes on to class 1 and throws 2 out, which has no
    other candidate; 3 has none at all."""
    probs = torch.tensor([[0.5, 0.4, 0.1], [0.9, 0.1, 0.0], [0.3, 0.35, 0.35], [0.4, 0.3, 0.3]])
    open_ = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]).bool()
    assert pairs(*pools(probs, open_, 1)) == {(1, 0), (0, 1)}
    assert pairs(*pools(probs, open_, 2)) == {(1, 0), (0, 0), (2, 1)}
    assert pairs(*pools(probs.flip(0), open_.flip(0), 1)) == {(2, 0), (3, 1)}  # in any order of the pictures


def test_beta_is_two_classes_by_default() -> None:
    """1 − 2/C, which is 5/7 of 7 classes and 0 of 2 or 1."""
    logits = THEIRS["a.logits"]
    for table, beta in ((logits, 5 / 7), (logits[:, :2], 0.0), (logits[:, :1], 0.0)):
        (ours,) = Crowd([table]).label(CPL()).values()
        (same,) = Crowd([table]).label(CPL(beta=beta)).values()
        (other,) = Crowd([table]).label(CPL(beta=0.9)).values()
        assert all(torch.equal(ours[name], same[name]) for name in ours)
        assert table.shape[1] == 1 or not torch.equal(ours["labels.candidates"], other["labels.candidates"])


def test_pools_grow_with_the_labelings() -> None:
    """max(k, ⌈i · step · n / C⌉) for the i-th labeling: 60 pictures, 10 classes and steps of a half give 0, 3, 6, 9;
    with all classes open every pool is full, until there are no more pictures."""
    logits = THEIRS["b.logits"]

    def sizes(t: int) -> list[int]:
        (kept,) = Crowd([logits]).label(CPL(alpha=1, beta=0, k=2, step=0.5, refresh=5), t).values()
        return kept["labels.y"].bincount(minlength=10).tolist()

    wide = [sizes(t) for t in (0, 5, 10)]
    assert [max(size) for size in wide] == [2, 3, 6]
    assert wide[0] == [2] * 10
    (kept,) = Crowd([logits]).label(CPL(alpha=1, beta=0, k=1, step=0.1, refresh=1), t=3).values()
    assert kept["labels.y"].bincount().max() == 2  # 3 · 0.1 · 60 / 10 = 1.8
    (kept,) = Crowd([logits[:50]]).label(CPL(alpha=1, beta=0, k=1, step=0.1, refresh=1), t=6).values()
    assert kept["labels.y"].bincount().max() == 3  # 6 · 0.1 · 50 / 10 = 3, though 6 · 0.1 is a little more than 0.6


def test_soft_at_first_and_hard_later_where_labels_are_refreshed() -> None:
    logits = THEIRS["a.logits"]

    def is_hard(labeler: CPL, t: int = 0) -> bool:
        (kept,) = Crowd([logits]).label(labeler, t).values()
        weights = kept["labels.candidates"]
        assert weights.dtype == torch.float32
        assert (weights > 0).sum(1).max() > 1
        if not bool(((weights == 0) | (weights == 1)).all()):
            torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)))
            return False
        return True

    assert is_hard(CPL())
    assert not is_hard(CPL(refresh=5))
    assert is_hard(CPL(refresh=5), t=5)
    assert is_hard(CPL(refresh=5, soft=False))


def test_later_labels_are_the_own_models() -> None:
    logits = THEIRS["a.logits"]
    (ours,) = Crowd([logits]).label(CPL(refresh=5, step=0), t=5).values()
    (theirs,) = Crowd([own_model(logits)]).label(CPL()).values()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_clients_with_no_or_one_picture() -> None:
    kept = Crowd([torch.empty(0, 3), THREE[:1].log()]).label(CPL())
    assert labels(kept[0]) == set()
    assert kept[0]["labels.candidates"].shape == (0, 3)
    assert labels(kept[1]) == {(0, 0)}
    assert kept[1]["labels.candidates"][0, 0] == 1


@pytest.mark.parametrize("refresh", [0, 2])
def test_a_federation(refresh: int) -> None:
    experiment = world("fedavg", labels="cpl", rounds=3, **{"labels.k": 2, "labels.refresh": refresh})
    assert len(list(train(experiment))) == 3
    engine = make_engine(experiment)
    assert experiment.job.labeler is not None
    experiment.job.labeler.label(experiment.job.first_server(), range(4), engine)
    for client in engine.clients.values():
        kept = client.memory
        assert len(kept["labels.y"])
        assert kept["labels.candidates"].gather(1, kept["labels.y"][:, None]).gt(0).all()
