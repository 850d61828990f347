"""`fedtailor predict`"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from ..base.errors import UserError
from ..base.terminal import Terminal
from .arguments import Json, Quiet
from .output import emit, waiting, write

if TYPE_CHECKING:
    from ..use.model import Prediction, TunedModel

ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="a run folder, its model/ folder, or a copy of that")]
Client = Annotated[str | None, typer.Option(help="ask this client's own model, by number or name; default: the shared")]
Classes = Annotated[str, typer.Option(metavar="NAME,NAME", help="further classes, known by their names alone")]
Clip = Annotated[str, typer.Option("--backbone", metavar="PATH", help="where the model's CLIP is, if it has moved")]


def predict(
    model: ModelPath,
    pictures: Annotated[list[Path], typer.Argument(metavar="IMAGE|FOLDER...", help="pictures, or folders of them")],
    client: Client = None,
    top: Annotated[int, typer.Option(min=1, help="how many classes of each picture")] = 5,
    zero_shot: Annotated[bool, typer.Option("--zero-shot", help="ask CLIP as it is, untuned")] = False,
    unsure: Annotated[
        bool, typer.Option("--unsure", help="mark answers that are more likely wrong than right")
    ] = False,
    classes: Classes = "",
    backbone: Clip = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="print CSV: picture, rank, class, probability, unsure")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what is in pictures: fedtailor predict runs/mine photo.jpg --client 3"""
    if as_csv and as_json:
        raise UserError("--csv and --json are given; choose one")
    tuned = open_model(model, classes, backbone, quiet)
    if unsure and (zero_shot or tuned.calibration(client) is None):
        raise UserError(
            "--unsure needs a calibrated model, and zero-shot CLIP is none; leave --zero-shot out"
            if zero_shot
            else "--unsure needs a calibrated model, and this one is not; run it with calibrate=0.1"
        )
    told = [] if zero_shot else whose(tuned, client)
    found, failed = look(tuned, pictures, client, top, zero_shot, quiet)
    stderr = Terminal(stderr=True, soft_wrap=True, highlight=False)
    for line in failed.values():
        stderr.print(line, style="yellow")
    if as_json:
        emit(document(tuned, found, failed, "zero-shot" if zero_shot else client, told))
    elif as_csv:
        write(as_csv_text(found))
    else:
        for line in told:
            stderr.print(line)
        if found:
            Terminal().print(table(found, unsure))
    if not found:
        raise UserError(f"none of {len(failed)} pictures could be read")


def open_model(path: Path, classes: str, backbone: str, quiet: bool) -> TunedModel:
    with waiting("starting", quiet):
        from ..use.load import load

        tuned = load(path, backbone=backbone)
        return tuned.with_classes(classes.split(",")) if classes else tuned


def whose(tuned: TunedModel, client: str | None) -> list[str]:
    """What a user should know of the model that answers."""
    if client is None or tuned.has_own(client):
        return []
    name = tuned.clients[tuned.number(client) or 0]
    return [f"{name} has no parameters of its own: this is the shared model"]


def look(
    tuned: TunedModel, paths: list[Path], client: str | None, top: int, zero_shot: bool, quiet: bool
) -> tuple[list[Prediction], dict[str, str]]:
    """The predictions, and what could not be read."""
    from ..use.pictures import Pictures, find_pictures
    from .progress import Late

    given = Pictures(find_pictures(paths))
    found: list[Prediction] = []
    T = tuned.temperature(client, zero_shot)
    with Late(enabled=not quiet) as progress:
        for answers in tuned.answers(given, client, zero_shot, progress=progress.on_progress):
            names = [str(given.items[i]) for i in answers.indices]
            found += tuned.name_them(names, (answers.logits / T).softmax(dim=1).numpy(), client, top, zero_shot)
    return found, {str(given.items[i]): why for i, why in sorted(given.failed.items())}


def table(found: list[Prediction], unsure: bool) -> Table:
    picture, share = Column("picture", overflow="fold"), Column("%", justify="right")
    made = Table(picture, "class", share, *(["sure?"] if unsure else []), "or else")
    for it in found:
        mark = [] if not unsure else ["no"] if it.unsure else ["yes"]
        rest = ", ".join(f"{name} {100 * p:.1f}" for name, p in it.classes[1:])
        cells = [it.picture, it.label, f"{100 * it.confidence:.1f}", *mark, rest]
        made.add_row(*cells, style="yellow" if mark == ["no"] else None)
    return made


def as_csv_text(found: list[Prediction]) -> str:
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(("picture", "rank", "class", "probability", "unsure"))
    for it in found:
        unsure = "" if it.unsure is None else str(it.unsure).lower()
        out.writerows((it.picture, rank, name, f"{p:.6f}", unsure) for rank, (name, p) in enumerate(it.classes, 1))
    return text.getvalue()


def document(
    tuned: TunedModel, found: list[Prediction], failed: dict[str, str], by: str | None, told: list[str]
) -> dict[str, Any]:
    return {
        "model": str(tuned.folder),
        "by": "shared" if by is None else by,
        "notes": told,
        "predictions": [
            {
                "picture": it.picture,
                "classes": [{"class": name, "probability": round(p, 6)} for name, p in it.classes],
                "unsure": it.unsure,
            }
            for it in found
        ],
        "unread": [{"picture": path, "why": why} for path, why in failed.items()],
    }
