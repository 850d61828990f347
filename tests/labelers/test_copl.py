"""CoPL: its equations, the authors' numbers, and a federation that is labelled by it."""

from __future__ import annotations

from dataclasses import replace

import torch
from crowd import Crowd, labels, own_model, pairs
from torch import Tensor

from fedtailor.core.losses import entropy
from fedtailor.core.types import Params
from fedtailor.data.dataset import Split
from fedtailor.labelers.copl import CoPL, adapted, claims, filtered, levelled, quotas, select, votes
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from golden_numbers import golden
from world import world

THEIRS = golden("fedcopl_allocation_k4")
CLIENTS = range(4)
LOGITS = [THEIRS[f"client{k}.logits"] for k in CLIENTS]
TOTAL = int(THEIRS["n_train_total"])


def chosen_by_them(k: int) -> set[tuple[int, int]]:
    return pairs(THEIRS[f"client{k}.selected_local_index"], THEIRS[f"client{k}.selected_label"])


# A client of five pictures and three classes. Top probabilities: .6, .9, .5, .8, .6 with median .6.
# Entropies by np.round([-(p * np.log(p)).sum() for p in FIVE], 3): .898, .394, .943, .639, .95 with median .898.
FIVE = torch.tensor(
    [[0.6, 0.3, 0.1], [0.05, 0.9, 0.05], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8], [0.2, 0.6, 0.2]]
)  # fmt: skip


def test_medians_are_the_authors() -> None:
    for k, logits in enumerate(LOGITS):
        probs = logits.softmax(1)
        assert probs.amax(1).quantile(0.5).item() == THEIRS[f"client{k}.median_conf"].item()
        assert abs(entropy(probs).quantile(0.5).item() - THEIRS[f"client{k}.median_entropy"].item()) < 1e-6


def test_votes_and_quotas_are_the_authors() -> None:
    ours = torch.stack([votes(logits.softmax(1)) for logits in LOGITS])
    assert ours.dtype == torch.int64
    assert torch.equal(ours.float(), THEIRS["counts_u"])
    assert torch.equal(quotas(ours, TOTAL, 0), THEIRS["quota"].long())


def test_selection_is_the_authors() -> None:
    for k, logits in enumerate(LOGITS):
        top, klass = claims(logits.softmax(1), "argmax")
        assert pairs(*select(top, klass, THEIRS[f"client{k}.quota"].long())) == chosen_by_them(k)


def test_a_whole_labeling_is_the_authors() -> None:
    kept = Crowd(LOGITS).label(CoPL())
    assert [labels(kept[k]) for k in CLIENTS] == [chosen_by_them(k) for k in CLIENTS]


def test_estimated_set() -> None:
    """Eq. 2: surer than the median and of less entropy than the median, both strictly; so pictures 1 and 3."""
    assert filtered(FIVE).tolist() == [False, True, False, True, False]
    assert filtered(FIVE, entropy=False).tolist() == [False, True, False, True, False]
    assert filtered(FIVE, confidence=False).tolist() == [False, True, False, True, False]
    assert votes(FIVE).tolist() == [0, 1, 1]


def test_each_filter_can_be_left_out() -> None:
    """Table 5. Top probabilities .65 .6 .5 .9, median .625; entropies .89 .67 1.04 .33, median .78."""
    odd = torch.tensor([[0.65, 0.175, 0.175], [0.6, 0.4, 0.0], [0.5, 0.25, 0.25], [0.9, 0.1, 0.0]])
    assert filtered(odd).tolist() == [False, False, False, True]
    assert filtered(odd, entropy=False).tolist() == [True, False, False, True]
    assert filtered(odd, confidence=False).tolist() == [False, True, False, True]
    assert filtered(odd, confidence=False, entropy=False).all()
    assert votes(odd, confidence=False).tolist() == [2, 0, 0]


def test_allocation() -> None:
    """Eq. 3: M = ⌈(6 + 3 + 2) / 3⌉ = 4; class 0 ⌈4/6 · 4⌉ and ⌈2/6 · 4⌉, class 1 0 and ⌈3/3 · 4⌉, class 2 twice 2."""
    u = torch.tensor([[4, 0, 1], [2, 3, 1]])
    assert quotas(u, 100, 0).tolist() == [[3, 0, 2], [2, 4, 2]]


