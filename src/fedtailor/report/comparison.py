"""A comparison as blocks of cells, whatever the format, and as tables for the terminal.

The best of a column is bold, the second underlined. Over one axis or more, a block's columns are the points of the last
axis, and there is a block for each point of the others.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from ..base.sizes import size
from ..evaluation.metrics import METRICS
from ..settings.keys import GIVEN
from .tables import percent, shown_metrics

SECTIONS = {
    "global": "global: one model for all, on the whole test set",
    "personal": "personal: each client's model on its own part of it, mean over clients",
}
MEANING = {
    "last": "after the last round",
    "last10": "mean of the last ten tested rounds",
    "best": "in the best round of each run, which the test set chose: a record, not a result",
}
MARKS = {"best": "bold", "second": "underline", "": ""}
Row = dict[str, Any]


class Cell(NamedTuple):
    text: str
    mark: str = ""  # a key of MARKS


class Block(NamedTuple):
    heading: str
    columns: list[str]
    lines: list[tuple[str, list[Cell]]]  # a title and its cells


def comparison_table(summary: dict[str, Any], differences: bool = False) -> RenderableType:
    """For the terminal, from what `fedtailor compare --json` prints."""
    parts: list[RenderableType] = []
    for block in [*blocks(summary), *(difference_blocks(summary) if differences else [])]:
        headings = Column(overflow="fold"), *(Column(name, justify="right", no_wrap=True) for name in block.columns)
        table = Table(*headings, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for title, cells in block.lines:
            table.add_row(Text(title), *(Text.assemble((cell.text, MARKS[cell.mark])) for cell in cells))
        parts += [Text(block.heading, style="italic"), table, ""]
    told = [caption(summary), *tuning_notes(summary), *(difference_notes(summary) if differences else [])]
    notes = (Text(note, style="yellow") for note in summary.get("notes", []))  # an older table.json has none
    return Group(*parts, *notes, *(Text(line, style="dim") for line in told))


def blocks(summary: dict[str, Any]) -> list[Block]:
    if "points" in summary:
        return [block for part in SECTIONS for block in over_axes(summary, part)]
    return [*(section(summary, part) for part in SECTIONS), costs(summary["rows"])]


def section(summary: dict[str, Any], part: str) -> Block:
    """Every row's metrics: the best first by the column to sort by, if any, else in the order given."""
    shown = compared(summary["rows"])
    cells = [column([row[part][name] for row in summary["rows"]]) for name in shown]
    lines = [(row["title"], list(its)) for row, *its in zip(summary["rows"], *cells, strict=True)]
    by = summary.get("sort")
    order = best_first(summary["rows"], lambda row: row[part][by]["mean"]) if by else range(len(lines))
    return Block(SECTIONS[part], [METRICS[name].heading for name in shown], [lines[i] for i in order])


def compared(rows: Sequence[Row]) -> list[str]:
    """The columns of both parts."""
    means = ({name: it["mean"] for name, it in row[part].items()} for row in rows for part in SECTIONS)
    return [name for name in shown_metrics(means) if METRICS[name].compared]


def over_axes(summary: dict[str, Any], part: str) -> list[Block]:
    """One metric, at every point of the axes."""
    *others, last = summary["axes"]
    values, metric, by = summary["axes"][last], summary["show"], summary.get("sort")
    rows = [point["rows"] for point in summary["points"]]  # the last axis runs fastest
    titles = [row["title"] for row in rows[0]]

    def mean_over_points(i: int) -> float | None:
        known = [v for here in rows if (v := here[i][part][by]["mean"]) is not None]
        return fmean(known) if known else None

    order, made = best_first(range(len(titles)), mean_over_points) if by else range(len(titles)), []
    for i, here in enumerate(product(*(summary["axes"][key] for key in others))):
        at = place({"at": dict(zip(others, here, strict=True))})
        shown = rows[i * len(values) : (i + 1) * len(values)]
        columns = [column([row[part][metric] for row in point]) for point in shown]
        lines = [(title, list(cells)) for title, *cells in zip(titles, *columns, strict=True)]
        heading = f"{part} {METRICS[metric].heading}{at}, by {last}"
        made.append(Block(heading, [str(value) for value in values], [lines[j] for j in order]))
    return made


def costs(rows: Sequence[Row]) -> Block:
    def line(row: Row) -> list[Cell]:
        rounds = row["rounds"]
        sent = [size(row[key]["mean"] / rounds) if rounds else "–" for key in ("bytes_up", "bytes_down")]
        return [Cell(text) for text in (*sent, f"{row['seconds']['mean']:.1f}")]

    return Block("cost", ["up/round", "down/round", "seconds"], [(row["title"], line(row)) for row in rows])


def difference_blocks(summary: dict[str, Any]) -> list[Block]:
    """Each row against the reference; over axes, a block for each point."""
    made = []
    for point in summary.get("points", [summary]):
        if not (found := point["differences"]):
            continue
        shown = compared(point["rows"])
        for part in SECTIONS:
            lines = [(title, [difference(row[part][m]) for m in shown]) for title, row in found["rows"].items()]
            heading = f"differences to {found['against']}, {part}{place(point)}"
            made.append(Block(heading, [METRICS[name].heading for name in shown], lines))
    return made


