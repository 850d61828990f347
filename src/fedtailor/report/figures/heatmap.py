"""Which client has how much of which class; with clusters, clients stand cluster by cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.errors import UserError
from .record import Row, RunRecord, Table, classes_of, dig
from .style import WIDTH, class_ticks, clipped, unique

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

CLIENTS = 60  # labels on the axis, at most


def table(runs: Sequence[RunRecord]) -> Table:
    """A row for each client and class, in every clustering of the last round that clustered; else all clients once."""
    run = runs[0]
    counts, number = run.data["counts"], {name: k for k, name in enumerate(run.clients)}
    if counts is None:
        raise UserError(f"{run.folder}: only its clients know how many pictures of a class they have, or nobody does")
    order, _, names, _, axis = classes_of(run)
    panels: dict[str, Mapping[str, Any]] = {"all clients": dict.fromkeys(number, "")}
    if rounds := [row for row in run.rounds if dig(row, "diagnostics", "clusters")]:
        last = rounds[-1]
        found = last["diagnostics"]["clusters"]
        panels = {f"{name} clusters, round {last['round']}": of for name, of in found.items()}
    rows: Table = []
    for panel, cluster_of in panels.items():
        for name in sorted(cluster_of, key=lambda name: (cluster_of[name], number[name])):
            held, cluster = counts[number[name]], cluster_of[name]
            client: Row = {"panel": panel, "axis": axis, "client": name, "cluster": cluster, "pictures": sum(held)}
            for c in order:
                share = 100 * held[c] / max(sum(held), 1)
                rows.append({**client, "class": c, "name": names[c], "count": held[c], "share": share})
    return rows


def paint(canvas: Canvas, table: Table) -> None:
    panels = unique(table, "panel")
    parts = {panel: [row for row in table if row["panel"] == panel] for panel in panels}
    tall = max(len(unique(rows, "client")) for rows in parts.values())
    wide = len(unique(table, "class")) > 24  # then panels stand one above the other
    size = (WIDTH, 1.0 + len(panels) * (0.5 + min(0.16 * tall, 5))) if wide else (WIDTH, 1.5 + min(0.17 * tall, 6))
    canvas.set_size_inches(*size)
    shape = (len(panels), 1) if wide else (1, len(panels))
    top, grid = max(row["share"] for row in table), canvas.subplots(*shape, squeeze=False, sharex=wide).ravel()
    for axes, (panel, rows) in zip(grid, parts.items(), strict=True):
        clients = {row["client"]: row for row in rows}
        shares = np.array([row["share"] for row in rows]).reshape(len(clients), -1)
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=top, aspect="auto", interpolation="nearest")
        clusters = [row["cluster"] for row in clients.values()]
        for i in range(1, len(clusters)):
            if clusters[i] != clusters[i - 1]:
                axes.axhline(i - 0.5, color="black", linestyle="--", linewidth=1)
        step = -(-len(clients) // CLIENTS)
        labels = [f"{clipped(name)} ({row['pictures']})" for name, row in clients.items()]
        axes.set_yticks(range(0, len(labels), step), labels[::step])
        axes.set(title=panel, ylabel="client (its pictures)")
        axes.grid(visible=False)
        if axes is grid[-1] or not wide:
            class_ticks(axes, [row["name"] for row in rows[: shares.shape[1]]], rows[0]["axis"])
    canvas.colorbar(image, ax=list(grid), label="of the client's training pictures (%)", shrink=0.8)