def test_quota_arithmetic_is_in_single_precision() -> None:
    """M = 50 / 2 = 25, and 3/5 · 25 is 15; but (3/5 rounded to float32) · 25 is more, and 16 is what is taken."""
    assert quotas(torch.tensor([[3, 45], [2, 0]]), 100, 0).tolist() == [[16, 25], [10, 0]]


def test_a_class_without_votes_gets_more_with_every_labeling() -> None:
    """⌈N / C / 4 · (r + 1) / K⌉ = ⌈215 / 2 / 4 · (r + 1) / 3⌉ = ⌈8.96 (r + 1)⌉."""
    u = torch.tensor([[1, 0], [0, 0], [2, 0]])
    assert [quotas(u, 215, r)[:, 1].tolist() for r in range(3)] == [[9] * 3, [18] * 3, [27] * 3]
    assert quotas(u, 215, 2)[:, 0].tolist() == [1, 0, 2]


def test_selection() -> None:
    """The surest of each class, the earliest of equals; all if there are too few; none for no quota, however sure."""
    top = torch.tensor([0.5, 0.7, 0.7, 0.7, 1.0, 0.4])
    klass = torch.tensor([1, 1, 1, 1, 0, 2])
    assert pairs(*select(top, klass, torch.tensor([0, 2, 9]))) == {(1, 1), (2, 1), (5, 2)}


def test_pool_of_all_pictures() -> None:
    """Each class takes its two most probable pictures, whatever they are predicted as: picture 0 serves two classes."""
    top, klass = claims(FIVE, "all")
    index, y = select(top, klass, torch.tensor([1, 2, 0]))
    assert pairs(index % len(FIVE), y) == {(0, 0), (1, 1), (4, 1)}
    kept = Crowd([FIVE.log()]).label(CoPL(pool="all", entropy=False, confidence=False))
    # Votes 2, 2, 1; M = 2: two of each class.
    assert labels(kept[0]) == {(0, 0), (2, 0), (1, 1), (4, 1), (3, 2), (4, 2)}


def test_without_filters_and_allocation_every_picture_is_what_it_is_predicted() -> None:
    kept = Crowd(LOGITS).label(CoPL(confidence=False, entropy=False, allocation=False))
    for k, logits in enumerate(LOGITS):
        assert labels(kept[k]) == set(enumerate(logits.argmax(1).tolist()))


def test_without_allocation_a_quota_is_what_was_voted() -> None:
    kept = Crowd(LOGITS).label(CoPL(allocation=False))
    for k in CLIENTS:
        assert torch.equal(kept[k]["labels.y"].bincount(minlength=7).float(), THEIRS[f"client{k}.counts_u"])


def test_a_class_of_unsure_pictures_is_filled_up() -> None:
    """Four sure pictures of a class vote, four unsure ones of the other don't: ⌈8 / 2 / 4 · (r + 1) / 1⌉ of them."""
    table = torch.tensor([[9.0, 0.0]] * 4 + [[0.0, 0.1]] * 4)
    for t, unsure in ((0, {4}), (5, {4, 5}), (10, {4, 5, 6})):
        (kept,) = Crowd([table]).label(CoPL(), t).values()
        assert {i for i, _ in labels(kept)} - {0, 1, 2, 3} == unsure
    (kept,) = Crowd([table]).label(CoPL(refresh=0)).values()
    assert (4, 1) in labels(kept)


def test_a_later_labeling_is_by_the_clients_own_model() -> None:
    """In round 10 it is the third one, and the class that nobody voted for is another."""
    kept = Crowd(LOGITS).label(CoPL(), t=10)
    probs = [own_model(logits).softmax(1) for logits in LOGITS]
    quota = quotas(torch.stack([votes(p) for p in probs]), TOTAL, 2)
    assert quota[0, 0] == 6  # ⌈1.92 · 3⌉
    for k in CLIENTS:
        assert labels(kept[k]) == pairs(*select(*claims(probs[k], "argmax"), quota[k]))
        assert labels(kept[k]) != chosen_by_them(k)


def test_relabeling_forgets_the_labels_before() -> None:
    crowd = Crowd(LOGITS)
    crowd.label(CoPL(), t=0)
    again = crowd.label(CoPL(), t=5)
    assert [labels(again[k]) for k in CLIENTS] == [labels(v) for v in Crowd(LOGITS).label(CoPL(), t=5).values()]


