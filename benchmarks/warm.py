"""A client that stays against one that is started for each message: seconds of a round over Flower, side by side.

A server and three sites on loopback with a few pictures each, one site a round. Sites 0 and 2 are `fedtailor flower
client`, whose process keeps CLIP loaded; site 1 is the same behind Flower's own SuperNode, which starts a process for
each message. It is fair since which site a round has is drawn, so the two kinds alternate in one run. The first round
of each site, in which its pictures are encoded, is left out, and so is the last, which has the tests in it.

Then the same run by `flwr run` of our app, on a SuperLink and SuperNodes that Flower's own commands start.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .measure import ROOT
from .options import Options
from .rows import Row
from .show import note

if TYPE_CHECKING:
    from deployed import Deployed  # type: ignore[import-not-found]


def own_supernode(there: Deployed, k: int) -> subprocess.Popen[bytes]:
    from deployed import free_ports

    home = there.home / "clients" / f"client-{k}"
    words = [
        *("flower-supernode", "--superlink", f"127.0.0.1:{there.port}", "--root-certificates", str(home / "ca.pem")),
        *("--auth-supernode-private-key", str(home / "client.key"), "--port", str(free_ports(1)[0])),
        *("--node-config", f'home="{home}" data="folder:{there.data / f"site-{k}"}"'),
    ]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home / "flwr")}
    with (there.folder / f"client-{k}.log").open("ab") as log:
        return subprocess.Popen(words, env={**there.environment, **quiet}, stdout=log, stderr=log)


def after_the_first(rows: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """The site and the seconds of each round that counts here."""
    met: set[str] = set()
    found = []
    for row in rows[:-1]:
        (name,) = row["cohort"]
        if name in met:
            found.append((name, row["seconds"]))
        met.add(name)
    return found


def seconds_of(rounds: int) -> dict[str, list[float]]:
    from deployed import SITES, SMALL, Deployed, write_data
    from stock import Stock  # type: ignore[import-not-found]

    folder = Path(tempfile.mkdtemp())
    data, few = write_data(folder / "data"), {"rounds": rounds, "every": rounds, "fraction": 0.34, "plan.deadline": 600}
    there = Deployed(folder, data)
    there.server()
    there.client(0)
    there.client(2)
    there.processes["client-1"] = own_supernode(there, 1)
    try:
        there.online(SITES)
        there.ask("warm", "promptfl", **few)
        there.finished("warm")
    finally:
        there.stop()
    seconds: dict[str, list[float]] = {"started for each message": [], "stays": [], "flwr run": []}
    for name, took in after_the_first(there.rows("warm")):
        seconds["started for each message" if name == "client-1" else "stays"].append(took)
    (folder / "stock").mkdir()
    stock = Stock(folder / "stock", data)
    try:
        settings = {**SMALL, **few, "clients": SITES, "data": f"folder:{data / 'server'}"}
        words = " ".join(["promptfl", *(f"{key}={value}" for key, value in settings.items())])
        told = stock.run(f'settings="{words}" run="cold"')
    finally:
        stock.stop()
    if not (cold := folder / "stock" / "runs" / "cold" / "rounds.jsonl").is_file():
        raise RuntimeError(f"flwr run came to nothing: {told}")
    lines = cold.read_text().splitlines()
    seconds["flwr run"] = [took for _, took in after_the_first([json.loads(line) for line in lines])]
    return seconds


def run(options: Options) -> list[Row]:
    rounds = 10 if options.quick else 20
    sys.path[:0] = [str(ROOT / "tests" / "flower")]
    note(f"warm: {rounds} rounds over Flower, twice")
    seconds = seconds_of(rounds)
    medians = {kind: statistics.median(each) if each else None for kind, each in seconds.items()}
    slow, rows = medians["started for each message"], []
    for kind, middle in medians.items():
        faster = slow / middle if slow and middle else ""
        more = {"rounds": len(seconds[kind]), "wall ×": faster, "all": seconds[kind]}
        rows.append(Row("warm", "a round over Flower", kind, wall_s=middle, more=more))
    return rows
