"""A reproduced table for the terminal, in Markdown and as CSV: published numbers, measured ones and their difference
on lines of their own. Each measured line says which kind of number it has."""

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

WIDE = 6  # columns of one number side by side
PUBLISHED, DIFFERENCE = "published", "difference"
MEANING = {
    "reproduced": "as printed: the published backbone and data, nothing changed",
    "lab": "our own small CLIPs on real pictures; not to be compared with published numbers",
    "smoke": "the bundled CLIP on drawn pictures, to see that it works; not to be compared with published numbers",
}
Row = dict[str, Any]


class Line(NamedTuple):
    row: str
    kind: str
    texts: list[str]


class Section(NamedTuple):
    title: str
    headings: list[str]
    lines: list[Line]


def sections(summary: Mapping[str, Any]) -> Iterator[Section]:
    """Tables that fit a page: by block, and by column where a cell has several numbers."""
    cells = summary["cells"]
    for block in dict.fromkeys(cell["block"] for cell in cells):
        inside = [cell for cell in cells if cell["block"] == block]
        columns = list(dict.fromkeys(cell["column"] for cell in inside))
        several = max(len(cell["numbers"]) for cell in inside) > 1
        wide = 1 if several else WIDE
        for some in (columns[i : i + wide] for i in range(0, len(columns), wide)):
            title = " · ".join(filter(None, [block, some[0] if several else ""]))
            yield section(title, some, [cell for cell in inside if cell["column"] in some], several)


def section(title: str, columns: list[str], cells: list[Row], several: bool) -> Section:
    rows = list(dict.fromkeys(cell["row"] for cell in cells))
    metrics = {row: [n["metric"] for c in cells if c["row"] == row for n in c["numbers"]] for row in rows}
    alike = len({tuple(dict.fromkeys(names)) for names in metrics.values()}) == 1
    first = [heading(name) for name in dict.fromkeys(metrics[rows[0]])]
    lines: list[Line] = []
    for row in rows:
        own = {cell["column"]: cell for cell in cells if cell["row"] == row}
        name = row if alike else f"{row} ({metrics[row][0].partition('.')[0]})"
        lines += lines_of(name, [own.get(column) for column in columns], len(first))
    return Section(title, first if several else [column or first[0] for column in columns], lines)


def lines_of(name: str, cells: list[Row | None], width: int) -> Iterator[Line]:
    """Published, then a line for every kind of measured number, then the difference; those that have any."""

    def line(kind: str, key: str, only: str | None = None) -> Line:
        texts = []
        for cell in cells:
            numbers = cell["numbers"] if cell and (only is None or cell["kind"] == only) else [{}] * width
            texts += [shown(number, key) for number in numbers]
        return Line(name, kind, texts)

    kinds = dict.fromkeys(cell["kind"] for cell in cells if cell and cell["kind"])
    found = [line(PUBLISHED, "published"), *(line(kind, "measured", kind) for kind in kinds)]
    found += [line(DIFFERENCE, "difference")] if kinds else []
    lines = [one for one in found if any(text != "–" for text in one.texts)]
    yield from lines or [Line(name, "", found[0].texts)]


def shown(number: Mapping[str, Any], key: str) -> str:
    if (value := number.get(key)) is None:
        return "–"
    std = number.get("std") if key == "measured" else None
    return f"{value:+.2f}" if key == "difference" else f"{value:.2f}" + ("" if std is None else f"±{std:.2f}")


def heading(metric: str) -> str:
    part, _, name = metric.partition(".")
    return name if part == "global" else f"{part.replace('_', ' ')} {name}"


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """What the numbers are, what stands in for what, what is missing, what the print leaves open."""
    kinds = dict.fromkeys(cell["kind"] for cell in summary["cells"] if cell["kind"])
    told = [
        f"{kind}: {MEANING.get(kind.partition(',')[0], 'not the print, and no reproduction of it')}" for kind in kinds
    ]
    n = len(summary["seeds"])
    told.append(f"after the last round; {f'mean ± sample standard deviation over {n} seeds' if n > 1 else 'one seed'}")
    other = dict.fromkeys(cell["stands_in"] for cell in summary["cells"] if cell["stands_in"])
    told += [f"in place of the print's: {', '.join(dict.fromkeys(', '.join(other).split(', ')))}"] if other else []
    gone: dict[str, list[str]] = {}
    for cell in summary["cells"]:
        if cell["missing"]:
            gone.setdefault(cell["missing"], []).append(cell["cell"])
    told += [
        f"missing: {why} ({len(names)}: {names[0]}{' …' if len(names) > 1 else ''})" for why, names in gone.items()
    ]
    for line, tuned in summary.get("tuned", {}).items():
        chosen, ends = (" ".join(f"{k}={v}" for k, v in tuned[of].items()) for of in ("chosen", "ends"))
        told.append(
            f"{line}: {chosen}, by {tuned['by']} on validation pictures{f' (at an end: {ends})' if ends else ''}"
        )
    waiting = sum(not cell["kind"] and not cell["missing"] for cell in summary["cells"])
    told += [f"not run yet: {waiting} cells"] if waiting else []
    return told + list(summary["notes"])


