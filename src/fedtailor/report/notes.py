"""What a reader of a run's numbers should know, in sentences."""

from collections.abc import Mapping
from typing import Any

SOME = 10  # clients that are named


def notes(summary: Mapping[str, Any], leak: bool, validation: float) -> list[str]:
    """Of a result.json: what the run noted itself, who never took part, and what it was tested on."""
    told = list(summary.get("notes", []))
    if absent := summary.get("never_took_part"):
        which = ", ".join(absent[:SOME])
        more = ", …" if len(absent) > SOME else ""
        told.append(
            f"{len(absent)} client(s) never took part ({which}{more}); more rounds or a larger fraction reach them"
        )
    if leak:
        told.append("the server had the test set to validate on (data.server=test): no fair result")
    if validation:
        part = f"{validation:g} of the training set (data.validation)"
        told.append(f"tested on validation pictures, {part}, not on the test set")
    return told
