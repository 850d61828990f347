"""Two runs side by side against one alone: the CPU seconds that each takes, whole processes, from start to end.

Work that waits well takes as many CPU seconds beside another as alone; work whose threads spin while they wait for each
other takes more, since a thread that spins holds the core which the one it waits for would need.

own          as `fedtailor run` does it: a client a thread, threads that sleep while they wait (OMP_WAIT_POLICY=PASSIVE)
passive, 2   the same policy, but two threads within each matrix product, one client after the other
active, 2    two threads within each matrix product, which spin (OMP_WAIT_POLICY=ACTIVE): what torch does by itself

It is fair since all are the same run of the same command with the same settings, alone and beside in turns; pictures
have been encoded before. CPU seconds are the system's own count for each process, its start and imports included.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .measure import Cost, environment, spent
from .options import Options
from .rows import Row, figures, median
from .show import note

ALONE = "import fedtailor.simulation.local as l; l.side_by_side = lambda work, *how, **more: [do() for do in work]; "
MAIN = "from fedtailor.cli import main; main()"
WAYS = {  # policy, and what is run
    "own": ("", MAIN),
    "passive, 2": ("PASSIVE", ALONE + MAIN),
    "active, 2": ("ACTIVE", ALONE + MAIN),
}
RUN = ("run", "promptfl", "clients=20", "threads=2", "--quiet")


def launch(way: str, many: int, settings: tuple[str, ...], folder: Path) -> list[Cost]:
    """So many of the same run at once."""
    policy, code = WAYS[way]
    env = environment()
    env.pop("OMP_WAIT_POLICY", None)
    env |= {"OMP_WAIT_POLICY": policy} if policy else {}
    with tempfile.TemporaryDirectory(dir=folder) as name:
        outs = [f"--out={Path(name) / str(i)}" for i in range(many)]
        return spent([[sys.executable, "-c", code, *RUN, *settings, out] for out in outs], folder, env)


def run(options: Options) -> list[Row]:
    rounds = 1 if options.quick else 30
    settings = (f"rounds={rounds}", f"every={rounds}")
    ways = ["own"] if options.quick else list(WAYS)
    found: dict[tuple[str, int], list[dict[str, float]]] = {(way, many): [] for way in ways for many in (1, 2)}
    with tempfile.TemporaryDirectory() as name:
        note("beside: encoding pictures, once")
        launch("own", 1, ("rounds=1", "every=1"), Path(name))
        for again in range(options.times):
            for way, many in found:
                note(f"beside: {way}, {many} at once, {again + 1} of {options.times}")
                found[way, many] += [vars(cost) for cost in launch(way, many, settings, Path(name))]
    rows = []
    for (way, many), costs in found.items():
        more = {"of alone": median(costs, "cpu_s") / median(found[way, 1], "cpu_s")}
        rows.append(Row("beside", way, "alone" if many == 1 else "beside another", **figures(costs), more=more))
    return rows
