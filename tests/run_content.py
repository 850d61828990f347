"""What two runs that should be one have in common: all that a run folder holds, but for times and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtailor.base.documents import json_object
from fedtailor.runs.checkpoint import LOGS

OF_THE_MACHINE = {"seconds", "peak_rss_mb", "run_dir"}


def read(path: Path) -> dict[str, Any]:
    """A document as it was given to be written."""
    return json_object(path.read_bytes())


def content(folder: Path) -> dict[str, Any]:
    def rows(log: str) -> list[dict[str, Any]]:
        return [plain(json.loads(line)) for line in (folder / log).read_text().splitlines()]

    def plain(document: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in document.items() if key not in OF_THE_MACHINE}

    return {
        "run": (folder / "run.toml").read_bytes(),
        **{log: rows(log) for log in LOGS},
        "state": {p.name: p.read_bytes() for p in (folder / "state").iterdir()},
        "summary": plain(read(folder / "result.json")),
        "data": plain(read(folder / "data.json")),
        "predictions": (folder / "predictions.safetensors").read_bytes(),
        "files": sorted(p.name for p in folder.iterdir() if p.name != ".lock"),
    }
