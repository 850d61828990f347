"""predictions.safetensors: what was said of each test picture in a run's last test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtailor
from fedtailor.base.errors import UserError
from fedtailor.evaluation.metrics import score, score_parts
from fedtailor.runs.predictions import FILE, read_predictions
from remote import RemoteWorld
from world import world


@pytest.mark.parametrize("method", ["zeroshot", "promptfl", "fedpurel", "local"])
def test_they_give_the_result_again(method: str, small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: they are of another round or other pictures than result.json, or lack a part."""
    more = {"method.T_p": 2} if method == "fedpurel" else {}
    made = fedtailor.run(method, {**small, **more}, out=tmp_path / "run")
    found = read_predictions(tmp_path / "run")
    assert found is not None
    shared = score(found.label[: len(found.shared)], found.shared, found.groups)
    clients = score_parts(found.label[found.picture], found.personal, found.owner, 3, found.groups).mean()
    for part, again in (("global", shared), ("personal", clients)):
        rounded = {name: None if value is None else round(value, 4) for name, value in again.values.items()}
        assert rounded == made.summary[part]
    assert (tmp_path / "run" / FILE).stat().st_size < 1000
    assert found.same_pictures(found)


def test_a_stopped_run_has_them_too(small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: a run that was stopped after its last round, before its result, never has any."""
    whole = fedtailor.run("promptfl", small, out=tmp_path / "run")
    before = (tmp_path / "run" / FILE).read_bytes()
    (tmp_path / "run" / "result.json").unlink()
    assert fedtailor.resume(tmp_path / "run").summary["global"] == whole.summary["global"]
    assert (tmp_path / "run" / FILE).read_bytes() == before


def test_remote_clients_keep_theirs(tmp_path: Path) -> None:
    """Broken: an engine that knows no prediction leaves a file as if it did."""
    experiment = world("fedavg", "head")
    engine = RemoteWorld(experiment, tmp_path).engine()
    assert engine.evaluate(experiment, experiment.job.first_server()).said is None
    assert read_predictions(tmp_path) is None


def test_other_pictures(small: dict[str, Any], tmp_path: Path) -> None:
    """Broken: runs of two federations are compared picture by picture."""
    for seed in (0, 1):
        fedtailor.run("zeroshot", small, seed=seed, out=tmp_path / str(seed))
    one, two = (read_predictions(tmp_path / str(seed)) for seed in (0, 1))
    assert one is not None
    assert two is not None
    assert np.array_equal(one.label, two.label)
    assert not one.same_pictures(two)
    (tmp_path / "0" / FILE).write_bytes(b"x")
    with pytest.raises(UserError, match="is damaged"):
        read_predictions(tmp_path / "0")
