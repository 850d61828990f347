"""A federated round with 20 and with 100 clients, of which 40% take part, on every engine: CPU and wall seconds.

The bundled CLIP, drawn-lt (with --quick a federation without pictures), each method as its recipe has it. The first
round, in which layouts are made and pictures read, is left out; the time is the mean of the rounds that follow.

It is fair since all variants go through the same rounds with the same clients, cohorts and draws, in turns, each in a
process of its own; and the shared parameters afterwards must be the same, which is checked. An engine is whatever
`settings/engines.py` lists, `local` with one thread and with two (clients side by side); engines whose clients are in
other processes only if --engines names them, and then CPU seconds and memory are the server's alone.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedtailor.core.types import Server
from fedtailor.settings.engines import ENGINES
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import Experiment, build
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round

from .arrays import difference, save
from .child import call
from .federations import synthetic
from .measure import measured
from .options import Options
from .rows import Row, median, ratio
from .show import note

METHODS = ("promptfl", "capt", "fedclip", "clip-lora")
ALLOWED = 1e-3  # of the change: engines may add up in another order, and Adam divides small gradients by themselves


def build_one(method: str, clients: int, quick: bool, **settings: Any) -> Experiment:
    if quick:
        return synthetic(method, clients, 8, 40, rounds=9, fraction=0.4, batch=4, **settings)
    few = {"data.min_size": 2, "data.min_test": 1}  # for 100 clients there are not ten pictures for everyone
    return build(make_run(method, {"clients": clients, "rounds": 99, "fraction": 0.4, **few, **settings}))


def some_rounds(method: str, clients: int, engine: str, threads: int, rounds: int, quick: bool, file: str) -> Any:
    """Seconds of a round, and the shared parameters after all of them in a file."""
    experiment = build_one(method, clients, quick, engine=engine, threads=threads)
    server = first = experiment.job.first_server()
    with tempfile.TemporaryDirectory() as folder:
        carrier = make_engine(experiment, None, Path(folder))
        try:
            carrier.open()

            def go_on(server: Server, count: int) -> Server:
                for _ in range(count):
                    server, _cohort = run_round(experiment, server, carrier)
                    carrier.drain_log()
                    carrier.clients.commit()
                    carrier.committed()
                return server

            server = go_on(server, 1)
            server, cost = measured(lambda: go_on(server, rounds))
        finally:
            carrier.close()
    change = {name: (value - first.params[name]).numpy() for name, value in server.params.items()}
    save(Path(file), change)
    return {**asdict(cost), "cpu_s": cost.cpu_s / rounds, "wall_s": cost.wall_s / rounds}


def variants(options: Options) -> list[tuple[str, int]]:
    """Engines and threads; the first is what the others are compared with."""
    here = [name for name, entry in ENGINES.items() if not entry.remote]
    asked = [name for name in options.engines or here if not options.quick or name in here]
    usable = [name for name in asked if name != "flower" or find_spec("flwr")]
    return [("local", 1), *((name, 1) for name in usable if name != "local"), *((name, 2) for name in usable)]


def run(options: Options) -> list[Row]:
    rows, rounds = [], 1 if options.quick else 3
    with tempfile.TemporaryDirectory() as folder:
        for clients in (6, 10) if options.quick else (20, 100):
            for method in [name for name in METHODS if not options.cases or name in options.cases]:
                rows += compared(options, method, clients, rounds, Path(folder))
    return rows


def compared(options: Options, method: str, clients: int, rounds: int, folder: Path) -> list[Row]:
    kinds = variants(options)
    found: dict[tuple[str, int], list[dict[str, Any]]] = {kind: [] for kind in kinds}
    files = {kind: folder / f"{method}-{clients}-{kind[0]}-{kind[1]}.npz" for kind in kinds}
    for again in range(options.times):
        for engine, threads in kinds:
            note(f"round: {method}, {clients} clients, {engine} threads={threads}, {again + 1} of {options.times}")
            given: dict[str, Any] = {
                "method": method,
                "clients": clients,
                "engine": engine,
                "threads": threads,
                "rounds": rounds,
            }
            given |= {"quick": options.quick, "file": str(files[engine, threads])}
            within = 1 if options.quick else threads
            found[engine, threads].append(call(options, "round", "some_rounds", within, **given))
    rows = []
    for kind in kinds:
        cpu, wall, memory = (median(found[kind], name) for name in ("cpu_s", "wall_s", "peak_mb"))
        faster = None if ENGINES[kind[0]].remote else ratio(median(found[kinds[0]], "cpu_s"), cpu)
        checked = {"off": difference(files[kinds[0]], files[kind]), "allowed": ALLOWED} if kind != kinds[0] else {}
        sooner = {"wall ×": ratio(median(found[kinds[0]], "wall_s"), wall)}
        case, name = f"{method}, {clients} clients", f"engine={kind[0]} threads={kind[1]}"
        rows.append(Row("round", case, name, cpu, wall, memory, ratio=faster, more=sooner, **checked))
    return rows
