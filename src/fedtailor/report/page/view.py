"""Everything that the templates show of a run, and of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...base.sizes import size
from ..comparison import blocks, caption, difference_blocks, difference_notes, tuning_blocks, tuning_notes
from ..figures.record import PARTS, differing
from ..tables import percent, pseudo_line
from .charts import Chart, Sample, curves
from .facts import Page, PageRun, Worst
from .grids import MOST, Grid, confusion_grid, holdings_grid, model_of
from .sheets import (
    Sheet,
    class_sheet,
    confused_sheet,
    cost_sheet,
    curve_sheet,
    gain,
    score_sheet,
    setting_sheet,
    site_sheet,
)
from .side_by_side import block_sheet, differing_sheet, run_sheet

MEANT = {"global": "one model for all", "personal": "each client's own model"}


class Tile(NamedTuple):
    name: str
    value: str
    note: str
    mark: str = ""


class Confusion(NamedTuple):
    model: str
    grid: Grid | None
    pairs: Sheet


class Curves(NamedTuple):
    legend: Sequence[Sample]
    charts: Sequence[Chart]


class RunView(NamedTuple):
    anchor: str
    run: PageRun
    facts: Sequence[tuple[str, str]]
    tiles: Sequence[Tile]
    scores: Sheet
    curves: Curves
    tests: Sheet
    classes: Sheet
    sites: Sheet
    holdings: Grid | None
    confusions: Sequence[Confusion]
    most: int
    worst: Worst | None
    costs: Sheet
    settings: Sheet
    notes: Sequence[str]


def view_run(run: PageRun, anchor: str) -> RunView:
    def named(part: str) -> str:
        return f"{anchor}-{part}"

    parts = run.answered.confusion if run.answered else {}
    confusions = [
        Confusion(
            model_of(part), confusion_grid(run, part, named(f"{part}-matrix")),
            confused_sheet(run, part, named(f"{part}-pairs")),
        )
        for part in parts
    ]  # fmt: skip
    return RunView(
        anchor, run, facts_of(run), tiles_of(run), score_sheet(run, named("scores")), Curves(*curves([run])),
        curve_sheet(run, named("tests")),
        class_sheet(run, named("classes")), site_sheet(run, named("sites")), holdings_grid(run, named("holdings")),
        confusions, MOST, run.worst, cost_sheet(run, named("cost")), setting_sheet(run, named("settings")), run.notes,
    )  # fmt: skip


def facts_of(run: PageRun) -> list[tuple[str, str]]:
    settings, result = run.record.settings, run.result
    told = {
        "method": run.record.method,
        "tuner": settings["tuner.name"],
        "labels": settings["labels.name"],
        "data": settings["data.name"],
        "partition": settings["data.partition.name"],
        "CLIP": settings["backbone.name"],
        "clients": f"{settings['clients']}, {float(settings['fraction']):.0%} of them a round",
        "rounds": settings["rounds"],
        "seed": settings["seed"],
        "engine": f"{result['engine']}, {result['threads']} thread(s)" if result else settings["engine"],
        "fedtailor": run.about.get("version", "unknown"),
        "folder": run.record.folder,
    }
    if result and result["pseudo_labels"]:
        told["pseudo-labels"] = pseudo_line(result["labels"], result["pseudo_labels"])
    return [(key, str(value)) for key, value in told.items()]


def tiles_of(run: PageRun) -> list[Tile]:
    made = []
    for part in PARTS:
        before, after = run.before(part).get("overall"), run.after(part).get("overall")
        by = gain(after, before)
        note = f"{by.text} to zero-shot {percent(before)}" if before is not None and after is not None else MEANT[part]
        made.append(Tile(f"{part} accuracy", percent(after) + ("" if after is None else " %"), note, by.mark))
    if run.last:
        own = {name: value for name, value in run.last["clients"].items() if value is not None}
        if own:
            worst = min(own, key=lambda name: own[name])
            made.append(Tile("worst client", f"{percent(own[worst])} %", f"client {worst}"))
    sent = sum(row["bytes_up"] + row["bytes_down"] for row in run.record.rounds)
    made.append(Tile("sent in all", size(sent), f"{run.done} rounds"))
    return made


class PageView(NamedTuple):
    title: str
    runs: Sequence[RunView]
    notes: Sequence[str]
    comparison: Sequence[Sheet] = ()
    caption: Sequence[str] = ()
    all_runs: Sheet | None = None
    curves: Curves | None = None
    differing: Sheet | None = None


def view_page(page: Page) -> PageView:
    """Of one run, that run; of several, what they have in common first."""
    runs = page.runs
    views = [view_run(run, f"run-{i}") for i, run in enumerate(runs, 1)]
    if len(runs) == 1 and page.comparison is None:
        return PageView(page.title or runs[0].title, views, page.notes)
    sheets, told = compared(page.comparison) if page.comparison else ([], [])
    keys = differing([run.record for run in runs])
    return PageView(
        page.title or f"{len(runs)} runs", views, page.notes, sheets, told,
        run_sheet(runs, [view.anchor for view in views], "runs"), Curves(*curves(runs)),
        differing_sheet(runs, keys, "differ") if keys else None,
    )  # fmt: skip


def compared(summary: Any) -> tuple[list[Sheet], list[str]]:
    """A comparison's table in parts, and what is to be said of it."""
    found = [*blocks(summary), *difference_blocks(summary), *tuning_blocks(summary)]
    told = [caption(summary), *summary.get("notes", []), *tuning_notes(summary), *difference_notes(summary)]
    return [block_sheet(block, f"block-{i}") for i, block in enumerate(found, 1)], told
