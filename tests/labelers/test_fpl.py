"""FPL's leaderboards, by hand and against a plain reading of the rule."""

from __future__ import annotations

import pytest
import torch
from crowd import Crowd, labels, own_model, pairs
from torch import Tensor

from fedtailor.labelers.fpl import FPL, leaderboards
from fedtailor.runs.execute import train
from fedtailor.simulation.engine import make_engine
from world import world

RANDOM = (2 * torch.randn(200, 5, generator=torch.Generator().manual_seed(2))).softmax(1)


def test_a_better_picture_replaces_and_a_refused_one_tries_its_next_class() -> None:
    """One place a class: 0 leads class 0, 1 throws it out for good, 2 is refused there and takes its next class."""
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.8, 0.1, 0.1], [0.6, 0.3, 0.1]])
    assert pairs(*leaderboards(probs, 1)) == {(1, 0), (2, 1)}


def test_as_released_a_refused_picture_is_stored_on_every_board_that_takes_it() -> None:
    """But one that its own class takes is stored there alone."""
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.8, 0.1, 0.1], [0.6, 0.3, 0.1]])
    assert pairs(*leaderboards(probs, 1, repeated=True)) == {(1, 0), (2, 1), (2, 2)}


def test_as_released_a_board_is_in_order_only_from_its_first_replacement_on() -> None:
    """Class 0 holds .5 and .9, in this order. As released, .7 is held against .9 and refused; .95 then puts the board
    in order, and .92 is taken."""
    top = torch.tensor([0.5, 0.9, 0.7, 0.95, 0.92])
    probs = torch.stack([top, 1 - top], dim=1)
    assert pairs(*leaderboards(probs[:3], 2)) == {(1, 0), (2, 0)}
    assert pairs(*leaderboards(probs[:3], 2, repeated=True)) == {(0, 0), (1, 0), (2, 1)}
    assert pairs(*leaderboards(probs, 2, repeated=True)) == {(3, 0), (4, 0), (2, 1)}


def test_of_equals_the_earlier_stays() -> None:
    probs = torch.tensor([[0.9, 0.1]] * 4)
    assert pairs(*leaderboards(probs, 1)) == {(0, 0), (1, 1)}
    # .95 throws out the later of two equals.
    probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.95, 0.05]])
    assert {i for i, c in pairs(*leaderboards(probs, 2)) if c == 0} == {0, 2}


def plain_reading(probs: Tensor, k: int, repeated: bool) -> set[tuple[int, int]]:
    """Picture by picture, class by class in descending order."""
    boards: list[list[tuple[float, int]]] = [[] for _ in probs[0]]
    for i, row in enumerate(probs.tolist()):
        for place, c in enumerate(sorted(range(len(row)), key=lambda c: -row[c])):
            scores = [p for p, _ in boards[c]]
            if len(scores) == k:
                if row[c] <= (scores[-1] if repeated else min(scores)):
                    continue
                boards[c] = sorted([*boards[c], (row[c], i)], reverse=True)[:k]
            else:
                boards[c].append((row[c], i))
            if place == 0 or not repeated:
                break
    return {(i, c) for c, board in enumerate(boards) for _, i in board}


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("k", [1, 3, 16, 60])
def test_leaderboards_are_the_plain_reading(k: int, repeated: bool) -> None:
    assert pairs(*leaderboards(RANDOM, k, repeated)) == plain_reading(RANDOM, k, repeated)


def test_every_picture_once_unless_repeated() -> None:
    index, y = leaderboards(RANDOM, 16)
    assert y.bincount(minlength=5).tolist() == [16] * 5
    assert len(index.unique()) == len(index)
    index, _ = leaderboards(RANDOM, 40, repeated=True)
    assert len(index.unique()) < len(index)


@pytest.mark.parametrize("repeated", [False, True])
def test_a_clients_labels(repeated: bool) -> None:
    kept = Crowd([RANDOM.log(), RANDOM[:0].log(), RANDOM[:1].log()]).label(FPL(k=40, repeated=repeated))
    assert labels(kept[0]) == plain_reading(RANDOM, 40, repeated)
    assert labels(kept[1]) == set()
    assert labels(kept[2]) == {(0, int(RANDOM[0].argmax()))}


def test_later_labels_are_the_own_models() -> None:
    (kept,) = Crowd([RANDOM.log()]).label(FPL(refresh=2, k=3), t=2).values()
    assert labels(kept) == plain_reading(own_model(RANDOM.log()).softmax(1), 3, repeated=False)


def test_a_federation() -> None:
    experiment = world("fedavg", labels="fpl", rounds=2, **{"labels.k": 2})
    assert len(list(train(experiment))) == 2
    engine = make_engine(experiment)
    assert experiment.job.labeler is not None
    experiment.job.labeler.label(experiment.job.first_server(), range(4), engine)
    for k, data in experiment.client_data.items():
        (view,) = data.views()
        probs = experiment.job.model.zero_shot_logits(view.x).softmax(1)
        assert labels(engine.clients[k].memory) == plain_reading(probs, 2, repeated=False)
