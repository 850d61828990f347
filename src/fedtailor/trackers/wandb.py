"""Weights & Biases: offline, below the run folder, unless WANDB_MODE says otherwise; `wandb sync` sends it later."""

import os
import secrets
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nobody is told of crashes either, unless the user says so

import wandb

from .tracker import Tracker


class Wandb(Tracker):
    name = "wandb"
    failures = (OSError, wandb.Error)

    def begin(self, settings: Mapping[str, Any]) -> None:
        self.note.setdefault("run", secrets.token_hex(4))
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedtailor"),
            name=self.folder.name,
            id=self.note["run"],
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=str(self.folder),
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.run.config.update(dict(settings), allow_val_change=True)  # rounds may be others on resuming
        self.run.define_metric("round")
        self.run.define_metric("*", step_metric="round")

    def send(self, round: int, numbers: Mapping[str, float]) -> None:  # noqa: A002
        self.run.log({"round": round, **numbers})

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)