def test_only_counts_go_up_and_nothing_but_labels_stays() -> None:
    crowd = Crowd(LOGITS)
    kept = crowd.label(CoPL())
    votes_, chosen = crowd.sent
    assert all({n: v.numel() for n, v in up.items()} == {"votes": 7, "size": 1} for up in votes_.values())
    assert all(up == {} for up in chosen.values())
    left = {name for k in CLIENTS for name, value in kept[k].items() if value.numel()}
    assert left == {"labels.index", "labels.y"}


def test_clients_with_no_or_one_picture() -> None:
    """One picture is not surer than itself: no vote. It is taken where nobody votes for its class."""
    for pool in ("argmax", "all"):
        tables: list[Tensor] = [FIVE.log(), torch.empty(0, 3), torch.tensor([[9.0, 0.0, 0.0]])]
        kept = Crowd(tables).label(CoPL(pool=pool))
        assert labels(kept[1]) == set()
        assert (0, 0) in labels(kept[2])
        assert all((kept[k]["labels.index"] < len(tables[k])).all() for k in range(3))
    nobody = Crowd([torch.empty(0, 3)] * 2).label(CoPL())
    assert labels(nobody[0]) == set()


def test_a_federation_is_labelled_every_two_rounds() -> None:
    experiment = world("fedavg", labels="copl", rounds=3, **{"labels.refresh": 2})
    engine = make_engine(experiment)
    server, seen = experiment.job.first_server(), []
    for _ in range(3):
        server, _ = run_round(experiment, server, engine)
        seen.append([labels(engine.clients[k].memory) for k in range(4)])
    assert seen[0] == seen[1] != seen[2]
    assert all(any(client) for client in seen[0])
    sizes = [len(data) for data in experiment.client_data.values()]
    assert all(i < n for client, n in zip(seen[2], sizes, strict=True) for i, _ in client)


def test_a_federation_is_first_labelled_by_zero_shot_clip() -> None:
    experiment = world("fedavg", labels="copl", **{"labels.confidence": False, "labels.entropy": False})
    engine = make_engine(experiment)
    labeler = experiment.job.labeler
    assert labeler is not None
    labeler.label(experiment.job.first_server(), range(4), engine)
    for k, data in experiment.client_data.items():
        (view,) = data.views()
        predicted = experiment.job.model.zero_shot_logits(view.x).argmax(1)
        kept = engine.clients[k].memory
        assert len(kept["labels.y"])
        assert torch.equal(kept["labels.y"], predicted[kept["labels.index"]])


def test_true_labels_play_no_part() -> None:
    """With the true training labels reversed, a run gives the same bits."""
    experiment = world("fedavg", labels="copl", rounds=2)
    data = experiment.federation.dataset
    assert data.train.labels is not None
    other = replace(data, train=Split(data.train.images, data.train.labels[::-1].copy()))
    changed = replace(experiment, federation=replace(experiment.federation, dataset=other))
    assert changed.federation.dataset.train.labels is not data.train.labels

    def end(experiment: Experiment) -> Params:
        server, engine = experiment.job.first_server(), make_engine(experiment)
        while server.round < experiment.rounds:
            server, _ = run_round(experiment, server, engine)
        return server.params

    one, two = end(experiment), end(changed)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], value) for name, value in experiment.job.start.items())


# --- prior=estimated: not in the paper --------------------------------------------------------------------------------

TWO = torch.tensor([[0.8, 0.2], [0.6, 0.4]])


def test_frequencies_of_a_client_by_hand() -> None:
    """A step of EM on two pictures, where CLIP's means over the federation are (½, ½).

    w = TWO.mean(0)                                            # 0.7, 0.3
    q = TWO * w / 0.5; q / q.sum(1, keepdims=True)             # 1.12 : 0.12 and 0.84 : 0.24
    w = (TWO.sum(0) + 1 * 2 * 0.5) / (2 + 1 * 2)               # 0.6, 0.4: with one picture more a class, as elsewhere
    q = TWO * w / 0.5                                          # 0.96 : 0.16 and 0.72 : 0.32
    """
    half = torch.tensor([0.5, 0.5])
    found = [adapted(TWO, half, worth, steps=1)[:, 0] for worth in (0.0, 1.0)]
    torch.testing.assert_close(found[0], torch.tensor([1.12 / 1.24, 0.84 / 1.08]))
    torch.testing.assert_close(found[1], torch.tensor([0.96 / 1.12, 0.72 / 1.04]))


