"""How many sites a server carries: CPU and memory of its processes, and seconds a round, over loopback.

A real server, with TLS, keys and its database; light sites (light.py) that have their replies ready, so that the
server is all that is measured: first while all are there and nothing is to be done, then in the rounds of a run.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .measure import ROOT, environment, memory_mb
from .options import Options
from .rows import Row
from .show import note

if TYPE_CHECKING:
    from fedtailor.flower.deployment import Deployment

SITES = (10, 50, 200)
BESIDE = 25  # sites in a process
IDLE = 30.0  # seconds
ROUNDS = 4
PATIENCE = 900.0


def children(pid: int) -> list[int]:
    """Of any of its threads."""
    return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until(what: Callable[[], object], told: Callable[[], str]) -> None:
    ends = time.monotonic() + PATIENCE
    while not what():
        if time.monotonic() > ends:
            raise RuntimeError(f"not within {PATIENCE:.0f} s: {told()}")
        time.sleep(0.2)


@contextmanager
def processes(commands: list[list[str]], folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("ab") as log:
        started = [subprocess.Popen(words, env=environment(**quiet), stdout=log, stderr=log) for words in commands]
    try:
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def measured(count: int, rounds: int) -> Row:
    sys.path[:0] = [str(ROOT / "tests" / "flower")]
    from deployed import free_ports  # type: ignore[import-not-found]

    from fedtailor.flower.board import Board
    from fedtailor.flower.deployment import Deployment
    from fedtailor.flower.init import init

    folder = Path(tempfile.mkdtemp())
    home, log = folder / "fed", folder / "log"
    init(home, count, ["127.0.0.1"], *free_ports(2))
    deployment = Deployment(home)
    command = [sys.executable, "-c", "from fedtailor.cli import main; main()", "flower", "server", str(home)]
    with processes([command], folder) as (server,):
        until(lambda: Board.read(deployment.folder), log.read_text)
        (gate,) = children(server.pid)
        light = [
            [sys.executable, "-m", "benchmarks.light", str(home), str(first), str(min(first + BESIDE, count))]
            for first in range(0, count, BESIDE)
        ]
        with processes(light, folder):
            until(lambda: online(deployment) == count, log.read_text)
            cpu, began = [cpu_seconds(pid) for pid in (server.pid, gate)], time.perf_counter()
            time.sleep(IDLE)
            seconds = time.perf_counter() - began
            idle = [(cpu_seconds(pid) - before) / seconds for pid, before in zip((server.pid, gate), cpu, strict=True)]
            return in_rounds(deployment, count, rounds, server.pid, gate, idle)


def online(deployment: Deployment) -> int:
    from fedtailor.flower.board import Board

    board = Board.read(deployment.folder)
    return sum(board.sites.values()) if board else 0


def in_rounds(deployment: Deployment, count: int, rounds: int, server: int, gate: int, idle: list[float]) -> Row:
    """The first round, with the invitations before it, and the last, with the tests after it, are left out."""
    from fedtailor.cli.arguments import run_of
    from fedtailor.flower.status import rounds_of

    name = deployment.submit(["promptfl", f"rounds={rounds}", f"every={rounds}", "threads=1"], None, run_of)

    def done() -> int:
        return len(rounds_of(deployment, name))

    def told() -> str:
        failure = deployment.runs / name / "failure.txt"
        return failure.read_text() if failure.is_file() else f"{done()} rounds are done"

    until(lambda: done() >= 1, told)
    first, cpu = done(), [cpu_seconds(pid) for pid in (server, gate)]
    until(lambda: done() >= rounds - 1, told)
    last, after = done(), [cpu_seconds(pid) for pid in (server, gate)]
    each = [(now - before) / (last - first) for now, before in zip(after, cpu, strict=True)]
    rows = rounds_of(deployment, name)[first:last]
    peaks = [memory_mb("VmHWM", str(pid)) for pid in (server, gate)]
    answered = statistics.median(len(row["cohort"]) - len(row["dropped"]) for row in rows)
    deployment.done(name)
    more = {
        "idle CPU of the gate, %": round(100 * idle[1], 1),
        "idle CPU of the server, %": round(100 * idle[0], 1),
        "CPU s a round, gate": round(each[1], 2),
        "CPU s a round, server": round(each[0], 2),
        "MB, gate": round(peaks[1]),
        "MB, server": round(peaks[0]),
        "replies a round": answered,
    }
    wall = statistics.median(row["seconds"] for row in rows)
    return Row("sites", "a round over Flower", f"{count} sites", cpu_s=sum(each), wall_s=wall, more=more)


def run(options: Options) -> list[Row]:
    rows = []
    for count in (3,) if options.quick else SITES:
        note(f"sites: {count}")
        rows.append(measured(count, 3 if options.quick else ROUNDS))
        note(f"sites: {rows[-1].more}, {rows[-1].wall_s:.1f} s a round")
    return rows
