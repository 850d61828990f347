"""The faster of the engines in this process, as measured on runs like this one."""

from collections.abc import Mapping
from pathlib import Path

from ..client.job import ClientState
from . import local, stacked
from .build import Experiment


def engine_name(experiment: Experiment) -> str:
    """The run's engine; of auto, the one that it stands for."""
    if experiment.run.engine != "auto":
        return experiment.run.engine
    return "stacked" if stacked.pays(experiment) else "local"


def make_engine(
    experiment: Experiment, clients: Mapping[int, ClientState] | None, folder: Path | None
) -> local.LocalEngine:
    make = stacked.make_engine if stacked.pays(experiment) else local.make_engine
    return make(experiment, clients, folder)
