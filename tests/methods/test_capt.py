"""CAPT: equal to the authors' code where that is released, equation by equation where it is not."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedtailor.algorithms.clustering import ClusterSettings
from fedtailor.algorithms.counts import class_rows, guessed_counts, macro_f1
from fedtailor.base.errors import UserError
from fedtailor.base.rng import number
from fedtailor.client.job import Task
from fedtailor.core.losses import log_prior
from fedtailor.core.method import weighted_mean
from fedtailor.core.types import OWN, Batch, Params, Pass, Reply, Server
from fedtailor.methods.capt import CAPT, masked
from fedtailor.methods.released.capt import ReleasedCAPT, raw_class_aware, raw_general
from fedtailor.privacy.base import Leaving, PrivacyStep
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import run_round
from golden_numbers import GoldenCase, close, close_gradient, golden
from tiny import RESNET
from torch_optimisers import torch_optimiser
from world import make_tuner, world

NAMES = {
    "general.ctx": "prompt_learner.general_ctx",
    "couple.0.weight": "coupling_function.weight",
    "couple.0.bias": "coupling_function.bias",
    "class.ctx": "prompt_learner.class_aware_ctx",
}
RELEASED = ReleasedCAPT()
TUNER = "coupled+class_prompt"


def golden_case() -> tuple[GoldenCase, Params, Params]:
    """The golden model, its parameters, and what the server sends: the class counts."""
    g = golden("capt_model_g1c3")
    case = GoldenCase(make_tuner(TUNER, {"coupled": {"length": 1}, "class_prompt": {"length": 3}}))
    return case, {ours: g[f"input.{theirs}"] for ours, theirs in NAMES.items()}, {"counts": g["input.cls_num_list"]}


@pytest.mark.parametrize(
    ("weights", "loss", "gradient", "lacking"),
    [
        ({"ge": 1, "lam": 0, "la": 0}, "loss_general", "grad_general", {"couple.0.weight"}),
        ({"ge": 0, "lam": 1, "la": 0}, "loss_class_aware", "grad_class_aware", {"couple.0.weight"}),
        ({"ge": 0, "lam": 0, "la": 1}, "loss_logit_adjusted_ce", "grad_la_ce", set()),
        ({"ge": 1, "lam": 1, "la": 1}, "loss_total", "grad_total", set()),
    ],
)
def test_released_losses_and_gradients(weights: dict[str, float], loss: str, gradient: str, lacking: set[str]) -> None:
    """Of every parameter but those that the golden file lacks; L_ge does not reach the class-aware rows at all."""
    g, (case, theta, inbox) = golden("capt_model_g1c3"), golden_case()
    method = RELEASED.model_copy(update=weights)
    leaves = {n: v.clone().requires_grad_() for n, v in theta.items()}
    close(method.loss(case.model, leaves, case.batch, inbox).detach(), g[loss])
    found = method.gradient(case.model, inbox)(leaves, case.batch)
    assert {ours for ours, theirs in NAMES.items() if f"{gradient}.{theirs}" not in g} == lacking
    for ours in NAMES.keys() - lacking:
        expected = g[f"{gradient}.{NAMES[ours]}"]
        if (gradient, ours) == ("grad_general", "class.ctx"):
            assert expected.norm() == found.get(ours, torch.zeros(())).norm() == 0
        else:
            close_gradient(found[ours], expected)


def test_released_steps() -> None:
    """Two steps of SGD on the same batch; the released mask comes too late to matter, so every class has moved."""
    g, (case, theta, inbox) = golden("capt_model_g1c3"), golden_case()
    now = {n: v.clone().requires_grad_() for n, v in theta.items()}
    optimiser = torch_optimiser(RELEASED.local, list(now.values()))
    for step, key in ((1, "after_1_step"), (2, "after_2_steps")):
        found = RELEASED.gradient(case.model, inbox)(now, case.batch)
        for name, value in now.items():
            value.grad = found[name]
        optimiser.step()
        for ours, theirs in NAMES.items():
            moved = g[f"{key}.{theirs}"] - g[f"input.{theirs}"]
            assert (now[ours].detach() - g[f"{key}.{theirs}"]).norm() <= 2e-4 * moved.norm() + 1e-6, (step, ours)


def test_row_mask() -> None:
    """Classes 2 and 4 are absent from the batch: their rows get no gradient, the others the whole of theirs."""
    g, (case, theta, inbox) = golden("capt_model_g1c3"), golden_case()
    leaves = {n: v.clone().requires_grad_() for n, v in theta.items()}
    found = RELEASED.model_copy(update={"mask": "batch"}).gradient(case.model, inbox)(leaves, case.batch)
    theirs = g["grad_after_mask.prompt_learner.class_aware_ctx"]
    assert theirs[[2, 4]].abs().sum() == 0
    assert found["class.ctx"][[2, 4]].abs().sum() == 0
    close_gradient(found["class.ctx"], theirs)


def test_row_mask_takes_candidate_classes_too() -> None:
    candidates = torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    batch = Batch(torch.zeros(1), torch.tensor([1]), torch.tensor([0]), candidates=candidates)
    assert masked(torch.ones(4, 1, 1), batch).flatten().tolist() == [0, 1, 1, 0]


def test_row_mask_by_sample() -> None:
    """Sec. 3.2: each picture updates the rows of its own class and no other's; P_g and F learn as without a mask.

    So the rows' gradient is the sum, over pictures, of what each alone would give under the mask by batch."""
    case, theta, inbox = golden_case()
    leaves = {n: v.clone().requires_grad_() for n, v in theta.items()}
    by = {mask: CAPT(mask=mask).gradient(case.model, inbox)(leaves, case.batch) for mask in ("none", "batch", "sample")}
    one_by_one = torch.zeros_like(theta["class.ctx"])
    for i in range(len(case.batch.y)):
        alone = Batch(case.batch.x[i : i + 1], case.batch.y[i : i + 1], case.batch.index[i : i + 1])
        one_by_one += CAPT(mask="batch").gradient(case.model, inbox)(leaves, alone)["class.ctx"] / len(case.batch.y)
    close_gradient(by["sample"]["class.ctx"], one_by_one)
    assert (by["sample"]["class.ctx"] - by["batch"]["class.ctx"]).norm() > 0.01 * by["batch"]["class.ctx"].norm()
    for name in set(theta) - {"class.ctx"}:
        close_gradient(by["sample"][name], by["none"][name])
    losses = [CAPT(mask=mask).loss(case.model, theta, case.batch, inbox) for mask in ("none", "sample")]
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize(("tuner", "settings"), [("coupled", {"length": 2}), ("class_prompt", {"length": 2})])
def test_table_4_prompts_of_one_kind_have_one_loss(tuner: str, settings: dict[str, int]) -> None:
    """General alone is Eq. 1, without a prior; class-aware alone is Eq. 2, counted once. la adds nothing to either."""
    case, (_, _, inbox) = GoldenCase(make_tuner(tuner, settings)), golden_case()
    theta = case.model.init(torch.Generator().manual_seed(0))
    batch = case.batch
    with torch.no_grad():
        s = 100 * case.model.image(theta, batch.x) @ case.model.text(theta).T
        s = s if tuner == "coupled" else s + log_prior(inbox["counts"])
        losses = [CAPT(la=la).loss(case.model, theta, batch, inbox) for la in (0.0, 1.0)]
    torch.testing.assert_close(losses[0], F.cross_entropy(s, batch.y), rtol=1e-4, atol=1e-4)
    assert torch.equal(*losses)


