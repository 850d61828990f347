"""After how many rounds the server aggregates, and what it thinks of each choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .record import RunRecord, Table, dig
from .style import LINES, WIDTH, unique

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def table(runs: Sequence[RunRecord]) -> Table:
    """Of one run: choices have no mean."""
    found: Table = []
    for row in runs[0].rounds:
        if seen := dig(row, "diagnostics", "bandit"):
            chosen, common = seen["arms"][-1], {"aggregated": seen["aggregated"], "reward": seen["reward"]}
            for arm, value in seen["values"].items():
                own = {"arm": int(arm), "chosen": int(arm) == chosen, "value": value, "pulls": seen["pulls"][arm]}
                found.append({"round": row["round"], **own, **common})
    return found


def paint(canvas: Canvas, table: Table) -> None:
    canvas.set_size_inches(WIDTH, 3.6)
    choices, values = canvas.subplots(2, 1, sharex=True, height_ratios=(2, 3))
    arms = unique(table, "arm")
    chosen = [row for row in table if row["chosen"]]
    choices.plot([row["round"] for row in chosen], [row["arm"] for row in chosen], color="0.6", linewidth=0.8, zorder=1)
    for done, face, name in ((True, "black", "aggregated"), (False, "white", "not in this round")):
        some = [row for row in chosen if row["aggregated"] == done]
        places = [row["round"] for row in some], [row["arm"] for row in some]
        choices.scatter(*places, s=22, facecolor=face, edgecolor="black", label=name, zorder=2)
    choices.set_yticks(arms)
    choices.set(ylabel="chosen arm:\naggregate every\n… rounds", ylim=(min(arms) - 0.5, max(arms) + 0.5))
    choices.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    for arm, style in zip(arms, LINES * len(arms), strict=False):
        rows = [row for row in table if row["arm"] == arm]
        every = max(1, len(rows) // 12)
        values.plot(
            [r["round"] for r in rows], [r["value"] for r in rows], label=f"every {arm}", markevery=every, **style
        )
    values.set(xlabel="round", ylabel="value of the arm")
    values.xaxis.get_major_locator().set_params(integer=True)
    values.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
