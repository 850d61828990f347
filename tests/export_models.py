"""Model folders of any method and tuner, with random parameters in place of trained ones: what a run would write."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from fedtailor.base.rng import generator
from fedtailor.clip.load import load
from fedtailor.core.model import Model
from fedtailor.core.types import Params
from fedtailor.evaluation.calibration import Calibration
from fedtailor.settings.run import plain
from fedtailor.use.model_file import BackboneFacts, Calibrations, ClientFacts, ModelFacts, Preprocessing
from world import NAMES, settings

TEMPLATE = "a photo of a {}."
FIT = Calibration(
    temperature=1.5, unsure=0.3, pictures=9, accuracy=50.0, ece_before=9.0, ece_after=4.0, unsure_share=20.0,
    unsure_right=30.0,
)  # fmt: skip


def model_folder(folder: Path, clip: Path, method: str, tuner: str, calibrated: bool = False, **more: Any) -> Path:
    """A shared model and that of a client 0, in which every parameter is another; client 1 has none of its own."""
    run, checkpoint = settings(method, tuner, **more), load(str(clip))
    model = Model.of(checkpoint, run.tuner.value, NAMES, TEMPLATE, reads=run.method.value.reads)
    first = run.method.value.init(model, generator(run.seed, "init"))
    rng, files = torch.Generator().manual_seed(1), {}
    (folder / "clients").mkdir(parents=True)

    def write(name: str, theta: Params) -> None:
        data = save({key: value.contiguous() for key, value in theta.items()})
        files[name] = hashlib.sha256(data).hexdigest()
        (folder / name).write_bytes(data)

    for name in ("shared.safetensors", "clients/0.safetensors"):
        write(name, {key: value + 0.1 * torch.randn(value.shape, generator=rng) for key, value in first.items()})
    mine = ClientFacts(name="north", own=True, predict="predict", file="clients/0.safetensors", pictures=9)
    fit = FIT if calibrated else None
    facts = ModelFacts(
        versions={"fedtailor": "0"}, classes=NAMES, template=TEMPLATE, method=plain(run.method), tuner=plain(run.tuner),
        local=plain(run.local), seed=run.seed, rounds=3,
        backbone=BackboneFacts(name=str(clip), digest=checkpoint.digest, precision="fp32"),
        preprocessing=Preprocessing(size=32, mean=checkpoint.mean, std=checkpoint.std, resize="bicubic"),
        groups=dict.fromkeys(("head", "mid", "tail"), ()), has_shared=True,
        clients=(mine, ClientFacts(name="south", own=False, predict="predict_shared")),
        calibration=Calibrations(why="fitted", shared=fit, personal=fit), trained_on="nothing",
        scores={key: {} for key in ("zero_shot", "global", "zero_shot_personal", "personal")}, files=files,
    )  # fmt: skip
    (folder / "model.json").write_text(json.dumps(facts.model_dump(mode="json")))
    return folder
