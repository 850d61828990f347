"""The format of the records in a run folder: another one is neither continued nor read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..base.errors import UserError

# 2: rounds are counted from 1 in clients.jsonl too, whose pass_name is now pass.
# 3: classes and clients stand in records by name, and the groups of classes in data.json too; logs are hashed.
FORMAT = 3


def check_format(folder: Path, about: Mapping[str, Any]) -> None:
    """`about` is what its run.toml says of the run."""
    if about.get("format") != FORMAT:
        raise UserError(
            f"{folder} has records in format {about.get('format', 1)}, this fedtailor writes format {FORMAT} and reads "
            "no other; run it anew, in a new folder"
        )
