"""A run whose clients are elsewhere, whatever carries the letters: its name, and what its clients are told of it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ..base.files import write_atomic
from ..base.version import __version__
from ..client.job import ClientState
from ..simulation.build import Experiment
from .client import Session
from .engine import RemoteEngine, Transport
from .messages import Invitation


def remote_engine(
    experiment: Experiment,
    clients: Mapping[int, ClientState] | None,
    post: Transport,
    run: str,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> RemoteEngine:
    """The engine of a run by that name, over some post."""
    told = invitation_of(experiment, run)
    return RemoteEngine(experiment.job, experiment.run.plan, post, told, clients, experiment.server_data, clock, wait)


def run_id(folder: Path | None) -> str:
    """The run's name for as long as it lives, kept in its folder."""
    if folder is None:
        return secrets.token_hex(16)
    file = folder / "id"
    if not file.is_file():
        write_atomic(file, secrets.token_hex(16).encode())
    return file.read_text()


def invitation_of(experiment: Experiment, run: str) -> Invitation:
    dataset = experiment.federation.dataset
    return Invitation(
        run=run,
        client=0,
        version=__version__,
        settings=experiment.run.to_toml(),
        weights=experiment.weights,
        classes=dataset.classes,
        template=experiment.run.data.template or dataset.template,
        paper=dataset.paper,
        groups={name: tuple(members.tolist()) for name, members in experiment.groups.items()},
    )


def simulated_session(experiment: Experiment, k: int) -> Session:
    """Where clients are only simulated, a client's part of what was dealt out."""
    truths = experiment.federation.dataset.train.labels
    mine = None if truths is None else truths[experiment.federation.shares[k].train]
    return Session(
        k, experiment.job, experiment.client_data[k], experiment.tests.of_client(k), mine, experiment.run.threads
    )
