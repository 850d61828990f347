"""A run whose clients are elsewhere, whatever carries the letters: its name, and what its clients are told of it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from . import __version__
from .engines.remote import Post, RemoteEngine
from .letters import Charter
from .setup import Setup
from .site import Room
from .store import write
from .visit import Client


def remote(
    setup: Setup,
    clients: Mapping[int, Client] | None,
    post: Post,
    run: str,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> RemoteEngine:
    """The engine of a run by that name, over some post."""
    told = charter(setup, run)
    return RemoteEngine(setup.job, setup.run.plan, post, told, clients, setup.server_shelf, clock, wait)


def run_id(folder: Path | None) -> str:
    """The run's name for as long as it lives, kept in its folder."""
    if folder is None:
        return secrets.token_hex(16)
    file = folder / "id"
    if not file.is_file():
        write(file, secrets.token_hex(16).encode())
    return file.read_text()


def charter(setup: Setup, run: str) -> Charter:
    dataset = setup.federation.dataset
    return Charter(
        run=run,
        client=0,
        version=__version__,
        settings=setup.run.to_toml(),
        weights=setup.weights,
        classes=dataset.classes,
        template=setup.run.data.template or dataset.template,
        normal=dataset.normal,
        groups={name: tuple(members.tolist()) for name, members in setup.groups.items()},
    )


def room(setup: Setup, k: int) -> Room:
    """Where clients are only simulated, a client's part of what was dealt out."""
    truths = setup.federation.dataset.train.labels
    mine = None if truths is None else truths[setup.federation.shares[k].train]
    return Room(k, setup.job, setup.shelves[k], setup.tests.of_client(k), mine, setup.run.threads)