def tuning_blocks(summary: dict[str, Any]) -> list[Block]:
    """The validation score of every value that was tried."""
    made = []
    for point in summary.get("points", [summary]):
        if not (tuning := point.get("tuning")):
            continue
        tried = {title: {settings(it["values"]): it["score"] for it in row["tried"]} for title, row in tuning.items()}
        columns = list(dict.fromkeys(name for scores in tried.values() for name in scores))
        lines = []
        for title, scores in tried.items():
            chosen = settings(tuning[title]["chosen"])
            cells = [Cell(percent(scores.get(name)), "best" if name == chosen else "") for name in columns]
            lines.append((f"{title}, by {tuning[title]['by']}", cells))
        made.append(Block(f"validation{place(point)}", columns, lines))
    return made


def difference(found: dict[str, float | None]) -> Cell:
    mean, low, high = found["mean"], found["low"], found["high"]
    if mean is None:
        return Cell("–")
    text = f"{round(mean, 2) + 0.0:+.2f}"  # + 0.0: there is no −0.00
    return Cell(
        text if low is None or high is None else f"{text}±{(high - low) / 2:.2f}{'' if low <= 0 <= high else '*'}"
    )


def column(spreads: Sequence[dict[str, float | None]]) -> list[Cell]:
    texts = [percent(s["mean"]) + ("" if s["std"] is None else f"±{s['std']:.2f}") for s in spreads]
    return [Cell(text, mark) for text, mark in zip(texts, marks([s["mean"] for s in spreads]), strict=True)]


def best_first(rows: Sequence[Any], value: Callable[[Any], float | None]) -> list[int]:
    """The order of rows; those without a value come last."""
    values = [-math.inf if (v := value(row)) is None else v for row in rows]
    return sorted(range(len(values)), key=lambda i: -values[i])


def marks(means: Sequence[float | None]) -> list[str]:
    """Numbers that look equal, at two decimals, share a mark."""
    shown = [percent(mean) for mean in means]
    order = sorted({float(text) for text, mean in zip(shown, means, strict=True) if mean is not None}, reverse=True)
    place = {percent(value): mark for value, mark in zip(order, ("best", "second"), strict=False)}
    return [place.get(text, "") for text in shown]


# --- in words -------------------------------------------------------------------------------------------------------


def caption(summary: dict[str, Any]) -> str:
    rows = summary["points"][0]["rows"] if "points" in summary else summary["rows"]
    seeds, each = summary["seeds"], sorted({len(row["seeds"]) for row in rows})
    n = str(each[0]) if len(each) == 1 else f"{each[0]} to {each[-1]}"
    over = f"mean ± sample standard deviation over n = {n} seeds" if n != "1" else f"one seed ({seeds[0]})"
    made = [f"{row['title']} ({row['labels']})" for row in rows if row["labels"] != GIVEN]
    without = f"; trained without the data's labels: {', '.join(made)}" if made else ""
    unequal = f"; not one federation: the rows differ in {', '.join(keys)}" if (keys := summary.get("unequal")) else ""
    what = "Validation" if summary["same"].get("data.validation") else "Test"
    told = f"{what} accuracy in %, {MEANING[summary['number']]}; {over}; best bold, second underlined"
    return f"{told}{without}{unequal}"


def tuning_notes(summary: dict[str, Any]) -> list[str]:
    """What was chosen for each row, and where that is the last of what was tried."""
    told, ends = [], False
    for point in summary.get("points", [summary]):
        chosen = []
        for title, row in point.get("tuning", {}).items():
            last = "".join(f", the {end} {key} tried" for key, end in row["ends"].items())
            chosen.append(f"{title} {settings(row['chosen'])} ({percent(row['score'])}{last})")
            ends = ends or bool(last)
        if chosen:
            told.append(f"Chosen on validation pictures{place(point)}: {'; '.join(chosen)}")
    return [*told, *(["Beyond the last value tried there may be a better one: try more"] if ends else [])]


def place(point: dict[str, Any]) -> str:
    return "".join(f", {key}={value}" for key, value in point.get("at", {}).items())


def settings(values: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())


def difference_notes(summary: dict[str, Any]) -> list[str]:
    found = [point["differences"] for point in summary.get("points", [summary]) if point["differences"]]
    kinds = {row["interval"] for it in found for row in it["rows"].values()}
    told = {
        "seeds": "Differences are paired over seeds; ± is a 95% t-interval",
        "pictures": "± is a 95% bootstrap over test pictures, of these runs: it does not say what other seeds would do",
        None: "No interval: that takes three seeds, or the last round of runs that have kept their predictions",
    }
    marked = ["An asterisk: the interval excludes 0"] if kinds - {None} else []
    return [text for kind, text in told.items() if kind in kinds] + marked