def parts(method: CAPT) -> dict[str, float]:
    """Each weighted term of the objective on the golden batch, alone."""
    case, theta, inbox = golden_case()
    alone = {
        "ge": method.model_copy(update={"lam": 0.0, "la": 0.0}),
        "lam": method.model_copy(update={"ge": 0.0, "la": 0.0}),
        "la": method.model_copy(update={"ge": 0.0, "lam": 0.0}),
        "all": method,
    }
    with torch.no_grad():
        return {name: m.loss(case.model, theta, case.batch, inbox).item() for name, m in alone.items()}


def test_eq_1_general_prompt() -> None:
    """L_ge = −1/N Σ_i ln softmax_j(cos(g([P_g, CLASS_j]), z'_i)/τ)_{y_i}: no prior, no class-aware rows."""
    case, theta, _ = golden_case()
    with torch.no_grad():
        z = case.model.image(theta, case.x)
        general = GoldenCase(make_tuner("text_prompt", {"length": 1})).model
        t_g = general.text({"text.ctx": theta["general.ctx"]})  # a sentence with the general row alone
        s = 100 * z @ t_g.T
        expected = np.mean([s[i].logsumexp(0).item() - s[i, y].item() for i, y in enumerate(case.labels)])
    assert parts(CAPT())["ge"] == pytest.approx(expected, abs=2e-4)


