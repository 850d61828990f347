"""`fedtailor.load`: from a model folder to a model, with everything checked that can be."""

from os import PathLike
from pathlib import Path

from ..base.errors import UserError
from ..base.keys import flat
from ..clip.load import load as load_backbone
from ..settings.run import make_run
from ..simulation.build import find_device
from .model import TunedModel
from .model_file import model_folder, read_facts


def load(path: str | PathLike[str], *, backbone: str = "", device: str = "auto") -> TunedModel:
    """The model of a run folder, or of a model folder wherever it is. `backbone`: where its CLIP is, if elsewhere."""
    folder = model_folder(Path(path))
    facts = read_facts(folder)
    settings = {"method": facts.method, "tuner": facts.tuner, "local": facts.local}
    run = make_run(settings={**flat(settings), "seed": facts.seed})
    try:
        checkpoint = load_backbone(backbone or facts.backbone.name)
    except UserError as error:
        raise UserError(f"{folder} needs its CLIP: {error}; say where it is by --backbone (backbone=)") from error
    if checkpoint.digest != facts.backbone.digest:
        raise UserError(
            f"the CLIP {checkpoint.name} has the hash {checkpoint.digest[:12]}, {folder} was tuned on one with "
            f"{facts.backbone.digest[:12]}, and its parameters fit no other; say where it is by --backbone (backbone=)"
        )
    model = TunedModel(folder, facts, checkpoint, run, find_device(device))
    model.shared  # noqa: B018  # what is wrong with the folder shows here
    return model
