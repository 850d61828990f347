"""The surest of a run's wrong answers, with their pictures: of data on this machine, and only when asked for."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from ..base.errors import UserError
from ..base.progress import ProgressFn
from ..data.dataset import Indices
from ..evaluation.metrics import Numbers
from ..report.page.facts import Worst, WorstCase
from ..settings.keys import read_document
from ..settings.run import read_toml
from ..simulation.build import deal
from ..use.load import load
from ..use.pictures import Pictures
from .predictions import read_predictions

CASES = 24
LOOKED = 400  # wrong answers that the model is asked about again, at most
SIDE = 128  # pixels of a thumbnail


def worst_cases(folder: Path, progress: ProgressFn | None = None) -> Worst:
    """Which answers are wrong is on record; how sure they were, the model is asked again."""
    said = read_predictions(folder)
    if said is None or not len(said.shared):
        return Worst((), "There are none to show: this run has no shared model whose answers are on record.")
    federation, _ = deal(read_toml(folder / "run.toml"), progress)
    images, noted = federation.dataset.test.images, read_document(folder / "run.toml").get("about", {})
    if images.fingerprint != noted.get("test_data"):
        raise UserError(f"{folder}: the test pictures here are not those of the run; make the page without --pictures")
    wrong = np.flatnonzero(said.shared != said.label)
    asked = wrong if len(wrong) <= LOOKED else np.sort(np.random.default_rng(0).choice(wrong, LOOKED, replace=False))
    pictures = [Image.fromarray(images.read(int(i))) for i in asked]
    sure = confidence(folder, pictures, said.shared[asked], progress)
    names = [name.replace("_", " ") for name in federation.dataset.classes]
    cases = [
        WorstCase(thumbnail(pictures[i]), names[said.label[asked[i]]], names[said.shared[asked[i]]], float(sure[i]))
        for i in np.argsort(-sure, kind="stable")[:CASES]
    ]
    drawn = "" if len(asked) == len(wrong) else f" (of {LOOKED} drawn from them)"
    about = (
        f"{len(wrong):,} of {len(said.label):,} answers of the shared model are wrong; it was surest of these{drawn}."
    )
    return Worst(cases, about)


def confidence(folder: Path, pictures: list[Image.Image], said: Indices, progress: ProgressFn | None) -> Numbers:
    """How probable the model finds what it said."""
    model = load(folder)
    T, sure = model.temperature(None), np.zeros(len(said))
    for answers in model.answers(Pictures(pictures), progress=progress):
        shares = (answers.logits / T).softmax(dim=1).numpy()
        sure[answers.indices] = shares[np.arange(len(shares)), said[answers.indices]]
    return sure


def thumbnail(picture: Image.Image) -> bytes:
    small, out = picture.copy(), io.BytesIO()
    small.thumbnail((SIDE, SIDE))
    small.save(out, "PNG", optimize=True)
    return out.getvalue()