def test_eq_2_class_aware_prompt() -> None:
    """L_ca = −1/N Σ_i ln (π_y e^{s_y} / Σ_j π_j e^{s_j}), s_j = cos(g([P_c^j, CLASS_j]), z'_i)/τ."""
    case, theta, inbox = golden_case()
    pi = (inbox["counts"] / inbox["counts"].sum()).double()
    with torch.no_grad():
        z = case.model.image(theta, case.x)
        own = GoldenCase(make_tuner("class_prompt", {"length": 3})).model
        s = (100 * z @ own.text({"class.ctx": theta["class.ctx"]}).T).double()
        expected = -np.mean(
            [math.log(pi[y] * s[i, y].exp() / (pi * s[i].exp()).sum()) for i, y in enumerate(case.labels)]
        )
    assert parts(CAPT())["lam"] == pytest.approx(expected, abs=2e-4)
    assert parts(CAPT(prior=False))["lam"] != pytest.approx(expected, abs=1e-2)


def test_eq_3_the_general_prompt_reaches_the_image_tower() -> None:
    """z' = f([x, F(P_g)]): the image feature changes with P_g and with F, and not with P_c."""
    case, theta, _ = golden_case()
    z, rng = case.model.image(theta, case.x), torch.Generator().manual_seed(0)
    for name, moves in (("general.ctx", True), ("couple.0.weight", True), ("class.ctx", False)):
        other = case.model.image({**theta, name: theta[name] + torch.randn(theta[name].shape, generator=rng)}, case.x)
        assert ((other - z).abs().max().item() > 1e-3) == moves, name


def test_eq_4_the_objective_is_the_weighted_sum() -> None:
    found = parts(CAPT(ge=1.0, lam=0.5, la=2.0))
    assert found["all"] == pytest.approx(found["ge"] + found["lam"] + found["la"], rel=1e-5)
    plain = parts(CAPT())
    assert found["lam"] == pytest.approx(0.5 * plain["lam"], rel=1e-5)
    assert found["la"] == pytest.approx(2 * plain["la"], rel=1e-5)


def test_released_scores_by_hand() -> None:
    """z = (1, 0), (0, 1); general token (1, 1); class tokens (3, 0), (0, 2) of class 0 and (0, 1), (0, 1) of class 1.

    s_g = cos / 0.1 = 7.0711 for both; L_ge = ln(2 e^s) − s = ln 2.
    class 0: mean of (1, 0) and (0, 1) is (.5, .5), not normalised again; class 1: (0, 1). Scores over 0.1.
    """
    z = torch.eye(2)
    assert raw_general(z, torch.tensor([[1.0, 1.0]]), 0.1).item() == pytest.approx(math.log(2))
    tokens = torch.tensor([[[3.0, 0.0], [0.0, 2.0]], [[0.0, 1.0], [0.0, 1.0]]])
    torch.testing.assert_close(raw_class_aware(z, tokens, 0.1), torch.tensor([[5.0, 0.0], [5.0, 10.0]]))


