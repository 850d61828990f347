"""MLflow: where MLFLOW_TRACKING_URI says, else in MLflow's own default, mlflow.db in the working folder."""

import logging
import os
import re
import time
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nobody is told anything, unless the user says so

from mlflow import get_tracking_uri
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from .tracker import Tracker

GONE = "RESOURCE_DOES_NOT_EXIST"
MOST, LONGEST = 100, 6000  # parameters or metrics in one request, letters in one of them


class Mlflow(Tracker):
    name = "mlflow"
    failures = (OSError, MlflowException)

    def begin(self, settings: Mapping[str, Any]) -> None:
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells of tables that it makes
        logging.getLogger("alembic").setLevel(logging.WARNING)
        where = os.environ.get("MLFLOW_TRACKING_URI") or self.note.get("uri") or get_tracking_uri()
        self.client = MlflowClient(where)
        params = {allowed(key): str(value)[:LONGEST] for key, value in settings.items()}
        if not self.found():
            self.note.clear()
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedtailor")
            known = self.client.get_experiment_by_name(name)
            there = known.experiment_id if known else self.client.create_experiment(name)
            self.note["run"] = self.client.create_run(there, run_name=self.folder.name).info.run_id
            self.log(params=[Param(key, value) for key, value in params.items()])
        if "MLFLOW_TRACKING_URI" not in os.environ:  # which may hold a password
            self.note["uri"] = where
        self.client.update_run(self.note["run"], status="RUNNING")
        # A parameter stays as it was when the run began: what is another now, as rounds may be, is told by a tag.
        was = self.client.get_run(self.note["run"]).data.params
        for key, value in params.items():
            if was.get(key) != value:
                self.client.set_tag(self.note["run"], key, value)

    def found(self) -> bool:
        """Whether the run that the note names is there."""
        try:
            return "run" in self.note and self.client.get_run(self.note["run"]).info.lifecycle_stage == "active"
        except MlflowException as error:
            if error.error_code != GONE:
                raise
            return False

    def send(self, round: int, numbers: Mapping[str, float]) -> None:  # noqa: A002
        now = int(time.time() * 1000)
        self.log(metrics=[Metric(allowed(key), value, now, round) for key, value in numbers.items()])

    def log(self, **what: list[Any]) -> None:
        for kind, items in what.items():
            for i in range(0, len(items), MOST):
                self.client.log_batch(self.note["run"], **{kind: items[i : i + MOST]})

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.note["run"], "FINISHED" if finished else "KILLED")


def allowed(key: str) -> str:
    """In letters that MLflow takes in a name."""
    return re.sub(r"[^\w.\- /:]", "_", key)
