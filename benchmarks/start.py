"""What has to be waited for: commands, imports, the first round of the default run, and the whole of it.

Whole processes, so Python's own start is in every figure; `python -c pass` is there to tell how much that is. Each is
begun several times in turns. The default run is `fedtailor run` (CAPT, drawn-lt, the bundled CLIP, all cores): with an
empty cache, in which pictures are drawn and encoded, and with a full one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .measure import Cost, environment, spent
from .options import Options
from .rows import Row, figures
from .show import note

MAIN = "from fedtailor.cli import main; main()"
STOP = """
import os
from fedtailor.runs.execute import Callback, run
class Stop(Callback):
    def on_round(self, record, rounds):
        os._exit(0)
run(None, {"rounds": 40}, out="OUT", callback=Stop())
"""
COMMANDS = {
    "python -c pass": ["pass"],
    "fedtailor --help": [MAIN, "--help"],
    "fedtailor list methods": [MAIN, "list", "methods"],
    "fedtailor show capt": [MAIN, "show", "capt"],
    "import fedtailor": ["import fedtailor"],
    "import torch": ["import torch"],
    "import fedtailor.runs.execute": ["import fedtailor.runs.execute"],
}
RUNS = {"to the first round": [STOP], "whole": [MAIN, "run", "--quiet", "--out=OUT"]}


def one(words: list[str], folder: Path, cache: Path | None) -> Cost:
    with tempfile.TemporaryDirectory(dir=folder) as out:
        given = [word.replace("OUT", str(Path(out) / "run")) for word in words]
        env = environment(**({"FEDTAILOR_CACHE": str(cache)} if cache else {}))
        return spent([[sys.executable, "-c", *given]], folder, env)[0]


def run(options: Options) -> list[Row]:
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for again in range(options.times):
            note(f"start: commands, {again + 1} of {options.times}")
            for command, words in COMMANDS.items():
                found.setdefault((command, "a process"), []).append(vars(one(words, folder, None)))
            if options.quick:
                continue
            for case, words in RUNS.items():
                cache = folder / f"cache-{case[:5]}-{again}"
                for variant in ("empty cache", "full cache"):  # the second finds what the first has left
                    note(f"start: default run, {case}, {variant}, {again + 1} of {options.times}")
                    key = f"default run, {case}", variant
                    found.setdefault(key, []).append(vars(one(words, folder, cache)))
    return [Row("start", case, variant, **figures(costs)) for (case, variant), costs in found.items()]