def test_raw_vectors_need_equal_widths() -> None:
    """Said before any work begins: the tiny CLIP's prompts are 24 wide, its features 16."""
    with pytest.raises(UserError, match="24 wide, with image features, 16 wide"):
        world("capt-released", TUNER)


def test_log_prior_of_a_class_that_nobody_has_is_finite() -> None:
    found = log_prior(torch.tensor([3, 0, 1]))
    assert found[0].item() == pytest.approx(math.log(0.75))
    assert torch.isfinite(found).all()
    assert found[1] < -20


# --- the server -----------------------------------------------------------------------------------------------------


def golden_round() -> tuple[dict[str, torch.Tensor], dict[int, Reply], Server]:
    """The golden cohort: eight clients, here under the numbers 0…7, and the server before its aggregation."""
    g = golden("capt_aggregation")
    replies = {
        i: Reply({ours: g[f"client{i}.{theirs}"] for ours, theirs in NAMES.items()}, float(g["n_k"][i]))
        for i in range(8)
    }
    zeros = {ours: torch.zeros_like(replies[0].params[ours]) for ours in NAMES}
    counts = (g["proportions"] * 1000).round().long()
    assert torch.allclose(counts / counts.sum(1, keepdim=True), g["proportions"].to(torch.float32), atol=1e-3)
    params = {**zeros, "class.ctx": g["server_class_aware"]}
    return g, replies, Server(0, params, state={"counts": counts}, clients=8)


def test_golden_aggregation_step_by_step() -> None:
    """Cluster means, then rows of classes above the floor, then the n_k-weighted mean of everything else."""
    g, replies, _ = golden_round()
    members = dict(replies)
    for key, labels, name in (("after_sim", "sim_labels", "class.ctx"), ("after_het", "het_labels", "general.ctx")):
        for i in range(8):
            group = [k for k in range(8) if g[labels][k] == g[labels][i]]
            mean = weighted_mean({k: Reply({name: replies[k].params[name]}) for k in group})
            torch.testing.assert_close(mean[name], g[f"{key}.client{i}.{NAMES[name].split('.')[1]}"])
            members[i] = replace(members[i], params={**members[i].params, **mean})
    rows = torch.stack([members[i].params["class.ctx"] for i in range(8)])
    ruled = class_rows(g["server_class_aware"], rows, g["proportions"], 0.1)  # shares, of sum 1, are counts too
    torch.testing.assert_close(ruled, g["global.class_aware_ctx_rule"])


def test_golden_global_aggregation() -> None:
    """The whole server side: the released clusterings (four of each kind), their means, and the united model."""
    g, replies, server = golden_round()
    clusters = {
        f"n_{name}": len(set(g[f"{key}_labels"].tolist())) for name, key in (("similar", "sim"), ("diverse", "het"))
    }
    method = CAPT(floor=0.1, clusters=ClusterSettings(**clusters))
    shares = server.state["counts"].double()
    shares = shares / shares.sum(1, keepdim=True)
    assert ((shares > 0.1) == (g["proportions"] > 0.1)).all()  # rounding to counts moved none across the floor
    server, members = method.clustered(server, replies)
    for name, labels in (("similar", "sim_labels"), ("diverse", "het_labels")):
        ours = [server.cluster_of[name][k] for k in range(8)]
        same = [[a == b for b in ours] for a in ours]
        assert same == [[bool(a == b) for b in g[labels]] for a in g[labels]], name
    united = method.united(server, members)
    for ours, theirs in NAMES.items():
        torch.testing.assert_close(united.params[ours], g[f"global.{theirs}"], atol=1e-6, rtol=1e-5)
    assert not united.clusters
    assert not united.cluster_of


