"""A client that stays against one that is started for each message: seconds of a round over Flower, side by side.

    python benchmarks/warm.py [ROUNDS]

A server and three sites on loopback with a few pictures each, one site a round. Sites 0 and 2 are `fedtailor flower
client`, whose process keeps CLIP loaded; site 1 is the same behind Flower's own SuperNode, which starts a process for
each message. Which site a round has is drawn, so the two kinds alternate. The first round of each site, in which its
pictures are encoded, is left out.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / "flower")]
from deployed import SITES, Deployed, free_ports, write_data  # noqa: E402


def own_supernode(there: Deployed, k: int) -> subprocess.Popen[bytes]:
    home = there.home / "clients" / f"client-{k}"
    words = [
        *("flower-supernode", "--superlink", f"127.0.0.1:{there.port}", "--root-certificates", str(home / "ca.pem")),
        *("--auth-supernode-private-key", str(home / "client.key"), "--port", str(free_ports(1)[0])),
        *("--node-config", f'home="{home}" data="folder:{there.data / f"site-{k}"}"'),
    ]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home / "flwr")}
    with (there.folder / f"client-{k}.log").open("ab") as log:
        return subprocess.Popen(words, env={**there.environment, **quiet}, stdout=log, stderr=log)


def main(rounds: int) -> None:
    folder = Path(tempfile.mkdtemp())
    there = Deployed(folder, write_data(folder / "data"))
    there.server()
    there.client(0)
    there.client(2)
    there.processes["client-1"] = own_supernode(there, 1)
    try:
        there.online(SITES)
        few = {"rounds": rounds, "every": rounds, "fraction": 0.34, "plan.deadline": 600}
        there.ask("warm", "promptfl", **few)
        there.finished("warm")
    finally:
        there.stop()
    seconds: dict[str, list[float]] = {"stays": [], "started anew": []}
    met: set[int] = set()
    for row in there.rows("warm")[:-1]:  # the last one has the tests in it
        (k,) = row["cohort"]
        if k in met:
            seconds["started anew" if k == 1 else "stays"].append(row["seconds"])
        met.add(k)
    medians = {name: round(statistics.median(values), 2) for name, values in seconds.items()}
    counts = {name: len(values) for name, values in seconds.items()}
    ratio = round(medians["started anew"] / medians["stays"], 1)
    print(json.dumps({"seconds a round": medians, "rounds": counts, "ratio": ratio, "cores": os.cpu_count()}, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
