"""A round of the toy world, as a diagnostic sees it."""

from __future__ import annotations

from fedtailor.evaluation.diagnostics.round import RoundView
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from world import world


def seen_round(experiment: Experiment, number: int = 1) -> RoundView:
    """The round of this number, counted from 1."""
    engine, server = make_engine(experiment), experiment.job.first_server()
    engine.trace = []
    while True:
        engine.clients.commit()
        before, clients = server, engine.clients.before()
        engine.trace.clear()
        server, cohort = run_round(experiment, server, engine)
        if server.round == number:
            return RoundView(
                experiment.job, experiment.federation, experiment.tests, experiment.client_data, before, server,
                clients, engine.clients, engine.trace, cohort,
            )  # fmt: skip


def fedcopl(**more: object) -> Experiment:
    return world("fedcopl", "text_prompt+visual_prompt", **{"tuner.visual_prompt.depth": 2, "epochs": 1, **more})
