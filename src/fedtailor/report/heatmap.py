"""Which client has how much of which class: a table of classes, and clients × classes as shades."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Column, Table
from rich.text import Text

from ..data.dataset import Indices
from ..data.federation import Federation
from ..data.groups import Groups

ROWS = 40  # more classes or clients than this are summed up
SHADES = "·░▒▓█"  # the first is zero; readable without colour
COLOURS = ("grey37", "#31688e", "#21918c", "#5ec962", "#fde725")


def counts_table(federation: Federation, groups: Groups) -> RenderableType:
    """Totals, then each class with its group and how it is spread over the clients, largest first."""
    dataset, sizes, test_sizes = federation.dataset, federation.sizes, federation.test_sizes
    lines = [
        dataset.name,
        f"{len(dataset.classes)} classes, {federation.clients} clients, "
        f"{sizes.sum()} training and {test_sizes.sum()} test pictures",
        f"pictures per client (min · median · max): train {spread(sizes)}, test {spread(test_sizes)}",
    ]
    if empty := int((sizes == 0).sum()):
        lines.append(f"{empty} client(s) hold no training picture")
    if dataset.train.labels is None:
        return Group(*map(Text, lines), Text("the training pictures have no labels, so there are no class counts"))
    counts, totals = federation.counts, federation.counts.sum(axis=0)
    for name, members in groups.items() if groups.some else ():
        pictures = totals[members].sum()
        lines.append(f"{name}: {len(members)} classes, {pictures} pictures ({pictures / max(totals.sum(), 1):.0%})")
    numbered = (Column(name, justify="right") for name in ("train", "test", "clients", "per client"))
    table = Table("class", *(["group"] if groups.some else []), *numbered, title="classes, largest first")
    test_totals = np.zeros_like(totals) if dataset.test.labels is None else federation.test_counts.sum(axis=0)
    order = np.argsort(-totals, kind="stable")
    for label in order[:ROWS]:
        numbers = totals[label], test_totals[label], (counts[:, label] > 0).sum(), spread(counts[:, label])
        names = dataset.classes[label], *([groups.names[label]] if groups.some else [])
        table.add_row(*names, *map(str, numbers))
    if (more := len(order) - ROWS) > 0:
        table.caption = f"and {more} smaller classes, {totals[order[ROWS:]].sum()} pictures in all"
    return Group(*map(Text, lines), table)


def spread(values: Indices) -> str:
    return f"{values.min()} · {np.median(values):g} · {values.max()}"


@dataclass(frozen=True, eq=False)
class TerminalHeatmap:
    """Clients down, classes across, shades on a log scale; neighbours are summed where there is no room."""

    counts: Indices  # (K, C)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        K, C = self.counts.shape
        margin = len(f"client {K - 1} ")
        room = max(options.max_width - margin, 1)
        per_column, per_row = -(-C // room), -(-K // ROWS)
        cells = binned(binned(self.counts, per_row).T, per_column).T
        wide, top = max(1, min(3, room // cells.shape[1])), max(int(cells.max()), 1)
        for row, level in enumerate(shade(cells, top)):
            blocks = ((SHADES[value] * wide, COLOURS[value]) for value in level)
            yield Text.assemble(f"client {row * per_row}".ljust(margin), *blocks)
        last = f"class {C - 1}".rjust(cells.shape[1] * wide - len("class 0"))
        yield Text(" " * margin + (f"class 0{last}" if last[0] == " " else f"classes 0–{C - 1}"))
        yield legend(top)
        if per_column > 1:
            yield Text(f"each column is the sum of {per_column} classes: {C} do not fit into {room} columns")
        if per_row > 1:
            yield Text(f"each row is the sum of {per_row} clients, named by the first")


def binned(counts: Indices, size: int) -> Indices:
    """Sums of `size` consecutive rows; the last may have fewer."""
    return np.add.reduceat(counts, np.arange(0, len(counts), size), axis=0)


def shade(cells: Indices, top: int) -> NDArray[np.int64]:
    """0 for none, then 1 to 4 in equal steps of log(count)."""
    depth = np.log(np.maximum(cells, 1)) / np.log(top + 1)
    return np.where(cells == 0, 0, 1 + (depth * (len(SHADES) - 1)).astype(np.int64))


def legend(top: int) -> Text:
    """The counts of each shade; a shade that no count has is left out."""
    line = Text(f"{SHADES[0]} none", style=COLOURS[0])
    levels = shade(np.arange(top + 1), top)
    for level in range(1, len(SHADES)):
        if (reached := np.flatnonzero(levels == level)).size:
            span = f"{reached[0]}–{reached[-1]}" if len(reached) > 1 else f"{reached[0]}"
            line.append(f"   {SHADES[level]} {span}", style=COLOURS[level])
    return line


def save_heatmap(counts: Indices, path: Path) -> None:
    """A PNG with clients down and classes across, on a log scale; white is none."""
    from matplotlib.colors import LogNorm  # here: matplotlib takes longer to load than the rest of the verb takes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    K, C = counts.shape
    figure = Figure(figsize=(min(4 + 0.16 * C, 14), min(1.6 + 0.22 * K, 12)), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    shown, norm = np.ma.masked_equal(counts, 0), LogNorm(1, max(int(counts.max()), 2))
    image = axes.imshow(shown, cmap="viridis_r", norm=norm, aspect="auto", interpolation="nearest")
    axes.set(xlabel="class", ylabel="client")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=axes, label="training pictures")
    figure.savefig(path)
