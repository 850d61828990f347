"""The file that a finished run's numbers are in. Reading it needs no torch."""

from pathlib import Path
from typing import Any

from pydantic import create_model

from ..base.documents import read_json

LAST = 10  # rounds in the mean that CAPT's and FedPuReL's codes print last
PARTS = ("global", "personal")
RESULT = "result.json"
Numbers = dict[str, float | None]  # by metric

# result.json, as far as anybody reads it. It may be of before there was a note.
KINDS: dict[str, Any] = {
    **dict.fromkeys(("method", "tuner", "data", "backbone", "labels", "engine", "version"), str),
    **dict.fromkeys(("seed", "threads", "rounds", "bytes_up", "bytes_down"), int),
    **dict.fromkeys(("seconds", "peak_rss_mb"), float),
    **dict.fromkeys(("zero_shot", "zero_shot_personal", *PARTS, "balanced"), Numbers),
    **dict.fromkeys(("best", f"last{LAST}"), dict[str, Numbers | None]),
    **dict.fromkeys(("pseudo_labels", "privacy"), dict[str, Any] | None),
    **dict.fromkeys(("worst_client", "backdoor"), float | None),
    "never_took_part": list[str],
    "run_dir": str | None,
}
FIELDS: dict[str, Any] = {**{name: (kind, ...) for name, kind in KINDS.items()}, "notes": (list[str], [])}
ResultDocument = create_model("ResultDocument", **FIELDS)


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished run came to."""
    path = folder / RESULT
    return read_json(path, "remove it, and make it again by resuming the run", ResultDocument)