def reproduction_table(summary: Mapping[str, Any]) -> RenderableType:
    """For the terminal, from what `fedtailor reproduce --json` prints."""
    parts: list[RenderableType] = [Text(f"{summary['name']}: {summary['title']}", style="bold"), ""]
    for title, headings, lines in sections(summary):
        columns = (Column(name, justify="right") for name in headings)
        table = Table(Column(overflow="fold"), Column(style="dim"), *columns, box=box.SIMPLE_HEAD, show_edge=False)
        for before, line, after in zip([None, *lines], lines, [*lines[1:], None], strict=False):
            name = "" if before and before.row == line.row else line.row
            style, last = "" if line.kind in (PUBLISHED, DIFFERENCE, "") else "bold", not after or after.row != line.row
            table.add_row(Text(name), Text(line.kind), *map(Text, line.texts), style=style, end_section=last)
        parts += [Text(title, style="italic"), table, ""] if title else [table, ""]
    return Group(*parts, *(Text(f"· {remark}", style="dim") for remark in remarks(summary)))


def as_markdown(summary: Mapping[str, Any]) -> str:
    lines = [f"# {summary['paper']}, {summary['name'].partition('/')[2]}: {summary['title']}", ""]
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    lines += [f"* {summary['date']}, {versions}", f"* scale {summary['scale']}: {summary['about_scale']}"]
    lines += [f"* {remark}" for remark in remarks(summary)]
    lines += [f"* `{command}`" for command in summary["plot"]]
    for title, headings, rows in sections(summary):
        lines += ["", f"| {title} | | {' | '.join(headings)} |", "|---|---|" + "---:|" * len(headings)]
        lines += [f"| {line.row} | {line.kind} | {' | '.join(line.texts)} |" for line in rows]
    return "\n".join(lines) + "\n"


def as_csv(summary: Mapping[str, Any]) -> str:
    """A line a number."""
    file = io.StringIO()
    own = ("cell", "block", "row", "column", "kind", "stands_in", "missing")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["recipe", "scale", *own, "metric", "published", "measured", "std", "difference", "seeds"])
    for cell in summary["cells"]:
        for number in cell["numbers"]:
            numbers = [number[key] for key in ("metric", "published", "measured", "std", "difference")]
            seeds = len(summary["seeds"]) if cell["kind"] else 0
            writer.writerow([summary["name"], summary["scale"], *(cell[key] for key in own), *numbers, seeds])
    return file.getvalue()


# --- lists and plans ------------------------------------------------------------------------------------------------


def list_table(recipes: list[dict[str, Any]]) -> RenderableType:
    headings = (
        Column("recipe", no_wrap=True),
        Column("title", ratio=1),
        Column("cells", justify="right"),
        Column("printed"),
    )
    table = Table(*headings, box=box.SIMPLE_HEAD, show_edge=False)
    for one, last in zip(recipes, [{}, *recipes], strict=False):
        if one["paper"] != last.get("paper"):
            table.add_section()
            table.add_row("", Text(one["paper"], style="italic"))
        printed = f"{one['published']} numbers" if one["published"] else "no numbers"
        figure = f", figure {one['figure']}" if one["figure"] else ""
        missing = f"; missing: {'; '.join(one['missing'])}" if one["missing"] else ""
        table.add_row(one["name"], Text(one["title"]), str(one["cells"]), Text(printed + figure + missing))
    return table


def plan_lines(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """For --dry-run: every chosen cell and the command that runs it, as lines that can be copied, with their style."""
    yield f"{plan['name']}: {plan['title']}, at scale {plan['scale']} ({plan['about_scale']})", "bold"
    for cell in plan["cells"]:
        yield f"\n{cell['cell']}", "italic"
        yield cell["missing"] or cell["mean"] or cell["command"], ""
    yield from ((f"\nnot here: {what}: {why}", "yellow") for what, why in plan["lacking"].items())
    yield f"\n{forecast(plan)}", ""


def forecast(plan: Mapping[str, Any]) -> str:
    """How long and how much memory, in words."""
    done, found = plan["finished"], plan["estimate"]
    start = f"cells: {len(plan['cells'])}, seeds: {', '.join(map(str, plan['seeds']))}, runs: {plan['runs']}"
    start += f", {done} of them finished" if done else ""
    if plan["runs"] == done:
        return f"{start}; nothing to run"
    if found is None:
        return f"{start}; no estimate of time and memory without the above"
    low, high = found["seconds"] / found["uncertain"], found["seconds"] * found["uncertain"]
    took = f"about {span(found['seconds'])} ({span(low)} to {span(high)}) on this machine, --jobs {found['jobs']}"
    return f"{start}; {took}, and {found['memory_mb'] / 1000:.1f} GB of memory at least"


def span(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
