"""A round of remote clients with secure sums against one without: bytes, and CPU seconds of the server and of a client.

The bundled CLIP and random features, eight pictures a client, one epoch of one batch, so that there is little besides
the messages. All clients take part; they are in this process, and each message is answered at once. It is fair since
both variants go through the same rounds with the same draws, and must reach the same parameters but for rounding.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedtailor.remote.client import RemoteClient, Session, simulated_session
from fedtailor.remote.engine import Received, RemoteEngine
from fedtailor.remote.messages import Invitation
from fedtailor.remote.policy import ANYTHING
from fedtailor.settings.run import Run
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.loop import run_round

from .arrays import difference, save
from .child import call
from .federations import synthetic
from .options import Options
from .rows import Row, median, ratio
from .show import note

RUN_ID = "0123456789abcdef" * 2
ALLOWED = 1e-3  # of the change: sums are of multiples of 2^-24
VARIANTS: Mapping[str, dict[str, Any]] = {
    "each reply": {},
    "sums": {"secure": "masked"},
    "sums, 16 neighbours": {"secure": "masked", "secure.neighbours": 16},
}
CASES = (("promptfl", 10), ("promptfl", 50), ("clip-lora", 10))


class AtOnce:
    """A transport in this process, with its account of bytes and of what clients compute."""

    def __init__(self, sites: list[RemoteClient]) -> None:
        self.sites, self.came = sites, list[Received]()
        self.up = self.down = 0
        self.cpu = 0.0

    def online(self) -> range:
        return range(len(self.sites))

    def send(self, kind: str, round_: int, data: Mapping[int, bytes]) -> None:
        began = time.process_time()
        replies = {k: self.sites[k].handle(message) for k, message in data.items()}
        self.cpu += time.process_time() - began
        self.down += sum(map(len, data.values()))
        self.up += sum(map(len, replies.values()))
        self.came += [Received(k, reply) for k, reply in replies.items()]

    def receive(self) -> Iterable[Received]:
        came, self.came = self.came, []
        return came

    def close(self) -> None:
        pass


def site(experiment: Experiment, folder: Path) -> RemoteClient:
    def make_session(invitation: Invitation, run: Run) -> Session:
        return simulated_session(experiment, invitation.client)

    return RemoteClient(folder, make_session, ANYTHING, "here")


def some_rounds(method: str, clients: int, rounds: int, settings: dict[str, Any], file: str) -> dict[str, Any]:
    """What a round takes; the first, in which all is loaded, is left out."""
    more = {"rounds": 99, "fraction": 1.0, "local.epochs": 1, "local.batch": 8, "engine": "flower", "threads": 1}
    experiment = synthetic(method, clients, 8, 40, **more, **settings)
    with tempfile.TemporaryDirectory() as folder:
        there = AtOnce([site(experiment, Path(folder) / str(k)) for k in range(clients)])
        engine, server = RemoteEngine(experiment, None, there, RUN_ID), experiment.job.first_server()
        engine.open()
        first = server.params
        server, _ = run_round(experiment, server, engine)
        there.up = there.down = 0
        there.cpu, began = 0.0, time.process_time()
        for _ in range(rounds):
            engine.committed()
            server, _ = run_round(experiment, server, engine)
        cpu = time.process_time() - began
    save(Path(file), {name: (value - first[name]).numpy() for name, value in server.params.items()})
    numbers = sum(value.numel() for value in first.values())
    of_client = rounds * clients
    return {
        "cpu_s": (cpu - there.cpu) / rounds, "client": there.cpu / of_client, "numbers": numbers,
        "up": there.up / of_client / 1e3, "down": there.down / of_client / 1e3,
    }  # fmt: skip


def run(options: Options) -> list[Row]:
    rows: list[Row] = []
    cases = (("promptfl", 4),) if options.quick else CASES
    with tempfile.TemporaryDirectory() as folder:
        for method, clients in cases:
            rows += compared(options, method, clients, Path(folder))
    return rows


def compared(options: Options, method: str, clients: int, folder: Path) -> list[Row]:
    kinds = [name for name, more in VARIANTS.items() if more.get("secure.neighbours", 0) < clients - 1]
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    files = {kind: folder / f"{method}-{clients}-{n}.npz" for n, kind in enumerate(kinds)}
    for again in range(options.times):
        for kind in kinds:
            note(f"secure: {method}, {clients} clients, {kind}, {again + 1} of {options.times}")
            given = {"method": method, "clients": clients, "rounds": 1 if options.quick else 3}
            given |= {"settings": VARIANTS[kind], "file": str(files[kind])}
            found[kind].append(call(options, "secure", "some_rounds", **given))
    rows = []
    for kind in kinds:
        figures = {name: median(found[kind], name) for name in ("cpu_s", "client", "up", "down", "numbers")}
        case = f"{method}, {clients} clients, {figures['numbers']:.0f} numbers"
        checked = {"off": difference(files[kinds[0]], files[kind]), "allowed": ALLOWED} if kind != kinds[0] else {}
        more = {"client CPU s": figures["client"], "kB up": figures["up"], "kB down": figures["down"]}
        slower = ratio(median(found[kinds[0]], "cpu_s"), figures["cpu_s"])
        rows.append(Row("secure", case, kind, figures["cpu_s"], ratio=slower, more=more, **checked))
    return rows
