"""What the ServerApp does: a run over the Grid that Flower gives it, on SuperNodes that we know nothing of.

How many there are Flower says, and which client each is, it says itself.
"""

import logging
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from flwr.app import UserConfig
from flwr.serverapp import Grid

from ..base.errors import UserError
from ..base.workers import torch_threads
from ..client.job import ClientState
from ..remote.engine import RemoteEngine, run_id
from ..runs.execute import about, check_same, execute
from ..runs.folder import RunFolder
from ..settings.run import Run
from ..settings.words import run_of
from ..simulation.build import Experiment, build
from .messages import GridTransport
from .private.grid import InMemoryGrid
from .sites import server_experiment
from .watch import RoundLog

log = logging.getLogger("fedtailor.flower")
START = 120.0  # seconds in which the first SuperNode is to be there
QUIET = 2.0  # seconds in which no other has come: these are all


def conduct(grid: Grid, folder: Path, config: UserConfig) -> None:
    """A run from its settings, or from its folder, to its result."""
    began, resuming = time.perf_counter(), bool(config["resume"])
    drawn = isinstance(grid, InMemoryGrid)  # Flower's simulation: the run's settings say who has which pictures
    if resuming:
        store, run, noted = RunFolder.reopen(folder)
        try:
            experiment = experiment_of(run, drawn)
            check_same(folder, experiment, noted)
        except BaseException:
            store.close()
            raise
    else:
        if (folder / "run.toml").is_file():
            raise UserError(f'there is a run in {folder}; go on with resume="{folder}", or choose another run="…"')
        run = settings_of(str(config["settings"]), grid, drawn)
        experiment = experiment_of(run, drawn)
        store = RunFolder.create(folder, run, about(experiment))
    log.info("%s with %d clients, in %s", run.method.name, run.clients, folder)
    transport = GridTransport(grid, limit=run.plan.limit * 1e6)
    watch = RoundLog(folder.name, [f"client-{k}" for k in range(run.clients)])

    def make(made: Experiment, clients: Mapping[int, ClientState] | None, at: Path | None) -> RemoteEngine:
        return RemoteEngine(made, clients, transport, run_id(at), watch=watch.look)

    with torch_threads(run.threads):
        execute(experiment, store, resuming, began, watch, make)
    log.info("finished; fedtailor report %s shows it", folder)


def experiment_of(run: Run, drawn: bool) -> Experiment:
    with torch_threads(run.threads):
        if drawn:
            return build(run)
        made = server_experiment(run)
        names = tuple(f"client-{k}" for k in range(run.clients))
        return replace(made, federation=replace(made.federation, names=names))


def settings_of(settings: str, grid: Grid, drawn: bool) -> Run:
    try:
        words = shlex.split(settings)
    except ValueError as error:
        raise UserError(f"settings={settings!r} cannot be read: {error}") from error
    given = {word.partition("=")[0] for word in words}
    if "engine" in given:
        raise UserError("engine cannot be chosen here: clients are reached over Flower")
    there = nodes_of(grid) if drawn or "clients" not in given else 0
    clients = [] if "clients" in given else [f"clients={there}"]
    everyone = [] if drawn or "fraction" in given else ["fraction=1.0"]
    run = run_of([*words, *clients, *everyone, "engine=flower"])
    if not run.method.value.trains:
        raise UserError(f"{run.method.name} trains nothing; there is nothing for SuperNodes to do")
    if drawn and run.clients != there:
        raise UserError(
            f"clients={run.clients}, and Flower simulates {there}; leave clients out, or ask for as many with "
            f"flwr run … --federation-config num-supernodes={run.clients}"
        )
    return run


def nodes_of(grid: Grid) -> int:
    """How many SuperNodes there are. They come in one after the other, also in a simulation."""
    ends, there = time.monotonic() + START, 0
    while time.monotonic() < ends:
        before, there = there, len(list(grid.get_node_ids()))
        if there and there == before:
            return there
        time.sleep(QUIET)
    raise UserError(f"no SuperNode has come within {START:.0f} s; start them, or wait for N of them with clients=N")