def test_a_second_step_starts_from_the_first() -> None:
    """w = the mean of the first step's own, (0.8405, 0.1595); again p · w / ½: 0.8 · 0.8405 : 0.2 · 0.1595 = 0.9547."""
    found = adapted(TWO, torch.tensor([0.5, 0.5]), 0.0, steps=2)
    first = (1.12 / 1.24 + 0.84 / 1.08) / 2
    assert abs(found[0, 0].item() - 0.8 * first / (0.8 * first + 0.2 * (1 - first))) < 1e-6


def test_what_clip_favours_at_everyone_is_left_alone() -> None:
    """A client that is as the federation is keeps CLIP's probabilities, however uneven these are."""
    torch.testing.assert_close(adapted(TWO, TWO.mean(0)), TWO)
    assert (adapted(TWO, torch.tensor([0.9, 0.1]))[:, 0] < TWO[:, 0]).all()  # it has less of class 0 than others
    never = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert torch.equal(adapted(never, torch.tensor([1.0, 0.0])), never)  # a class that no picture resembles


def test_levels_by_hand() -> None:
    """9 for classes of 10, 2 and 4: thirds would be 3, the second has 2, the others share 7. 20 are more than there
    are; 3 for three classes of more than one each are one each, as in the paper."""
    counts = torch.tensor([10.0, 2.0, 4.0])
    assert levelled(counts, 9).tolist() == [3.5, 2, 3.5]
    assert levelled(counts, 15).tolist() == [9, 2, 4]
    assert levelled(counts, 20).tolist() == [10, 2, 4]
    assert levelled(counts, 3).tolist() == [1, 1, 1]


def test_quotas_by_estimated_counts() -> None:
    """11 votes: M = 4 for each, but of class 2 there are 1.5, so that it has ⌈1.5⌉ = 2 and the others ⌈9.5 / 2⌉ = 5."""
    u = torch.tensor([[4, 0, 1], [2, 3, 1]])
    assert quotas(u, 100, 0, torch.tensor([90.0, 8.5, 1.5])).tolist() == [[4, 0, 1], [2, 5, 1]]
    plenty = torch.tensor([40.0, 30.0, 30.0])
    assert torch.equal(quotas(u, 100, 0, plenty), quotas(u, 100, 0))  # where there is enough, the paper's


def test_skewed_clients_help_each_other() -> None:
    """A picture of (0.45, 0.55) is of class 0 at a client whose other pictures are, and of class 1 elsewhere. With the
    paper's prior both are of class 1."""
    near0, near1, between = [3.0, 0.0], [0.0, 3.0], [0.0, 0.2]
    tables = [torch.tensor([near0] * 30 + [between]), torch.tensor([near1] * 30 + [between])]
    kinds = {}
    for prior in ("uniform", "estimated"):
        options = {"allocation": False, "confidence": False, "entropy": False}
        kept = Crowd(tables).label(CoPL(prior=prior, **options))  # type: ignore[arg-type]
        kinds[prior] = [dict(labels(kept[k]))[30] for k in range(2)]
    assert kinds == {"uniform": [1, 1], "estimated": [0, 1]}


def test_what_goes_up_for_an_estimate() -> None:
    """Once the sums of zero-shot CLIP's probabilities; in each labeling the counts besides the votes. Later labelings
    are by the client's own model, which knows its client, and correct nothing."""
    crowd = Crowd(LOGITS)
    crowd.label(CoPL(prior="estimated"))
    assert [{n: v.numel() for n, v in up[0].items()} for up in crowd.sent] == [
        {"sums": 7}, {"votes": 7, "size": 1, "counts": 7}, {}
    ]  # fmt: skip
    for k, logits in enumerate(LOGITS):
        assert abs(crowd.sent[1][k]["counts"].sum().item() - len(logits)) < 1e-3
    later = Crowd(LOGITS)
    later.label(CoPL(prior="estimated"), t=5)
    assert [set(up[0]) for up in later.sent] == [{"votes", "size", "counts"}, set()]
    own = own_model(LOGITS[0]).softmax(1)
    assert torch.equal(later.sent[0][0]["votes"], votes(own))
    torch.testing.assert_close(later.sent[0][0]["counts"], own.sum(0))


def test_an_estimate_of_nothing() -> None:
    kept = Crowd([torch.empty(0, 3), torch.empty(0, 3)]).label(CoPL(prior="estimated"))
    assert labels(kept[0]) == set()
    kept = Crowd([FIVE.log(), torch.empty(0, 3)]).label(CoPL(prior="estimated"))
    assert labels(kept[0])
    assert labels(kept[1]) == set()
