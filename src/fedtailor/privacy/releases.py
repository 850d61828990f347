"""What the round under way has asked of clients: noted before it is sent, and kept until a checkpoint counts it.

A client answers the same request, made to it in the same state, with the same noise: asked again, as after a crash, it
releases nothing new. So a release is known by its request, and by those that came before it in the round.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ..base.errors import UserError
from ..base.files import write_atomic

FILE = "releases.json"


class Release(NamedTuple):
    of: int  # a client; or how many clients replied together
    kinds: Collection[str]


@dataclass
class Releases:
    file: Path | None = None
    known: dict[str, set[str]] = field(default_factory=dict)  # by pass: what its replies were seen to hold
    round: int = -1
    clients: dict[str, Release] = field(default_factory=dict)  # by request
    cohorts: dict[str, Release] = field(default_factory=dict)  # by the requests to those who replied

    def begin(self, round_: int) -> None:
        """What was noted of another round is counted elsewhere by now."""
        if self.round < 0 and self.file is not None and self.file.exists():
            self.read(self.file)
        if self.round != round_:
            self.round, self.clients, self.cohorts = round_, {}, {}

    def copy(self) -> Releases:
        return replace(self, file=None, clients=dict(self.clients), cohorts=dict(self.cohorts))

    def note(self, asked: Mapping[int, str], replied: Collection[int], kinds: Collection[str]) -> None:
        """`replied`: everyone, as long as it is not known."""
        self.clients |= {request: Release(k, sorted(kinds)) for k, request in asked.items()}
        self.cohorts.pop(together(asked.values()), None)
        self.cohorts[together(asked[k] for k in replied)] = Release(len(replied), sorted(kinds))

    def keep(self) -> None:
        if self.file is not None:
            known = {name: sorted(kinds) for name, kinds in self.known.items()}
            told = {"round": self.round, "known": known, "clients": self.clients, "cohorts": self.cohorts}
            write_atomic(self.file, json.dumps(told).encode())

    def read(self, file: Path) -> None:
        try:
            told = json.loads(file.read_text())
            self.round, self.known = int(told["round"]), {name: set(kinds) for name, kinds in told["known"].items()}
            self.clients, self.cohorts = ({n: Release(*r) for n, r in told[p].items()} for p in ("clients", "cohorts"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{file} is damaged ({error}), so what clients have released is not known") from error


def together(requests: Iterable[str]) -> str:
    return hashlib.sha256("".join(sorted(requests)).encode()).hexdigest()
