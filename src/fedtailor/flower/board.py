"""What a server tells of itself in `server/state.json`: written by it, read by `status`, /health and /metrics.

Reading it takes neither torch nor flwr.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

FILE = "state.json"
DOING = {  # by kind of message
    "query.invite": "getting ready",
    "train.keys": "training",
    "train.shares": "training",
    "train.pass": "training",
    "train.open": "training",
    "evaluate.test": "testing",
    "query.model": "giving sites their models",
}


class RunState(BaseModel):
    """Of the run under way."""

    model_config = ConfigDict(frozen=True)
    name: str
    began: str  # this attempt at it
    round: int  # from 1; 0: before the first
    rounds: int
    doing: str = "getting ready"
    round_began: str
    answered: tuple[str, ...] = ()  # to the last message
    awaited: tuple[str, ...] = ()


class Board(BaseModel):
    model_config = ConfigDict(frozen=True)
    at: str
    began: str  # the server
    version: str
    sites: dict[str, bool] = {}  # whether each is online
    versions: dict[str, str] = {}  # of fedtailor, by site, as far as they are known
    run: RunState | None = None

    def write(self, folder: Path) -> None:
        """Whole or not at all, but not forced to disk: it is of no use once the server has ended. And a full disk is no
        reason to end it."""
        part = folder / f"{FILE}.part"
        with suppress(OSError):
            part.write_bytes(self.model_dump_json().encode())
            part.replace(folder / FILE)

    @classmethod
    def read(cls, folder: Path) -> Board | None:
        """None if there is none, or not a whole one."""
        try:
            return cls.model_validate_json((folder / FILE).read_bytes())
        except (OSError, ValidationError):
            return None

    @property
    def age(self) -> float:
        """Seconds."""
        return since(self.at)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def since(moment: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