def test_class_rows_by_hand() -> None:
    """Two clients, three classes: class 0 known to both, 1 to the second alone, 2 to none (0.1 is not above 0.1)."""
    rows = torch.tensor([[1.0, 2.0, 3.0], [3.0, 6.0, 9.0]])[:, :, None, None]
    counts = torch.tensor([[18, 0, 2], [10, 9, 1]])
    found = class_rows(torch.full((3, 1, 1), -1.0), rows, counts, 0.1)
    assert found.flatten().tolist() == [2.0, 6.0, -1.0]


def test_macro_f1_by_hand() -> None:
    """Class 0: 2 right of 2 true and 3 said: F1 4/5; class 1: 0 right of 1 true; class 2 never occurs."""
    found = macro_f1(torch.tensor([2, 0, 0]), torch.tensor([3, 0, 0]), torch.tensor([2, 1, 0]))
    assert found == pytest.approx((0.8 + 0.0) / 2)


class Listening(LocalEngine):
    """Keeps every task and answer."""

    heard: list[tuple[int, Task, Reply]]

    def step(self, pass_: Pass, k: int, task: Task) -> Reply:
        reply = super().step(pass_, k, task)
        self.heard = [*getattr(self, "heard", []), (k, task, reply)]
        return reply


def listen(
    method: str = "capt", rounds: int = 3, **settings: Any
) -> tuple[Experiment, list[Server], list[list[tuple[int, Task, Reply]]]]:
    experiment = world(method, TUNER, rounds=rounds, **settings)
    engine, server = Listening(experiment.job, experiment.client_data), experiment.job.first_server()
    servers, rounds_ = [server], []
    while server.round < experiment.rounds:
        engine.heard = []
        server, _ = run_round(experiment, server, engine)
        servers.append(server)
        rounds_.append(engine.heard)
    return experiment, servers, rounds_


def passes(heard: list[tuple[int, Task, Reply]]) -> list[str]:
    return list(dict.fromkeys(task.pass_name for _, task, _ in heard))


def test_the_histograms_go_up_once_and_the_prior_comes_down() -> None:
    experiment, _, rounds = listen()
    assert [passes(heard)[0] for heard in rounds] == ["census", "train", "train"]
    census = {k: r.stats["counts"] for k, task, r in rounds[0] if task.pass_name == "census"}
    assert census.keys() == set(range(4))
    everything = torch.stack(list(census.values())).sum(0)
    assert torch.equal(everything, torch.from_numpy(experiment.federation.counts.sum(0)))
    for heard in rounds:
        for _, task, _ in heard:
            if task.pass_name == "train":
                assert torch.equal(task.inbox["counts"], everything)


def test_no_histogram_goes_up_if_nothing_needs_it() -> None:
    off = {"method.prior": False, "method.clustering": False, "method.floor": -1.0, "method.bandit": False}
    _, servers, rounds = listen(**off)
    assert [passes(heard) for heard in rounds] == [["train"]] * 3
    assert not [name for heard in rounds for _, _, reply in heard for name in reply.stats]
    assert "counts" not in servers[-1].state
    for needed in ("method.prior", "method.clustering", "method.floor"):
        _, servers, _ = listen(rounds=1, **{name: value for name, value in off.items() if name != needed})
        assert "counts" in servers[-1].state, needed


def test_guessed_counts_by_hand() -> None:
    """The rows of three classes have moved by (3, 4), by a little, and by (0, 15): 5 and 15 far, so that of 8 pictures
    two are of the first class and six of the last. What weight decay alone moves, 0.1 of 15, is no picture."""
    moved = torch.tensor([[3.0, 4.0], [0.0, 0.1], [0.0, 15.0]])[:, None]
    assert guessed_counts(moved, 8).tolist() == [2.0, 0.0, 6.0]
    assert guessed_counts(torch.zeros(3, 1, 2), 8).tolist() == [0.0, 0.0, 0.0]


PROMPTS = {"method.by": "prompts", "method.bandit": False}


