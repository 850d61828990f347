"""`fedtailor flower site`: a site's own view of the runs that it took part in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from ..base.errors import UserError
from ..base.sizes import size
from ..flower.client import find_policy
from ..remote.client import MODELS
from ..remote.history import budget_of, runs_of
from ..report.tables import percent

HEADINGS = ("zero-shot", "shared", "own")  # of MODELS


def look(home: Path, policy: Path | None = None) -> dict[str, Any]:
    if not (runs := runs_of(home)):
        raise UserError(
            f"{home} has taken part in no run, as far as its log says; give a site's own folder with --home"
        )
    return {"runs": [run.row() for run in runs], "spent": budget_of(home, find_policy(home, policy))}


def runs_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Accuracy is on the site's own test pictures: before, of what all share, and of its own model."""
    models = [Column(heading, justify="right") for heading in HEADINGS]
    table = Table("run", "method", "rounds", "last", "sent", "refused", *models, "model")
    for row in rows:
        refused = ", ".join(f"{times} × {why}" for why, times in row["refused"].items())
        took = f"{len(row['rounds'])}/{row['of'] or '?'}"
        found = [percent(row["scores"].get(model)) for model in MODELS]
        where = "" if row["model"] is None else Path(row["model"]).name
        cells = (
            row["name"],
            row["method"],
            took,
            row["last"][:10],
            size(row["bytes"]),
            refused,
            *found,
            where,
        )
        table.add_row(*(escape(cell) for cell in cells))
    return table


def class_table(rows: Sequence[Mapping[str, Any]], name: str) -> Table:
    """Of one run, by its name or the beginning of its id."""
    found = [row for row in rows if row["name"] == name or row["run"].startswith(name)]
    if not found:
        known = ", ".join(row["name"] for row in rows)
        raise UserError(f"there is no run {name!r} here; there are: {known}")
    if not (classes := found[-1]["scores"].get("per_class")):
        raise UserError(f"of {name} nothing was measured here: no model was kept, or there are no test pictures")
    headings = [Column(heading, justify="right") for heading in ("pictures", *HEADINGS)]
    table = Table("class", *headings, title=f"{name}: accuracy in %, class by class", title_justify="left")
    for each, row in classes.items():
        table.add_row(escape(each), str(row["pictures"]), *(percent(row[model]) for model in MODELS))
    return table


def budget(spent: Mapping[str, Any]) -> str:
    """In words."""
    told = []
    for kind in ("updates", "counts"):
        it = spent[kind]
        if it["releases"]:
            bound = "no bound can be told" if it["epsilon"] is None else f"ε = {it['epsilon']:.3g}"
            allowed = f", {it['limit']:g} allowed" if it["limit"] else ""
            without = f", {it['without_noise']} of them without noise" if it["without_noise"] else ""
            told.append(f"{kind}: {it['releases']} releases{without}; {bound}{allowed}")
    most = spent["orders"]["a_day"]
    told.append(f"{spent['orders']['today']} orders today" + (f" of {most} allowed" if most else ""))
    return " · ".join(told)
