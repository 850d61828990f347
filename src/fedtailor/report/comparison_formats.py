"""A comparison as text: Markdown, LaTeX, CSV."""

import csv
import io
import json
import re
from collections.abc import Iterator
from typing import Any

from .comparison import Block, blocks, caption, difference_blocks, difference_notes, tuning_blocks, tuning_notes

LATEX = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}
MARKDOWN = {"best": "**%s**", "second": "<u>%s</u>", "": "%s"}
SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--",
    "−": "$-$", "<": "$<$", ">": "$>$", "|": r"\textbar{}", **{c: f"\\{c}" for c in "&%$#_{}"},
}  # fmt: skip
COSTS = ("worst_client", "bytes_up", "bytes_down", "seconds")


def markdown(summary: dict[str, Any]) -> str:
    """A page, with command, versions and settings."""
    points = summary.get("points", [summary])
    same = [f"{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in summary["same"].items()]
    lines = [
        f"# {summary['same'].get('data', 'comparison')}: {', '.join(row['title'] for row in points[0]['rows'])}",
        "",
        f"* {summary['date']}: `{summary['command']}`",
        "* " + ", ".join(f"{name} {version}" for name, version in summary["versions"].items()),
        f"* seeds {', '.join(map(str, summary['seeds']))}, and for every row `{' '.join(same)}`",
        *(f"* {note}" for note in summary.get("notes", [])),
        "",
        f"{caption(summary)}.",
    ]
    lines += [line for block in blocks(summary) for line in markdown_block(block)]
    for notes, more in ((tuning_notes, tuning_blocks), (difference_notes, difference_blocks)):
        lines += [f"\n{line}." for line in notes(summary)]
        lines += [line for block in more(summary) for line in markdown_block(block)]
    return "\n".join(lines) + "\n"


def markdown_block(block: Block) -> list[str]:
    lines = ["", f"| {block.heading} | {' | '.join(block.columns)} |", "|---|" + "---:|" * len(block.columns)]
    for title, cells in block.lines:
        texts = [title.replace("|", r"\|"), *(MARKDOWN[cell.mark] % cell.text for cell in cells)]
        lines.append(f"| {' | '.join(texts)} |")
    return lines


def latex(summary: dict[str, Any]) -> str:
    r"""A table environment for each block; needs \usepackage{booktabs}."""
    told = [caption(summary), *summary.get("notes", []), *tuning_notes(summary), *difference_notes(summary)]
    lines = [f"% {summary['command']}", *(f"% {line}" for line in told)]
    for block in [*blocks(summary), *difference_blocks(summary)]:
        lines += [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(block.heading)}}}",
            rf"\begin{{tabular}}{{l{'r' * len(block.columns)}}}",
            r"\toprule",
            " & ".join(["", *map(escape, block.columns)]).strip() + r" \\",
            r"\midrule",
        ]
        for title, cells in block.lines:
            texts = [escape(title), *(LATEX[cell.mark] % escape(re.sub("^-", "−", cell.text)) for cell in cells)]
            lines.append(" & ".join(texts) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def escape(text: str) -> str:
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def as_csv(summary: dict[str, Any]) -> str:
    """A line for each point, row, part and metric."""
    out, axes = io.StringIO(), list(summary.get("axes", {}))
    told = ["row", "part", "metric", "n", "mean", "std", "against", "difference", "low", "high", "interval"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*axes, *told])
    for point in summary.get("points", [summary]):
        writer.writerows([*point.get("at", {}).values(), *line] for line in csv_lines(point))
    return out.getvalue()


def csv_lines(point: dict[str, Any]) -> Iterator[list[Any]]:
    found = point["differences"] or {"against": "", "rows": {}}
    for row in point["rows"]:
        title, n, its = row["title"], len(row["seeds"]), found["rows"].get(row["title"])
        for part in ("global", "personal"):
            for metric, spread in row[part].items():
                other = [found["against"], *its[part][metric].values(), its["interval"]] if its else [None] * 5
                yield [title, part, metric, n, *spread.values(), *other]
        yield from ([title, "", cost, n, *row[cost].values(), *[None] * 5] for cost in COSTS)


FORMATS = {"md": markdown, "csv": as_csv, "tex": latex}  # by the ending of the file
