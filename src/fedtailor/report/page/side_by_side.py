"""Tables of several runs."""

from __future__ import annotations

from collections.abc import Sequence

from ...evaluation.metrics import METRICS
from ..comparison import Block
from ..figures.record import PARTS
from .facts import PageRun
from .sheets import Cell, Column, Sheet, number, setting, typed


def block_sheet(block: Block, anchor: str) -> Sheet:
    """A part of a comparison's table, as the terminal has it."""
    columns = [Column("row", False), *(Column(name) for name in block.columns)]
    rows = [
        [Cell(title), *(Cell(cell.text, leading(cell.text), cell.mark) for cell in cells)]
        for title, cells in block.lines
    ]
    return Sheet(anchor, block.heading, columns, rows)


def leading(text: str) -> float | None:
    """The number that a cell begins with: 76.65±0.31, 1.2 kB."""
    units = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    try:
        return float(text.partition("±")[0].split()[0].rstrip("*")) * units.get(text.split()[-1], 1)
    except (ValueError, IndexError):
        return None


def run_sheet(runs: Sequence[PageRun], ids: Sequence[str], anchor: str) -> Sheet:
    """All runs of the page, a line each."""
    shown = [name for name, metric in METRICS.items() if metric.compared and name != "balancedness"]
    columns = [Column("run", False), Column("method", False), Column("seed"), Column("status", False)]
    columns += [Column(f"{part} {METRICS[name].heading}") for part in PARTS for name in shown]
    columns += [Column("seconds")]
    rows = []
    for run, place in zip(runs, ids, strict=True):
        seed = run.record.settings["seed"]
        cells = [Cell(run.name, link=f"#{place}"), Cell(run.record.method), Cell(str(seed), seed), Cell(run.status)]
        cells += [number(run.after(part).get(name)) for part in PARTS for name in shown]
        seconds = run.result["seconds"] if run.result else sum(row["seconds"] for row in run.record.rounds)
        rows.append([*cells, Cell(f"{seconds:,.1f}", seconds)])
    return Sheet(anchor, "All runs, accuracy in %", columns, rows)


def differing_sheet(runs: Sequence[PageRun], keys: Sequence[str], anchor: str) -> Sheet:
    columns = [Column("run", False), *(Column(typed(key), False) for key in keys)]
    rows = [[Cell(run.name), *(Cell(setting(run.record.settings.get(key, "–"))) for key in keys)] for run in runs]
    return Sheet(anchor, "Settings in which they differ", columns, rows)
