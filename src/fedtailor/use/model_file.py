"""The model folder: a tuned model that stands alone, without the data and the run that it comes from.

    model.json            what it is: class names, method, tuner, backbone, preprocessing, clients, calibration, scores
    shared.safetensors    every parameter as the shared model has it
    clients/K.safetensors of client K, those parameters that are not as the shared model has them
    README.md             the model card: the same facts in words

A reader of this version reads folders of this version's format alone. Every file's hash is in model.json.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load

from ..base.documents import read_json
from ..base.errors import UserError, explain, shortened
from ..core.types import Params
from ..evaluation.calibration import Calibration

FORMAT = 1
FOLDER, NOTE, SHARED, CARD = "model", "model.json", "shared.safetensors", "README.md"
AGAIN = "make the folder anew by running the run again"


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BackboneFacts(Strict):
    name: str
    digest: str
    precision: str


Shade = Annotated[float, Field(ge=-100, le=100)]
Spread = Annotated[float, Field(ge=1e-4, le=100)]


class Preprocessing(Strict):
    size: int = Field(ge=1, le=4096)
    mean: tuple[Shade, Shade, Shade]
    std: tuple[Spread, Spread, Spread]
    resize: Literal["bicubic", "bilinear", "late"]


class ClientFacts(Strict):
    name: str
    own: bool  # whether its model is another than the shared one
    predict: Literal["predict", "predict_shared"]  # which of the method's two it is asked by
    file: str = Field(
        "", pattern=r"^(clients/[0-9]+\.safetensors)?$"
    )  # with what differs from the shared parameters; empty: nothing does
    pictures: int | None = None  # that it trained on


class Calibrations(Strict):
    why: str  # in words: by which pictures, or why there is none
    shared: Calibration | None = None
    personal: Calibration | None = None  # one for all clients' own models


class ModelFacts(Strict):
    format: int = FORMAT
    versions: dict[str, str]
    classes: tuple[str, ...] = Field(min_length=1)
    template: str
    method: dict[str, Any]  # its name and settings
    tuner: dict[str, Any]
    local: dict[str, Any]
    seed: int
    rounds: int
    backbone: BackboneFacts
    preprocessing: Preprocessing
    groups: dict[str, tuple[NonNegativeInt, ...]]
    has_shared: bool  # False: the parameters in `shared` are only what clients' own begin from
    without: str = ""  # what this folder lacks, and why
    clients: tuple[ClientFacts, ...]
    calibration: Calibrations
    trained_on: str
    scores: dict[str, Any]
    site: bool = False  # whether it is one site's, and the scores are of that site's own test pictures
    notes: tuple[str, ...] = ()
    files: dict[str, str]  # sha256 of each

    @model_validator(mode="after")
    def fits(self) -> Self:
        if "{}" not in self.template or re.sub("[^{}]", "", self.template) != "{}":
            raise ValueError("template must hold one {} for the class name")
        members = [c for its in self.groups.values() for c in its]
        if not {"head", "mid", "tail"} <= self.groups.keys() or max(members, default=0) >= len(self.classes):
            raise ValueError("groups must be head, mid and tail, of classes by number")
        if not isinstance(self.method.get("name"), str) or not isinstance(self.tuner.get("name"), str):
            raise ValueError("method and tuner must have a name")
        return self


def model_folder(path: Path) -> Path:
    """The model folder that is meant: this one, or that of the run in it."""
    for folder in (path, path / FOLDER):
        if (folder / NOTE).is_file():
            return folder
    if not path.is_dir():
        raise UserError(f"{path} is not a folder; give a run folder or its {FOLDER}/ folder, or a copy of that")
    if (path / "result.json").is_file():
        raise UserError(
            f"{path} has no {FOLDER}/: it was run before there were any (fedtailor run --resume {path} adds one), "
            "or its clients share nothing and keep what is theirs elsewhere"
        )
    if (path / "run.toml").is_file():
        raise UserError(f"{path} is not finished; go on with it: fedtailor run --resume {path}")
    raise UserError(f"{path} has no {NOTE}; give a run folder or its {FOLDER}/ folder, or a copy of that")


def read_facts(folder: Path) -> ModelFacts:
    path, todo = folder / NOTE, f"{AGAIN}, or take another copy"
    document = read_json(path, todo)
    if (found := document.get("format")) != FORMAT:
        raise UserError(f"{path} has the format {shortened(found)}, this version of fedtailor reads {FORMAT}; {AGAIN}")
    try:
        return ModelFacts.model_validate(document)
    except ValidationError as error:
        raise UserError(f"{path} is damaged ({explain(error)}); {todo}") from error


def read_params(folder: Path, file: str, facts: ModelFacts) -> Params:
    path = folder / file
    if not path.is_file():
        raise UserError(f"{path} is missing; copy the whole folder, or ask another client's model or the shared one")
    data = path.read_bytes()
    if facts.files.get(file) != hashlib.sha256(data).hexdigest():
        raise UserError(f"{path} is not as {NOTE} says: it was changed or cut short; take another copy")
    try:
        return dict(load(data))
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); take another copy") from error


def check_shapes(folder: Path, params: Params, first: Params) -> None:
    """Exactly the parameters that the method begins from."""
    problems = [f"{name} is missing" for name in first if name not in params]
    problems += [f"{name} is unknown" for name in params if name not in first]
    pairs = [(name, params[name], first[name]) for name in first if name in params]
    problems += [
        f"{name} is {tuple(got.shape)} in {got.dtype}, should be {tuple(wanted.shape)} in {wanted.dtype}"
        for name, got, wanted in pairs
        if (got.shape, got.dtype) != (wanted.shape, wanted.dtype)
    ]
    problems += [f"{name} is not finite" for name, got, _ in pairs if not torch.isfinite(got).all()]
    if problems:
        raise UserError(f"{folder} does not fit its method and backbone: {'; '.join(problems[:5])}; {AGAIN}")
