"""`python -m benchmarks [PART …]`: measure, show a table for each part, write all rows to one JSON file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import fedtailor  # noqa: F401  # before torch: it says how OpenMP's threads wait

from .options import SHAPE_NAMES, Options
from .registry import PARTS
from .rows import Row
from .show import PROGRESS, machine, note, show, write


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What is fast, measured.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; none: all")
    parser.add_argument("--list", action="store_true", help="what parts there are")
    parser.add_argument("--quick", action="store_true", help="small shapes, once: whether it works, in seconds")
    parser.add_argument("--json", type=Path, default=Options.json, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--shape", choices=SHAPE_NAMES, default=Options.shape, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=Options.threads, help="of torch's in a step (default: 1)")
    parser.add_argument("--repeats", type=int, default=Options.repeats, help="of which the median counts (default: 3)")
    parser.add_argument("--engines", default="", metavar="A,B", help="of `round`; default: all in this process")
    parser.add_argument("--cases", default="", metavar="A,B", help="of `step`, `round` and `attacks`, only these")
    given = parser.parse_args(words)
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if given.threads < 1 or given.repeats < 1:
        parser.error("--threads and --repeats must be at least 1")
    return given


def check(engines: Sequence[str], cases: Sequence[str]) -> None:
    """Names that nobody knows would measure nothing, and say nothing."""
    from fedtailor.settings.engines import ENGINES

    from .attacks import SUBJECTS
    from .cases import CASES
    from .round import METHODS

    for what, names, known in (("engine", engines, ENGINES), ("case", cases, {*CASES, *METHODS, *SUBJECTS})):
        if unknown := [name for name in names if name not in known]:
            raise SystemExit(f"no {what} {', '.join(unknown)}; there are {', '.join(sorted(known))}")


def main(words: Sequence[str] | None = None) -> int:
    given = arguments(sys.argv[1:] if words is None else words)
    if given.list:
        for name, part in PARTS.items():
            print(f"{name:8} {part.idea}{' (needs Flower)' if part.flower else ''}")
        return 0
    engines, cases = (tuple(name for name in text.split(",") if name) for text in (given.engines, given.cases))
    check(engines, cases)
    options = Options(given.quick, given.shape, given.threads, given.repeats, engines, cases, given.json.absolute())
    rows, failed, about = list[Row](), list[str](), machine()
    for name in given.parts or PARTS:
        if PARTS[name].flower and find_spec("flwr") is None:
            note(f"{name}: left out, Flower is not installed")
            continue
        try:
            found = PARTS[name].run(options)
        except Exception:  # the other parts need not be lost
            failed.append(name)
            PROGRESS.print_exception()
            continue
        show(name, PARTS[name].idea, found)
        rows += found
        write(options, about, rows)  # after each part, so that what is measured is kept
    note(f"rows: {options.json}")
    wrong = [row for row in rows if row.wrong]
    for row in wrong:
        note(f"{row.part}, {row.case}: {row.variant} is {row.why}")
    for name in failed:
        note(f"{name} failed")
    return int(bool(wrong or failed))


if __name__ == "__main__":
    sys.exit(main())
