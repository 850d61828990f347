"""Tuned models that are asked about pictures: loaded once, and kept. Pictures stay in memory, and nowhere else."""

from __future__ import annotations

import io
import math
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from ..base.documents import json_object
from ..base.errors import UserError
from ..base.sizes import size

if TYPE_CHECKING:
    from PIL import Image

    from ..use.model import Prediction, TunedModel

KEPT = 2  # models in memory
BYTES = 20_000_000  # of a picture
PIXELS = 100_000_000
TOP = 5


class Looked(NamedTuple):
    """What one of the models says."""

    title: str
    prediction: Prediction | None
    note: str = ""


class Client(NamedTuple):
    name: str
    own: bool


def clients_of(folder: Path) -> list[Client]:
    """Read without torch: a model folder's list of clients."""
    try:
        noted = json_object((folder / "model" / "model.json").read_bytes())
        return [Client(str(it["name"]), bool(it["own"])) for it in noted["clients"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} has no model that can be used: {error}") from error


def has_model(folder: Path) -> bool:
    return (folder / "model" / "model.json").is_file()


class Models:
    def __init__(self) -> None:
        self.kept: OrderedDict[tuple[Path, int], TunedModel] = OrderedDict()
        self.lock = Lock()  # one question at a time: a model has all cores to itself

    def look(self, folder: Path, body: bytes, client: str | None) -> list[Looked]:
        """Zero-shot CLIP, the shared model, and a client's own."""
        picture = picture_of(body)
        with self.lock:
            model = self.load(folder)
            found = [Looked("Zero-shot CLIP", ask(model, picture, zero_shot=True))]
            if model.facts.has_shared:
                found.append(Looked("Global model", ask(model, picture)))
            else:
                found.append(Looked("Global model", None, model.facts.without))
            if client is not None:
                own = model.has_own(client)
                note = "" if own else "This client has no parameters of its own: the shared model answers."
                title = f"Personal model of {model.clients[model.number(client) or 0]}"
                found.append(Looked(title, ask(model, picture, client), note))
        return found

    def load(self, folder: Path) -> TunedModel:
        from ..use.load import load  # here: it takes torch

        key = folder, (folder / "model" / "model.json").stat().st_mtime_ns if has_model(folder) else 0
        if key not in self.kept:
            self.kept[key] = load(folder)
            if len(self.kept) > KEPT:
                self.kept.popitem(last=False)
        self.kept.move_to_end(key)
        return self.kept[key]


def ask(model: TunedModel, picture: Image.Image, client: str | None = None, zero_shot: bool = False) -> Prediction:
    return model.predict([picture], client, top=min(TOP, len(model.classes)), zero_shot=zero_shot)[0]


def picture_of(body: bytes) -> Image.Image:
    from ..data.pictures import BROKEN, open_picture

    if not body:
        raise UserError("the file is empty; choose a picture")
    try:
        picture = open_picture(io.BytesIO(body))
        if math.prod(picture.size) > PIXELS:
            raise UserError(f"the picture has {math.prod(picture.size):,} pixels; {PIXELS:,} are the most shown here")
        picture.load()
    except BROKEN as error:
        reason = "it is no picture that can be read" if "cannot identify" in str(error) else str(error)
        raise UserError(f"cannot read this file: {reason}; choose a JPEG, PNG, WebP, TIFF or GIF") from error
    return picture


def too_large(count: int) -> UserError:
    return UserError(f"the file has {size(count)} or more; {size(BYTES)} are the most that is taken")
