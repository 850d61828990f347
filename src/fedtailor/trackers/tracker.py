"""What all trackers have in common: which rounds are sent, and what happens when that fails.

trackers.json in the run folder notes, for each tracker, its own name for the run and the last round that it has. A
resumed run goes on there, and rounds that the tracker lacks, whatever the reason, are sent from rounds.jsonl. None of
this is part of the run: its settings and its numbers are the same without.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..base.documents import json_object, read_json
from ..base.errors import UserError
from ..base.files import write_atomic
from ..base.keys import flat
from ..runs.callback import Callback

if TYPE_CHECKING:
    from ..evaluation.metrics import Score
    from ..runs.result import Result
    from ..simulation.build import Experiment
    from ..simulation.loop import RoundRecord

log = logging.getLogger("fedtailor.trackers")
NOTE = "trackers.json"
MANY = {"per_class", "clients", "clusters"}  # groups of a line with a number for each class or client
Row = Mapping[str, Any]


class Tracker(Callback, ABC):
    name: ClassVar[str]  # of the module, the package and the extra
    failures: tuple[type[Exception], ...] = (OSError,)  # what the library raises when something is not there

    folder: Path
    note: dict[str, Any]

    @abstractmethod
    def begin(self, settings: Mapping[str, Any]) -> None:
        """Begin a run there, or go on with the one that the note names. If that is gone, the note is emptied."""

    @abstractmethod
    def send(self, round: int, numbers: Mapping[str, float]) -> None:  # noqa: A002  # as everywhere
        """A round's numbers; of round 0, those of CLIP before any training."""

    @abstractmethod
    def close(self, finished: bool) -> None:
        """No more rounds for now."""

    def on_folder(self, folder: Path | None) -> None:
        if folder is None:
            raise UserError(f"to track by {self.name} needs a run folder; give out=…")
        self.folder, self.waiting, self.begun, self.failed = folder, list[Row](), False, False

    def on_start(self, experiment: Experiment, zero_shot: Score, done: int) -> None:
        self.note = read_notes(self.folder).get(self.name, {})
        try:
            self.begin(flat(experiment.run.document()))
        except self.failures as error:
            again = f"fedtailor run --resume {self.folder}, with or without --track {self.name}"
            raise UserError(f"{self.name}: cannot begin to track ({error}); go on with: {again}") from error
        self.begun = True
        self.waiting = [row for row in read_rows(self.folder, done) if row["round"] > self.note.get("round", -1)]
        self.send_waiting()

    def on_round(self, record: RoundRecord, rounds: int) -> None:
        self.waiting.append(record.row())
        if not self.failed:  # a library may try for minutes; once is enough for the middle of a run
            self.send_waiting()

    def on_end(self, result: Result | None) -> None:
        if not self.begun:
            return
        try:
            if result or not self.failed:
                self.send_waiting()
            self.close(result is not None)
        except self.failures as error:
            log.warning("%s: %s", self.name, error)
        if self.waiting:
            log.warning(
                "%s lacks the rounds from %d on; fedtailor run --resume %s --track %s sends them",
                *(self.name, self.waiting[0]["round"], self.folder, self.name),
            )

    def send_waiting(self) -> None:
        """All rounds that it lacks. Where that fails the run goes on, since a tracker only looks on."""
        try:
            while self.waiting:
                self.send(self.waiting[0]["round"], numbers(self.waiting[0]))
                self.note["round"] = self.waiting.pop(0)["round"]
            self.failed = False
        except self.failures as error:
            self.failed = True
            log.warning("%s: %s; the run goes on, and its rounds are sent again at its end", self.name, error)
        notes = {**read_notes(self.folder), self.name: self.note}
        write_atomic(self.folder / NOTE, (json.dumps(notes, indent=1) + "\n").encode())


def numbers(row: Row) -> dict[str, float]:
    """Of a line of rounds.jsonl all single numbers, by name: global/overall, bytes_up."""
    known = {key.replace(".", "/"): value for key, value in flat(single(row)).items() if key != "round"}
    return {key: float(it) for key, it in known.items() if isinstance(it, int | float) and not isinstance(it, bool)}


def single(row: Row) -> Row:
    """Without what is by class or by client: too many curves to look at."""
    inner = {key for key, value in row.items() if isinstance(value, Mapping)}
    return {key: single(row[key]) if key in inner else row[key] for key in row if key not in inner & MANY}


def read_rows(folder: Path, done: int) -> list[dict[str, Any]]:
    """The scores of CLIP before any training, as round 0, and a row for each round that counts. What is behind those
    in rounds.jsonl is of a round that was not finished."""
    zero_shot = read_json(folder / "data.json")["zero_shot"]
    rounds = folder / "rounds.jsonl"
    lines = rounds.read_bytes().splitlines() if rounds.is_file() else []
    return [{"round": 0, **zero_shot}, *map(json_object, lines[:done])]


def read_notes(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / NOTE
    todo = "remove it, and tracking begins anew"
    return read_json(path, todo, dict[str, dict[str, Any]]) if path.is_file() else {}
