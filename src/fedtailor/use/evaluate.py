"""A tuned model on a folder of labelled pictures, beside CLIP as it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..base.errors import UserError
from ..base.progress import ProgressFn
from ..data.dataset import FileImages, Indices
from ..data.datasets import own
from ..data.groups import Groups
from ..evaluation.calibration import calibration_error, confidence
from ..evaluation.metrics import Score, score
from .class_names import spelled
from .model import TunedModel
from .pictures import Pictures


@dataclass(frozen=True)
class Evaluated:
    counts: tuple[int, ...]  # (C,) pictures of each class
    tuned: Score
    zero_shot: Score
    ece: float  # of the tuned model, in percent


def evaluate(
    model: TunedModel, folder: Path, client: int | str | None = None, progress: ProgressFn | None = None
) -> Evaluated:
    """On all labelled pictures of a folder or a CSV table: those of its test part if there is one, else all."""
    paths, labels = labelled(model, folder)
    pictures = Pictures(paths)
    found = list(model.answers(pictures, client, beside=True, progress=progress))
    if pictures.failed:
        raise UserError(next(iter(pictures.failed.values())))
    C = len(model.classes)
    groups = Groups.of_known(model.facts.groups, C)
    logits = torch.cat([answers.logits for answers in found]).double()
    plain = torch.cat([answers.zero_shot for answers in found if answers.zero_shot is not None])
    said, untuned = (values.argmax(dim=1).numpy() for values in (logits, plain))
    sure = confidence(logits, model.temperature(client))
    return Evaluated(
        tuple(np.bincount(labels, minlength=C).tolist()),
        score(labels, said, groups),
        score(labels, untuned, groups),
        calibration_error(sure, said == labels),
    )


def labelled(model: TunedModel, folder: Path) -> tuple[list[Path], Indices]:
    """The pictures, and the model's number of each one's class."""
    if folder.suffix.lower() == ".csv":
        dataset, divided = own.table(folder, must_train=False), any(row.split for row in own.read_rows(folder))
    else:
        dataset, divided = own.folder(folder, must_train=False), bool(own.layout_of(folder).splits)
    parts = [dataset.test] if divided and len(dataset.test) else [dataset.train, dataset.test]
    files = [part.images for part in parts if isinstance(part.images, FileImages)]
    paths = [images.root / path for images in files for path in images.paths]
    if not paths or any(part.labels is None for part in parts):
        raise UserError(f"{folder} has no labelled pictures; put them into one folder per class")
    labels = np.concatenate([np.asarray(part.labels) for part in parts])
    numbers = {spelled(name): c for c, name in enumerate(model.classes)}
    used = [dataset.classes[c] for c in np.unique(labels)]
    if strangers := [name for name in used if spelled(name) not in numbers]:
        raise UserError(
            f"{folder} has classes that the model does not know: {', '.join(strangers)}; it knows "
            f"{', '.join(model.classes)}. Rename the folders, take them out, or add the classes with --classes"
        )
    places = np.array([numbers.get(spelled(name), -1) for name in dataset.classes], np.int64)
    return paths, places[labels]
