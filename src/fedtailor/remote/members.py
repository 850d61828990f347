"""Who takes part in a run, from which round to which: kept in its folder, so that it is the same whenever a round is
made again.

A client's number is its place in the list, and is nobody else's afterwards. A change is written down before the round
that it holds from, and holds for that round however often it is made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from ..base.documents import read_json, sealed
from ..base.files import write_atomic
from ..settings.run import Run
from ..simulation.build import Change

FILE = "members.json"


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Member(Strict):
    name: Annotated[str, Field(max_length=200)]
    rounds: tuple[PositiveInt, ...]  # from the first it takes part, from the second not any more, from the third again

    def present(self, t: int) -> bool:
        """In round t, from 1."""
        return sum(change <= t for change in self.rounds) % 2 == 1

    def changed(self, t: int) -> Member:
        """From round t on it is the other way round."""
        before = self.rounds[:-1] if self.rounds[-1:] == (t,) else (*self.rounds, t)
        return self.model_copy(update={"rounds": before})


class Members(Strict):
    members: tuple[Member, ...]

    @classmethod
    def first(cls, names: Iterable[str]) -> Members:
        return cls(members=tuple(Member(name=name, rounds=(1,)) for name in names))

    @classmethod
    def read(cls, folder: Path) -> Members | None:
        """None where nothing was written yet."""
        path = folder / FILE
        return cls.model_validate(read_json(path, kind=cls)) if path.is_file() else None

    def write(self, folder: Path) -> None:
        write_atomic(folder / FILE, sealed(self.model_dump(mode="json")))

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]

    def present(self, t: int) -> list[str]:
        return [member.name for member in self.members if member.present(t)]

    def gone(self, t: int) -> frozenset[int]:
        return frozenset(k for k, member in enumerate(self.members) if not member.present(t))

    def from_round(self, t: int, there: Collection[str]) -> Members:
        """With these clients from round t on, and no others. What was decided for a later round, by a run that has gone
        back since, stays."""
        if any(change > t for member in self.members for change in member.rounds):
            return self
        kept = [m if m.present(t) == (m.name in there) else m.changed(t) for m in self.members]
        new = [Member(name=name, rounds=(t,)) for name in there if name not in self.names]
        return Members(members=(*kept, *new))

    def without(self, clients: Collection[int], t: int) -> Members:
        """From round t on these take no part."""
        return self.from_round(t, [m.name for k, m in enumerate(self.members) if m.present(t) and k not in clients])

    def newcomers(self, t: int) -> set[int]:
        """Who takes part from round t on, and not before; nobody in the first round, which all begin together."""
        return {k for k, member in enumerate(self.members) if t > 1 and t in member.rounds and member.present(t)}

    def changes(self) -> dict[int, Change]:
        """By the round that they hold from; those who were there at the beginning did not come."""
        rounds = sorted({change for member in self.members for change in member.rounds} - {1})
        return {t: Change(*(self.in_both(t, came) for came in (True, False))) for t in rounds}

    def in_both(self, t: int, came: bool) -> list[str]:
        return [m.name for m in self.members if t in m.rounds and m.present(t) == came]


def no_joining(run: Run) -> str:
    """Why nobody can join in the middle of a run; empty: they can."""
    if run.labels.value is not None and not run.labels.value.refresh:
        return f"labels={run.labels.name} labels pictures once, at the beginning (labels.refresh=0)"
    if run.secure.value is not None:
        return "with secure=masked sites know from the beginning how many there are"
    return no_leaving(run)


def no_leaving(run: Run) -> str:
    """Why who is gone is drawn all the same."""
    others = getattr(run.privacy.value, "against", "") == "others"
    return "privacy.against=others counts on cohorts drawn from the same clients throughout" if others else ""
