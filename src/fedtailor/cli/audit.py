"""`fedtailor audit`"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from ..base.errors import UserError
from .arguments import Json, Quiet
from .output import display, emit, say, waiting

if TYPE_CHECKING:
    from ..audits.base import Plan, Row

LEAST_TOLD = 60  # seconds; from there on in minutes


def audit(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="a run folder")] = None,
    attacks: Annotated[
        list[str] | None, typer.Option("--attack", metavar="NAME", help="only this one; may be given several times")
    ] = None,
    client: Annotated[str | None, typer.Option(help="attack this client alone, by number or name")] = None,
    start: Annotated[str, typer.Option(help="the parameters that are sent down: first, or last")] = "last",
    steps: Annotated[int | None, typer.Option(min=1, help="of a search; more finds more")] = None,
    pictures: Annotated[int | None, typer.Option(min=1, max=64, help="in the one step that is looked at")] = None,
    tries: Annotated[int | None, typer.Option(min=1, help="clients of whom one step is looked at")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="where to write; default: audit/ in the run")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="which attacks there are")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Attack a run of one's own, to see what can be learned from what it sends: fedtailor audit runs/mine"""
    if list_:
        display(attacks_table())
        return
    if run is None:
        raise UserError("which run? fedtailor audit RUN, or --list for the attacks that there are")
    with waiting("starting", quiet):
        from ..audits.audit import audit as attack
    from .progress import Late

    given = {"steps": steps, "pictures": pictures, "tries": tries}
    settings = {name: value for name, value in given.items() if value is not None}
    with Late(enabled=not quiet) as progress:

        def on_plan(plans: Mapping[str, Plan], left_out: Mapping[str, str]) -> None:
            for line in announced(plans, left_out) if not quiet else []:
                say(line, stderr=True)

        found = attack(
            run, attacks or (), client=client, start=start, out=out, settings=settings,
            progress=progress.on_progress, on_plan=on_plan,
        )  # fmt: skip
    if as_json:
        emit({**found.document, "folder": str(found.folder)})
        return
    for name, finding in found.findings.items():
        display(table(name, finding.table))
        for line in finding.told:
            say(line)
    for name, why in found.document["left_out"].items():
        say(f"{name}: {why}", "yellow")
    say(f"What an attack does not find, a better one may. {found.folder}")


def attacks_table() -> Table:
    from ..audits import AUDITS

    made = Table("name", "what it looks for", show_edge=False)
    for name, kind in AUDITS.items():
        made.add_row(name, kind.idea)
    return made


def announced(plans: Mapping[str, Plan], left_out: Mapping[str, str]) -> list[str]:
    lines = [f"{name}: {plan.what}, about {told(plan.seconds)}" for name, plan in plans.items()]
    return lines + [f"{name}: not done, since {why}" for name, why in left_out.items()]


def told(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < LEAST_TOLD else f"{round(seconds / 60)} min"


def table(name: str, rows: list[Row]) -> Table:
    from ..audits import AUDITS

    heads = list(rows[0]) if rows else []
    numbers = {head for head in heads if any(isinstance(row[head], int | float) for row in rows)}
    columns = [Column(head, justify="right" if head in numbers else "left") for head in heads]
    made = Table(*columns, title=f"{name}: {AUDITS[name].idea}", title_justify="left")
    for row in rows:
        made.add_row(*(cell(row[head]) for head in heads))
    return made


def cell(value: Any) -> str:
    return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
