"""A round of the toy world, as a diagnostic sees it."""

from __future__ import annotations

from fedtailor.diagnostics import Round
from fedtailor.setup import Setup
from fedtailor.train import advance
from world import world


def seen_round(setup: Setup, number: int = 1) -> Round:
    """The round of this number, counted from 1."""
    engine, server = setup.engine(), setup.job.first_server()
    engine.traffic = []
    while True:
        before, clients = server, dict(engine.clients)
        engine.traffic.clear()
        server, cohort = advance(setup, server, engine)
        if server.round == number:
            return Round(setup, before, server, clients, engine, cohort)


def fedcopl(**more: object) -> Setup:
    return world("fedcopl", "text_prompt+visual_prompt", **{"tuner.visual_prompt.depth": 2, "epochs": 1, **more})
