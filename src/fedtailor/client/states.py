"""What all clients of a simulation keep: on disk or in memory, those of the current round beside it.

A round's changes stand apart until its checkpoint is written: so a round that does not count is taken back by
forgetting them, and no more than a round's states are in memory where the others are on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping

from .job import ClientState


class ClientStates(MutableMapping[int, ClientState]):
    """By client. One that has never been asked has an empty state, and is not counted among those that have one."""

    def __init__(self, saved: Mapping[int, ClientState] | None = None) -> None:
        self.saved: Mapping[int, ClientState] = {} if saved is None else saved  # a dict here, SavedStates on disk
        self.changed: dict[int, ClientState] = {}

    def __getitem__(self, k: int) -> ClientState:
        if k in self.changed:
            return self.changed[k]
        return self.saved[k] if k in self.saved else ClientState()

    def __setitem__(self, k: int, state: ClientState) -> None:
        self.changed[k] = state

    def __delitem__(self, k: int) -> None:
        raise TypeError("a client's state is never removed")

    def __iter__(self) -> Iterator[int]:
        return iter(self.saved.keys() | self.changed.keys())

    def __len__(self) -> int:
        return len(self.saved.keys() | self.changed.keys())

    def __contains__(self, k: object) -> bool:
        return k in self.changed or k in self.saved

    def before(self) -> ClientStates:
        """As they were when the last round was committed."""
        return ClientStates(self.saved)

    def roll_back(self) -> None:
        self.changed.clear()

    def commit(self) -> None:
        """The round counts. What is on disk has been written there by now, and is not held here too."""
        if isinstance(self.saved, dict):
            self.saved |= self.changed
        self.changed.clear()


class SavedStates(Mapping[int, ClientState]):
    """States on disk, read whenever they are asked for."""

    def __init__(self, files: Mapping[int, object], read: Callable[[int], ClientState]) -> None:
        self.files, self.read = files, read

    def __getitem__(self, k: int) -> ClientState:
        if k not in self.files:
            raise KeyError(k)
        return self.read(k)

    def __contains__(self, k: object) -> bool:
        return k in self.files

    def __iter__(self) -> Iterator[int]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)
