"""A federation of processes on loopback: a server, three sites, TLS and keys, a few pictures each."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.data import open_dataset
from fedtailor.data.dataset import Dataset, Split
from fedtailor.data.export import write_sites
from fedtailor.data.federation import federate
from fedtailor.data.partitions.dirichlet import Dirichlet

SITES, CLASSES = 3, 6
PATIENCE = 240.0
ROGUE = Path(__file__).with_name("rogue.py")
SMALL = {"rounds": 3, "every": 3, "epochs": 1, "batch": 8, "threads": 1, "plan.deadline": 200}


@cache
def few() -> Dataset:
    """Six classes of the drawn pictures, a long tail of them."""
    whole = open_dataset("drawn", None)

    def some(split: Split, most: int) -> Split:
        assert split.labels is not None
        picked = [np.flatnonzero(split.labels == c)[: max(4, most - 2 * c)] for c in range(CLASSES)]
        return split.subset(np.concatenate(picked))

    names = whole.classes[:CLASSES]
    return replace(whole, classes=names, coarse=None, train=some(whole.train, 18), test=some(whole.test, 8))


def write_data(out: Path, unlabelled: bool = False) -> Path:
    write_sites(federate(few(), Dirichlet(alpha=1.0, min_size=5), SITES, seed=1), out, unlabelled)
    return out


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def until(what: Callable[[], Any], patience: float = PATIENCE, told: Callable[[], str] = str) -> Any:
    ends = time.monotonic() + patience
    while not (found := what()):
        if time.monotonic() > ends:
            raise AssertionError(f"not within {patience:.0f} s. {told()}")
        time.sleep(0.2)
    return found


class Deployed:
    hosts: tuple[str, ...] = ("127.0.0.1",)
    listen = "127.0.0.1"

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data, self.home = folder, data, folder / "fed"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        port, control = free_ports(2)
        places = ("--clients", SITES, "--port", port, "--control", control)
        self.fedtailor("flower", "init", self.home, *places, *(f"--host={host}" for host in self.hosts))
        self.port, self.control = port, control

    def at(self, name: str) -> list[str]:
        """What a process's command begins with, by the host that it is on."""
        return []

    def command(self, name: str, *words: object) -> list[str]:
        return [*self.at(name), sys.executable, "-c", "from fedtailor.cli import main; main()", *map(str, words)]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", "FEDTAILOR_CACHE": str(self.folder / "cache")}

    def fedtailor(self, *words: object, fails: bool = False) -> str:
        done = subprocess.run(
            self.command("server", *words), env=self.environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + (done.stderr if fails else "")

    def spawn(self, name: str, *words: object) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(self.command(name, *words), env=self.environment, stdout=log, stderr=log)
        self.processes[name] = process

    def server(self) -> None:
        self.spawn("server", "flower", "server", self.home, "--listen", self.listen)

    def client(self, k: int) -> None:
        where = self.data / f"site-{k}"
        self.spawn(f"client-{k}", "flower", "client", "--home", self.home, "--client", k, "--data", where)

    def rogue(self, k: int, fault: str) -> None:
        """A site that goes wrong."""
        home, name = self.home / "clients" / f"client-{k}", f"client-{k}"
        words = [sys.executable, str(ROGUE), str(home), str(self.data / f"site-{k}"), fault]
        with (self.folder / f"rogue-{k}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(words, env=self.environment, stdout=log, stderr=log)

    def start(self) -> None:
        self.server()
        for k in range(SITES):
            self.client(k)
        self.online(SITES)

    def online(self, count: int) -> None:
        def there() -> bool:
            sites = self.status()["sites"]
            return sum(site["state"] == "online" for site in sites) >= count

        until(there, told=self.logs)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.fedtailor("flower", "status", self.home, "--json"))
        return found

    def run(self, name: str, method: str, **settings: object) -> dict[str, Any]:
        """To its end; the summary."""
        self.ask(name, method, **settings)
        return self.finished(name)

    def ask(self, name: str, method: str, **settings: object) -> None:
        small = {**SMALL, "data": f"folder:{self.data / 'server'}", **settings}
        words = [f"{key}={value}" for key, value in small.items()]
        self.fedtailor("flower", "run", self.home, method, *words, "--name", name, "--detach")

    def finished(self, name: str) -> dict[str, Any]:
        result = self.runs / name / "result.json"
        until(lambda: result.is_file() or (self.runs / name / "failure.txt").is_file(), told=self.logs)
        assert result.is_file(), (self.runs / name / "failure.txt").read_text() + self.logs()
        until(lambda: not (self.home / "server" / "queue" / f"{name}.toml").is_file())
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    @property
    def runs(self) -> Path:
        return self.home / "server" / "runs"

    def rows(self, name: str, log: str = "rounds") -> list[dict[str, Any]]:
        file = self.runs / name / f"{log}.jsonl"
        return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.is_file() else []

    def kill(self, name: str, and_children: bool = True) -> None:
        """As if the power had failed: process and children at once."""
        process = self.processes.pop(name)
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False
        )
        children = [int(pid) for pid in found.stdout.split()] if and_children else []
        for pid in (process.pid, *children):
            os.kill(pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))