def test_clusters_by_prompts_send_no_histogram() -> None:
    """Nobody is counted. Labels are guessed from each client's way from where its clusters' copy stood, the clusters
    and the next round's prior are by these guesses, and a class that no client has is not guessed."""
    experiment, servers, rounds = listen(**PROMPTS, **{"fraction": 1.0, "method.period": 2})
    method = experiment.job.method
    assert isinstance(method, CAPT)
    assert not method.counted
    assert [passes(heard) for heard in rounds] == [["train"]] * 3
    assert not [name for heard in rounds for _, _, reply in heard for name in reply.stats]
    assert not method.statistics("train", experiment.job.model, servers[0].params)
    true = torch.from_numpy(experiment.federation.counts)
    for heard, before, after in zip(rounds, servers, servers[1:], strict=False):
        guessed = after.state["counts"]
        for k, task, reply in heard:
            moved = reply.params["class.ctx"] - task.params["class.ctx"]
            assert torch.equal(guessed[k], guessed_counts(moved, reply.weight))
            assert ((guessed[k] > 0) <= (true[k] > 0)).all()
            assert ("counts" in task.inbox) == ("counts" in before.state)
            if "counts" in task.inbox:
                assert torch.equal(task.inbox["counts"], before.state["counts"].sum(0))
        seed = number(before.seed, "clusters", before.round)
        similar, diverse = method.clusters.labels(guessed, seed, guessed.sum(0))
        for name, labels in (("similar", similar), ("diverse", diverse)):
            assert after.state[f"clustered.{name}"][1].tolist() == list(labels)
    assert "counts" not in servers[0].state
    assert servers[2].clusters  # whose copies the third round began with


def test_what_clusters_by_prompts_need() -> None:
    with pytest.raises(UserError, match="by=prompts goes by class-aware prompts; take tuner=coupled"):
        world("capt", "coupled", **PROMPTS)
    with pytest.raises(UserError, match="bandit's reward is tables of what clients hold out"):
        listen(rounds=1, **{"method.by": "prompts"})
    _, _, (heard,) = listen(rounds=1, **{"method.by": "prompts", "data.server": 0.2})
    assert {k for k, task, _ in heard if task.pass_name == "examine"} == {OWN}
    with pytest.raises(UserError, match=r"method\.clusters\.by: input should be 'counts'"):
        world("capt-released", TUNER, **{"method.by": "prompts"})


def test_stats_pass_the_privacy_step() -> None:
    """What that step makes of a histogram is all that the server ever sees of it."""
    experiment = world("capt", TUNER, rounds=1)

    class Blur(PrivacyStep):
        def __call__(self, reply: Reply, at: Leaving) -> Reply:
            return replace(reply, stats={n: v + 7 if n == "counts" else v for n, v in reply.stats.items()})

    experiment = replace(experiment, job=replace(experiment.job, privacy=Blur()))
    server, _ = run_round(experiment, experiment.job.first_server(), make_engine(experiment))
    assert torch.equal(server.state["counts"], torch.from_numpy(experiment.federation.counts) + 7)


def test_members_start_from_their_cluster_and_keep_their_coupling() -> None:
    """Between global aggregations a client gets its clusters' copies, and F_k waits for it at home."""
    settings = {"method.bandit": False, "method.period": 3, "fraction": 1.0}
    _, servers, rounds = listen(rounds=3, **settings)
    assert not torch.equal(servers[1].params["couple.0.weight"], servers[0].params["couple.0.weight"])  # 0 % 3 == 0
    assert not servers[1].clusters
    first = {k: reply for k, task, reply in rounds[1] if task.pass_name == "train"}
    assert all("couple.0.weight" not in reply.params for reply in first.values())  # round 1 does not
    similar = servers[2].cluster_of["similar"]
    assert set(similar) == {0, 1, 2, 3}
    for k, task, reply in rounds[2]:
        copy = servers[2].clusters["similar"][similar[k]]["class.ctx"]
        assert torch.equal(task.params["class.ctx"], copy)
        members = [first[j].params["class.ctx"] for j in first if similar[j] == similar[k]]
        torch.testing.assert_close(copy, torch.stack(members).mean(0), atol=1e-6, rtol=1e-5)
        assert "couple.0.weight" in reply.params  # the last round aggregates, whatever the period
    assert not servers[3].clusters


