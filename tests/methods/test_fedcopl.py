"""FedCoPL: who keeps what, the weights of the average, and its settings. Its labels are tested in tests/labelers."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.cli.output import print_result
from fedtailor.core.types import GLOBAL, LOCAL, Pass
from fedtailor.labelers.zeroshot import probabilities
from fedtailor.methods.fedcopl import FedCoPL
from fedtailor.runs.callback import Callback
from fedtailor.runs.execute import about, execute
from fedtailor.runs.folder import RunFolder
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import run_round
from tiny import RESNET
from world import world

TUNER = "text_prompt+visual_prompt"


def small(**more: Any) -> Experiment:
    return world("fedcopl", TUNER, **more)


@pytest.mark.parametrize("visual", [True, False])
@pytest.mark.parametrize("text", [True, False])
def test_the_four_ways_to_share(visual: bool, text: bool) -> None:
    """Table 6: what is shared goes up and is averaged, what is not stays and differs between clients."""
    experiment = small(fraction=1.0, rounds=1, **{"method.share_visual": visual, "method.share_text": text})
    scopes = experiment.job.scopes
    assert (scopes["visual.ctx"] == GLOBAL) == visual
    assert (scopes["text.ctx"] == GLOBAL) == text
    engine = make_engine(experiment)
    server, _ = run_round(experiment, experiment.job.first_server(), engine)
    for name, shared in (("visual.ctx", visual), ("text.ctx", text)):
        assert (name in server.params) == shared
        own = [engine.clients[k].local.get(name) for k in range(4)]
        assert all((value is None) == shared for value in own)
        if not shared:
            assert not torch.equal(own[0], own[1])  # type: ignore[arg-type]
        else:
            assert not torch.equal(server.params[name], experiment.job.start[name])


def test_eq_4_the_average_is_by_what_was_selected() -> None:
    """P^v = Σ_k ñ_k P^v_k / Σ ñ_k, ñ_k the samples that client k selected."""
    experiment = small(fraction=1.0, rounds=1)
    seen = {}

    class Listening(LocalEngine):
        def step(self, pass_: Pass, k: int, task: Any) -> Any:
            reply = super().step(pass_, k, task)
            seen[k] = reply
            return reply

    engine = Listening(experiment.job, experiment.client_data)
    server, _ = run_round(experiment, experiment.job.first_server(), engine)
    n = {k: len(engine.clients[k].memory["labels.y"]) for k in range(4)}
    assert {k: reply.weight for k, reply in seen.items()} == n
    assert len(set(n.values())) > 1
    expected = sum(n[k] * seen[k].params["visual.ctx"].double() for k in n) / sum(n.values())
    torch.testing.assert_close(server.params["visual.ctx"].double(), expected, atol=1e-7, rtol=1e-6)


def test_eq_5_a_client_is_its_text_with_everyones_visual() -> None:
    """g(P^v, P^t_k; x): a client's predictions come from the server's visual and its own text prompts."""
    experiment = small(fraction=1.0, rounds=1)
    engine = make_engine(experiment)
    server, _ = run_round(experiment, experiment.job.first_server(), engine)
    seen = {}

    class Peeking(FedCoPL):
        def train(self, model: Any, me: Any, theta: Any) -> Any:
            x = next(me.data.views()).x
            seen[me.id] = (me.predict(x), model.logits(theta, x), theta)
            return super().train(model, me, theta)

    method = Peeking(**dict(experiment.job.method))
    job = replace(experiment.job, method=method)
    method.round(server, [0, 1], LocalEngine(job, experiment.client_data, engine.clients))
    for k, (predicted, logits, theta) in seen.items():
        assert torch.equal(predicted, logits)
        assert torch.equal(theta["visual.ctx"], server.params["visual.ctx"])
        assert torch.equal(theta["text.ctx"], engine.clients[k].local["text.ctx"])


def test_settings_of_the_paper() -> None:
    """20 rounds are for the user to say; the rest is the paper's, or the released code's where that is silent."""
    run = make_run("fedcopl")
    assert run.labels.name == "copl"
    assert run.labels.options["refresh"] == 5
    local = run.local
    assert (local.epochs, local.batch, local.lr, local.weight_decay) == (10, 64, 0.1, 0.05)
    assert (local.schedule, local.span) == ("cosine", 50)
    assert not local.drop_last
    assert [local.rate(t, 0) for t in (0, 5)] == [0.1, 0.1]  # anew with every labeling
    assert local.rate(4, 9) < 1e-3
    assert LOCAL in FedCoPL.share.values()


@pytest.mark.parametrize("clients", [5, 15])
@pytest.mark.parametrize("fraction", [0.5, 0.8, 1.0])
def test_numbers_of_clients_and_joining_rates(clients: int, fraction: float) -> None:
    """Fig. 3; clients with a handful of pictures, some of which nobody selects."""
    experiment = small(clients=clients, fraction=fraction, rounds=2)
    engine, server = make_engine(experiment), experiment.job.first_server()
    for _ in range(2):
        server, cohort = run_round(experiment, server, engine)
        assert len(cohort) == int(fraction * clients)
    assert torch.isfinite(server.params["visual.ctx"]).all()


def test_with_labels_given_it_is_partial_averaging_alone() -> None:
    few = {"clients": 4, "rounds": 1, "epochs": 1, "tuner.text_prompt.length": 4}
    experiment = world(run=make_run("fedcopl", {"labels": "given", **few}))
    assert experiment.job.labeler is None
    server, _ = run_round(experiment, experiment.job.first_server(), make_engine(experiment))
    assert not torch.equal(server.params["visual.ctx"], experiment.job.start["visual.ctx"])


def test_eq_1_probabilities() -> None:
    """p_c(x) = exp(sim(f^v(x), f^t_c)/τ) / Σ_j exp(sim(f^v(x), f^t_j)/τ), τ one over CLIP's scale.

    v, t = f / norm; e = np.exp(scale * v @ t.T); p = e / e.sum(1, keepdims=True)
    """
    experiment = small(rounds=1)
    model, seen = experiment.job.model, {}

    class Looking(type(experiment.job.labeler)):  # type: ignore[misc]
        def vote(self, model: Any, me: Any, theta: Any) -> Any:
            seen["ours"], (seen["view"],) = probabilities(model, me), me.data.views()
            return super().vote(model, me, theta)

    job = replace(experiment.job, labeler=Looking(**dict(experiment.job.labeler)))  # type: ignore[arg-type]
    engine = LocalEngine(job, experiment.client_data)
    engine(job.labeler.vote, job.first_server(), [0])  # type: ignore[union-attr]
    plain = model.clip.vision(seen["view"].x, model.stage, "features").double().numpy()
    v = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    e = np.exp(float(model.clip.scale) * v @ model.zero_shot.double().numpy().T)
    np.testing.assert_allclose(seen["ours"].numpy(), e / e.sum(1, keepdims=True), atol=1e-5)


def test_on_a_resnet_it_runs_and_says_what_stands_in(tmp_path: Path) -> None:
    """Broken: the default fails on RN50, or falls back in silence: output, result.json and run.toml have to tell."""
    run = small(rounds=1).run
    experiment = world(run=run, shape=RESNET)
    note = "a ResNet has no layers for visual prompts (a ViT has); used instead: one visual prompt of 5 rows"
    assert [said.startswith(note) for said in experiment.notes] == [True]
    folder = RunFolder.create(tmp_path / "run", run, about(experiment))
    result = execute(experiment, folder, False, 0.0, Callback())
    assert result.summary["notes"] == list(experiment.notes)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["notes"] == list(experiment.notes)
    assert note in (tmp_path / "run" / "run.toml").read_text()
    console = io.StringIO()
    with contextlib.redirect_stdout(console):
        print_result(result.summary)
    assert note in " ".join(console.getvalue().split())
    assert small(rounds=1).notes == ()
