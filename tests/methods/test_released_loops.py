"""Three rounds of the released methods, end to end, against loops written the way those codes are: one model, one torch
optimiser that lives through all clients and rounds, weights written into it. Our server side has no part in them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from fedtailor.algorithms.alignment import alignment
from fedtailor.base.rng import generator
from fedtailor.client.job import ClientState
from fedtailor.core.method import branch
from fedtailor.core.types import Batch, Params
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from world import world

ROUNDS, CLIENTS = 3, 3


def ours(experiment: Experiment) -> tuple[Params, dict[int, ClientState]]:
    engine, server = make_engine(experiment), experiment.job.first_server()
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
    return server.params, engine.clients


def batches(experiment: Experiment, t: int, k: int, pass_: str, epochs: int = 1) -> list[Batch]:
    """What client k sees in round t; it is the one thing that is random."""
    rng, local = generator(experiment.run.seed, "round", t, "client", k, pass_), experiment.run.local
    data = experiment.client_data[k]
    return [batch for _ in range(epochs) for batch in data.batches(local.batch, local.drop_last, rng)]


def load(model: Params, values: Params) -> None:
    with torch.no_grad():
        for name, value in values.items():
            model[name].copy_(value)


def mean(states: list[Params], weights: list[int]) -> Params:
    return {n: sum(s[n] * w for s, w in zip(states, weights, strict=True)) / sum(weights) for n in states[0]}


def close(found: Params, expected: Params) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-4)


def released(method: str, tuner: str, **more: Any) -> Experiment:
    return world(f"{method}-released", tuner, rounds=ROUNDS, clients=CLIENTS, fraction=1.0, **more)


def test_fedpurel() -> None:
    """Purified steps with one momentum for all, FedAvg by n_k, then a plain-SGD pass on φ_k against the new φ_g."""
    experiment = released("fedpurel", "text_prompt")
    model, local = experiment.job.model, experiment.run.local
    shared = branch(experiment.job.start, "global.")
    personal = {k: {n: v.clone() for n, v in branch(experiment.job.start, "local.").items()} for k in range(CLIENTS)}
    live = {n: v.clone().requires_grad_() for n, v in shared.items()}
    optimiser = torch.optim.SGD(list(live.values()), local.lr, local.momentum, weight_decay=local.weight_decay)
    for t in range(ROUNDS):
        states, sizes = [], []
        for k in range(CLIENTS):
            load(live, shared)
            for batch in batches(experiment, t, k, "train"):
                f = model.logits(live, batch.x)
                (ctx,) = live.values()
                (g_align,) = torch.autograd.grad(alignment("tkl", model.teacher(batch), f), [ctx], retain_graph=True)
                (g_task,) = torch.autograd.grad(F.cross_entropy(f, batch.y), [ctx])
                if (g_task * g_align).sum() < 0:
                    unit = g_align / g_align.norm()
                    g_task = g_task - (g_task * unit).sum() * unit
                ctx.grad = g_task
                optimiser.step()
            states.append({n: v.detach().clone() for n, v in live.items()})
            sizes.append(len(experiment.client_data[k]))
        shared = mean(states, sizes)
        for k in range(CLIENTS):
            own = {n: v.clone().requires_grad_() for n, v in personal[k].items()}
            plain = torch.optim.SGD(list(own.values()), experiment.job.method.personal_lr)  # type: ignore[attr-defined]
            for batch in batches(experiment, t, k, "personalise"):
                l_G, l_P = model.logits(shared, batch.x), model.logits(own, batch.x)
                loss = 0.01 * F.cross_entropy(l_G + l_P, batch.y) + 0.99 * F.cross_entropy(l_P, batch.y)
                plain.zero_grad()
                loss.backward()
                plain.step()
            personal[k] = {n: v.detach() for n, v in own.items()}
    found, clients = ours(experiment)
    close(branch(found, "global."), shared)
    for k in range(CLIENTS):
        close(branch(clients[k].local, "local."), personal[k])


def test_capt() -> None:
    """One model that runs on from client to client; if t % 2 = 0: cluster means, class rows by share, FedAvg, load.

    With one cluster of each kind a cluster's mean is the mean of all. The bandit is tested with its own golden numbers.
    """
    clusters = {"method.n_similar": 1, "method.n_diverse": 1}
    experiment = released(
        "capt",
        "coupled+class_prompt",
        **{"method.against": "text", "method.bandit": False, "method.period": 2, **clusters},
    )
    method, model, local = experiment.job.method, experiment.job.model, experiment.run.local
    counts = torch.from_numpy(experiment.federation.counts)
    inbox = {"counts": counts.sum(0)}
    server = dict(experiment.job.start)
    live = {n: v.clone().requires_grad_() for n, v in server.items()}
    optimiser = torch.optim.SGD(list(live.values()), local.lr, local.momentum, weight_decay=local.weight_decay)
    for t in range(ROUNDS):
        states, sizes = [], []
        for k in range(CLIENTS):
            for batch in batches(experiment, t, k, "train"):
                optimiser.zero_grad()
                method.loss(model, live, batch, inbox).backward()
                optimiser.step()
            states.append({n: v.detach().clone() for n, v in live.items()})
            sizes.append(len(experiment.client_data[k]))
        if t % 2:
            continue
        rows = torch.stack([s["class.ctx"] for s in states]).mean(0)  # the one similarity cluster
        general = torch.stack([s["general.ctx"] for s in states]).mean(0)  # the one heterogeneity cluster
        known = (counts / counts.sum(1, keepdim=True) > 0.1).any(0)[:, None, None]
        server = {
            **mean(states, sizes),
            "general.ctx": general,
            "class.ctx": torch.where(known, rows, server["class.ctx"]),
        }
        load(live, server)
    found, _ = ours(experiment)
    close(found, server)


def test_fedcopl() -> None:
    """Global visual and own text prompts loaded for each client, one momentum for both, a cosine over the block."""
    # With labels given: how labels are made and selected has golden numbers of its own.
    small = {
        "clients": CLIENTS,
        "fraction": 1.0,
        "rounds": ROUNDS,
        "epochs": 2,
        "batch": 4,
        "lr": 0.01,
        "local.span": 4,
    }
    more = {"labels": "given", "method.carry": "all", "tuner.text_prompt.length": 4}
    experiment = world(run=make_run("fedcopl-released", {"seed": 3, **small, **more}))
    local, model = experiment.run.local, experiment.job.model
    visual = experiment.job.start["visual.ctx"]
    text = dict.fromkeys(range(CLIENTS), experiment.job.start["text.ctx"])
    live = {n: v.clone().requires_grad_() for n, v in experiment.job.start.items()}
    optimiser = torch.optim.SGD(list(live.values()), local.lr, local.momentum, weight_decay=local.weight_decay)
    for t in range(ROUNDS):
        states, sizes = [], []
        for k in range(CLIENTS):
            load(live, {"visual.ctx": visual, "text.ctx": text[k]})
            seen = batches(experiment, t, k, "train", local.epochs)
            per_epoch = len(seen) // local.epochs
            for i, batch in enumerate(seen):
                optimiser.param_groups[0]["lr"] = local.rate(t, i // per_epoch)
                optimiser.zero_grad()
                F.cross_entropy(model.logits(live, batch.x), batch.y).backward()
                optimiser.step()
            text[k] = live["text.ctx"].detach().clone()
            states.append({"visual.ctx": live["visual.ctx"].detach().clone()})
            sizes.append(len(experiment.client_data[k]))
        visual = mean(states, sizes)["visual.ctx"]
    found, clients = ours(experiment)
    close(found, {"visual.ctx": visual})
    for k in range(CLIENTS):
        close(clients[k].local, {"text.ctx": text[k]})


def test_fedavg() -> None:
    """Global prompt loaded for each client, one momentum for all, FedAvg by n_k."""
    experiment = released("fedavg", "text_prompt")
    local, model, server = experiment.run.local, experiment.job.model, dict(experiment.job.start)
    live = {n: v.clone().requires_grad_() for n, v in server.items()}
    optimiser = torch.optim.SGD(list(live.values()), local.lr, local.momentum, weight_decay=local.weight_decay)
    for t in range(ROUNDS):
        states, sizes = [], []
        for k in range(CLIENTS):
            load(live, server)
            for batch in batches(experiment, t, k, "train"):
                optimiser.zero_grad()
                F.cross_entropy(model.logits(live, batch.x), batch.y).backward()
                optimiser.step()
            states.append({n: v.detach().clone() for n, v in live.items()})
            sizes.append(len(experiment.client_data[k]))
        server = mean(states, sizes)
    found, _ = ours(experiment)
    close(found, server)
