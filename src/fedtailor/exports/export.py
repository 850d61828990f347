"""`fedtailor.export`: a tuned model as something that other libraries read, whole and tried, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ..base.errors import UserError, unknown
from ..base.progress import ProgressFn
from ..base.rng import generator
from ..base.version import __version__
from ..report.model_card import backbone as name_of
from ..use.load import load
from ..use.model import TunedModel
from . import FORMATS
from .base import CannotExpress, Format, difference, write_json
from .card import card
from .source import Source

TOLERANCE = 1e-4  # of logits, relative to those above 1
TRIED = 4  # random pictures
WORK = "exporting"


@dataclass(frozen=True)
class Exported:
    folder: Path
    to: str
    whose: str
    files: dict[str, int]  # bytes of each
    difference: float  # of logits, read back, on random pictures
    notes: tuple[str, ...]


def export(
    model: TunedModel | str | PathLike[str],
    to: str,
    out: str | PathLike[str],
    *,
    client: int | str | None = None,
    backbone: str = "",
    progress: ProgressFn | None = None,
) -> Exported:
    """Write a model, loaded or by its folder, into a new folder, for one of FORMATS."""
    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    folder, tell = Path(out), progress or (lambda *_: None)
    check_empty(folder)
    tell(WORK, 0, 3)
    tuned = model if isinstance(model, TunedModel) else load(model, backbone=backbone, device="cpu")
    source = Source.of(tuned, client)
    made = expressed(source, to)
    with whole(folder) as part:
        tell(WORK, 1, 3)
        made.write(part)
        write_json(part / "export.json", document(source, to, made))
        tell(WORK, 2, 3)
        off = tried(source, made, part)
        told = tuple(notes(source, made))
        (part / "README.md").write_text(card(source, to, made, part, [tried_note(off), *told]))
        files = {path.name: path.stat().st_size for path in sorted(part.iterdir())}
    tell(WORK, 3, 3)
    return Exported(folder, to, source.whose, files, off, told)


def expressed(source: Source, to: str) -> Format:
    try:
        return FORMATS[to](source)
    except CannotExpress as error:
        able = [name for name in FORMATS if name != to and can_be(source, name)]
        instead = (
            f"it can be exported to {', '.join(able)}" if able else "no format has it; use it by fedtailor predict"
        )
        raise UserError(f"{source.title} cannot be exported to {to}: {error}; {instead}") from error


def can_be(source: Source, to: str) -> bool:
    try:
        FORMATS[to](source)
    except CannotExpress:
        return False
    return True


def check_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already, and not an empty folder; give another --out (out=), or remove it")


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A folder beside it that is moved there when all is done, and removed if it is not."""
    place = folder.absolute()
    part = place.with_name(f"{place.name}.part")
    try:
        part.mkdir(parents=True)
    except FileExistsError as error:
        raise UserError(f"{part} is there: of an export that goes on, or was killed; then remove it") from error
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error}") from error
    try:
        yield part
        check_empty(folder)
        if folder.exists():
            folder.rmdir()
        part.rename(folder)
    except (OSError, SafetensorError) as error:  # a full disk, say
        raise UserError(f"cannot write {folder}, nothing is kept: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def tried(source: Source, made: Format, folder: Path) -> float:
    """How far logits are from fedtailor's own, by what was written; one picture and several at a time."""
    size = source.facts.preprocessing.size
    pixels = torch.randn(TRIED, 3, size, size, generator=generator(0, "export", "pixels"))
    wanted = source.logits(pixels)
    off = max(difference(made.answer(folder, some), wanted[: len(some)]) for some in (pixels[:1], pixels))
    if not off <= TOLERANCE:
        raise UserError(
            f"what was written answers otherwise than fedtailor: logits differ by {off:.2g}, more than {TOLERANCE:g} "
            "is not let through, so nothing is kept; please report this, with the versions that fedtailor doctor tells"
        )
    return off


def tried_note(off: float) -> str:
    return f"read back, its logits differ from fedtailor's by at most {off:.1g} (random pictures, relative above 1)"


def document(source: Source, to: str, made: Format) -> dict[str, Any]:
    """export.json: what a program needs to know."""
    facts, calibrated = source.facts, source.tuned.calibration(source.client)
    return {
        "format": to,
        "fedtailor": __version__,
        "classes": source.tuned.classes,
        "template": facts.template,
        "preprocessing": facts.preprocessing.model_dump(),
        "temperature": source.tuned.temperature(source.client),
        "unsure_below": calibrated.unsure if calibrated else None,
        "method": facts.method["name"],
        "tuner": facts.tuner["name"],
        "client": None if source.client is None else source.tuned.clients[source.client],
        "clip": {"name": name_of(facts), "hash": facts.backbone.digest, "inside": made.has_clip},
        **made.facts(),
    }


def notes(source: Source, made: Format) -> Iterator[str]:
    if source.client is not None and not source.tuned.has_own(source.client):
        yield f"{source.tuned.clients[source.client]} has no parameters of its own: this is the shared model"
    if (precision := source.facts.backbone.precision) != "fp32":
        yield f"exported in fp32, the run was in {precision}: logits differ from the run's by rounding"
    yield from made.notes()
