"""Trackers: what rounds.jsonl has, in TensorBoard, Weights & Biases or MLflow too. No run needs any of them."""

from importlib import import_module
from importlib.util import find_spec

from ..base.errors import UserError, unknown
from ..runs.callback import Together

TRACKERS = {"tensorboard": "TensorBoard", "wandb": "Wandb", "mlflow": "Mlflow"}  # module and extra: its class


def track(*names: str) -> Together:
    """A callback that sends every round of a run to these trackers.

    fedtailor.run("promptfl", rounds=5, out="runs/mine", callback=fedtailor.track("tensorboard", "mlflow"))
    """
    for name in names:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)
        if find_spec(name) is None:
            raise UserError(f"to track by {name} needs a package more: pip install 'fedtailor[{name}]'")
    return Together(*(getattr(import_module(f".{name}", __name__), TRACKERS[name])() for name in dict.fromkeys(names)))
