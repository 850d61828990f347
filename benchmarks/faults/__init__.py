"""Bad settings, bad files, bad disks: each is tried on the command line, and ends in a sentence or does no harm.

Nothing is timed. Every command runs in a process of its own, which is ended after a minute, as a hang, and has its
memory bounded. A run goes over three classes of small pictures with the bundled CLIP; what is spoilt is a copy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from ..measure import environment
from ..options import Options
from ..rows import Row
from ..show import note

GOOD = ("a sentence", "the same numbers", "mended, and said", "shown as it is")


def run(options: Options) -> list[Row]:
    """In a process that has nothing else to do: it is copied for each fault."""
    command = [sys.executable, "-m", "benchmarks.faults.ground", *(["--quick"] if options.quick else [])]
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        for line in process.stdout or ():
            group, name, outcome, told = json.loads(line)
            failure = "" if outcome in GOOD else f"{outcome} ({told})"
            rows.append(Row("faults", group, name, more={"outcome": outcome, "told": told[:100]}, failure=failure))
            note(f"faults: {group}, {name}")
    if process.returncode:
        raise RuntimeError("the faults could not be tried")
    return [*rows, *counts(rows)]


def counts(rows: list[Row]) -> list[Row]:
    """How many of each group came to what."""
    made = []
    for group in dict.fromkeys(row.case for row in rows):
        found = Counter(row.more["outcome"] for row in rows if row.case == group)
        told = ", ".join(f"{outcome} {times}" for outcome, times in found.most_common())
        made.append(Row("faults", "in all", group, more={"outcome": f"{sum(found.values())} tried", "told": told}))
    return made