def test_a_coupling_that_was_kept_back_is_trained_on() -> None:
    """Of three rounds the middle one does not aggregate with period 5: what it makes of F is not lost."""
    moved = []
    for period in (1, 5):
        experiment = world(
            "capt", TUNER, rounds=3, fraction=1.0, clients=1, **{"method.bandit": False, "method.period": period}
        )
        engine, server = make_engine(experiment), experiment.job.first_server()
        for _ in range(3):
            server, _ = run_round(experiment, server, engine)
        moved.append(server.params["couple.0.weight"] - experiment.job.start["couple.0.weight"])
    # With one client, aggregating in between or not is all the same.
    torch.testing.assert_close(moved[0], moved[1], atol=1e-6, rtol=1e-4)
    assert moved[0].norm() > 0


def test_the_bandit_learns_from_what_was_held_out() -> None:
    settings = {"method.holdout": 0.34, "fraction": 1.0}
    experiment, servers, rounds = listen(rounds=1, **settings)
    examined = {k: reply.stats for k, task, reply in rounds[0] if task.pass_name == "examine"}
    assert examined.keys() == set(range(4))
    for k, stats in examined.items():
        n = len(experiment.client_data[k])
        assert stats["true"].sum() == n // 3
        trained = next(r for j, task, r in rounds[0] if j == k and task.pass_name == "train")
        assert trained.weight == n - n // 3  # what is examined is not trained on
        assert (stats["right"] <= stats["true"]).all()
    right, true = (sum(s[name].sum().item() for s in examined.values()) for name in ("right", "true"))
    assert servers[1].state["history"].tolist() == [pytest.approx(100 * right / true)]
    assert servers[1].state["pulls"].sum() == 1  # the one arm that was drawn


@pytest.mark.parametrize(("server", "images"), [("test", 15), (0.2, 9)])
def test_the_bandit_prefers_the_servers_own_data(server: Any, images: int) -> None:
    experiment, _, rounds = listen(rounds=1, fraction=1.0, **{"data.server": server})
    examined = [(k, reply.stats) for k, task, reply in rounds[0] if task.pass_name == "examine"]
    assert [k for k, _ in examined] == [OWN]
    assert examined[0][1]["true"].sum() == images
    trained = [(k, reply.weight) for k, task, reply in rounds[0] if task.pass_name == "train"]
    assert all(weight == len(experiment.client_data[k]) for k, weight in trained)  # nothing is held out


def test_the_test_set_is_a_named_choice() -> None:
    """By default no pass can reach a test picture: the server has no data."""
    experiment = world("capt", TUNER)
    assert OWN not in experiment.client_data
    assert experiment.run.data.server == 0


def test_without_the_bandit_nothing_is_held_out_or_examined() -> None:
    experiment, servers, rounds = listen(**{"method.bandit": False})
    for heard in rounds:
        assert "examine" not in passes(heard)
        assert all(r.weight == len(experiment.client_data[k]) for k, task, r in heard if task.pass_name == "train")
    assert all(not server.clusters for server in servers)


def test_clustering_off_leaves_every_client_alone() -> None:
    _, servers, _ = listen(
        rounds=3, fraction=1.0, **{"method.clustering": False, "method.bandit": False, "method.period": 9}
    )
    assert len(servers[2].clusters["similar"]) == len(servers[2].clusters["diverse"]) == 4


@pytest.mark.parametrize("tuner", ["coupled", "class_prompt", "text_prompt+class_prompt", "text_prompt"])
def test_prompts_and_coupling_are_the_tuner(tuner: str) -> None:
    """Tables 4 and 5: general or class-aware prompts alone, and both without coupling."""
    experiment = world("capt", tuner, rounds=2)
    engine, server = make_engine(experiment), experiment.job.first_server()
    for _ in range(2):
        server, _ = run_round(experiment, server, engine)
    assert any(not torch.equal(server.params[n], experiment.job.start[n]) for n in server.params)
    assert ("couple.0.weight" in server.params) == tuner.startswith("coupled")


def test_released_clients_train_one_after_the_other() -> None:
    """Each begins where the one before it stopped, over rounds too, until a global aggregation."""
    settings = {"method.against": "text", "fraction": 1.0, "method.bandit": False, "method.period": 2}
    _, servers, rounds = listen("capt-released", rounds=3, **settings)
    for t in (0, 1, 2):
        trained = [(task, reply) for _, task, reply in rounds[t] if task.pass_name == "train"]
        for (_, before), (task, _) in pairwise(trained):
            assert all(torch.equal(task.params[n], before.params[n]) for n in task.params)
        assert any(name.startswith("velocity.") for name in trained[1][0].inbox)
    # Round 0 aggregated (0 % 2 == 0), so round 1 began from the global model; round 1 did not, so round 2 goes on.
    first = next(task for _, task, _ in rounds[1] if task.pass_name == "train")
    assert all(torch.equal(first.params[n], servers[1].params[n]) for n in first.params)
    last_of_1 = [reply for _, task, reply in rounds[1] if task.pass_name == "train"][-1]
    first_of_2 = next(task for _, task, _ in rounds[2] if task.pass_name == "train")
    assert all(torch.equal(first_of_2.params[n], last_of_1.params[n]) for n in first_of_2.params)


def test_on_a_resnet() -> None:
    """Table 7: F maps the general prompt to the last feature map's channels."""
    experiment = world("capt", TUNER, shape=RESNET, rounds=2)
    engine, server = make_engine(experiment), experiment.job.first_server()
    for _ in range(2):
        server, _ = run_round(experiment, server, engine)
    assert all(not torch.equal(server.params[n], experiment.job.start[n]) for n in server.params)


def test_the_bandits_rules_are_settings() -> None:
    """With the one arm 2 rounds 0 and 2 aggregate, and round 3, the last."""
    experiment = world("capt", TUNER, rounds=4, **{"method.arms": [2], "method.epsilon": 0.5, "method.eta": 0.5})
    engine, server = make_engine(experiment), experiment.job.first_server()
    united = []
    for _ in range(4):
        server, _ = run_round(experiment, server, engine)
        united.append(not server.clusters)
    assert united == [True, False, True, True]
    assert server.state["values"].shape == (1,)
    with pytest.raises(UserError, match=r"method\.(schedule\.)?arms"):
        world("capt", TUNER, **{"method.arms": [0]})


def test_options_have_a_short_and_a_full_name() -> None:
    """`method.arms` is `method.schedule.arms`; every option of the two groups has a short name, and no other."""
    full = {"method.schedule.arms": [2], "method.clusters.n_similar": 2}
    short = {"method.arms": [2], "method.n_similar": 2}
    assert world("capt", TUNER, **full).run == world("capt", TUNER, **short).run
    made = CAPT()
    groups = {"clusters": made.clusters, "schedule": made.schedule}
    assert set(CAPT.short.values()) == {f"{g}.{name}" for g, group in groups.items() for name in group.model_dump()}
    assert not CAPT.short.keys() & CAPT.model_fields.keys()


def test_defaults_of_the_released_code() -> None:
    """Four clusters of each kind and four draws, also where another option of the group is given."""
    made = ReleasedCAPT.model_validate({"clusters": {"metric": "kl"}, "schedule": {"arms": [1, 2]}})
    assert (made.clusters.metric, made.clusters.n_similar, made.clusters.n_diverse) == ("kl", 4, 4)
    assert (made.schedule.arms, made.schedule.draws) == ((1, 2), 4)
    assert (made.floor, made.mask, made.last, made.carry, made.against) == (0.1, "none", False, "shared", "raw")
