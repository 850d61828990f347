"""The server's own view of the run under way: its log, and the board that `status` reads."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from ..base.version import __version__, apart
from ..remote.engine import Exchange, RemoteEngine
from ..runs.callback import Callback
from ..simulation.loop import RoundRecord
from .attendance import Attendance
from .board import DOING, RunState, now
from .status import listed

log = logging.getLogger("fedtailor.flower")
SECONDS = 1.0  # between two writings of the board, unless a message goes out or comes
PATIENCE = 5.0  # seconds before the log says for whom the start waits, and between two such lines


class RoundLog(Callback):
    """A line for each round, and for each site of another version."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        """`names`: of clients, by number."""
        self.name, self.names = name, names
        self.versions: dict[int, str] = {}  # of fedtailor, at the last look

    def named(self, clients: Collection[int]) -> list[str]:
        return [self.names[k] for k in sorted(clients) if 0 <= k < len(self.names)]

    def look(self, engine: RemoteEngine, exchange: Exchange, online: Collection[int]) -> None:
        """At each look for replies."""
        for k, version in engine.versions.items():
            if self.versions.get(k) != version and (told := apart(version, __version__)):
                log.warning("%s: %s %s", self.name, self.names[k], told)
        self.versions = dict(engine.versions)

    def on_round(self, record: RoundRecord, rounds: int) -> None:
        told = f"{self.name}: round {record.round} of {rounds}"
        if record.shared and record.shared.overall is not None:
            told += f", accuracy {record.shared.overall:.1f}%"
        if record.dropped:
            told += f", without {', '.join(f'{name} ({why})' for name, why in record.dropped.items())}"
        now = f"{self.name}: round {record.round + 1} of {rounds}" if record.round < rounds else f"{self.name}: ending"
        facts = {"run": self.name, "round": record.round, "rounds": rounds, "dropped": record.dropped}
        log.info("%s", told, extra={"now": now, "facts": facts})


class RunWatch(RoundLog):
    def __init__(
        self,
        name: str,
        names: Sequence[str],
        done: int,
        rounds: int,
        attendance: Attendance,
        publish: Callable[[RunState, dict[str, str]], object],
        after: Callable[[int], object],
    ) -> None:
        """`after` is told how many rounds are done, and may end the attempt."""
        super().__init__(name, names)
        self.attendance, self.publish, self.after = attendance, publish, after
        began = now()
        self.state = RunState(name=name, began=began, round=done, rounds=rounds, round_began=began)
        self.written = 0.0
        self.told_at, self.told = time.monotonic(), set[int]()
        if done:
            log.info("%s: goes on after round %d of %d", name, done, rounds)

    def look(self, engine: RemoteEngine, exchange: Exchange, online: Collection[int]) -> None:
        members = self.named(engine.job.members)
        self.attendance.note(self.named(online), members)
        inviting = exchange.kind == "query.invite"
        new = self.state.model_copy(
            update={
                "round": 0 if inviting else exchange.round + 1,
                "doing": DOING.get(exchange.kind, exchange.kind),
                "answered": tuple(self.named(exchange.taken)),
                "awaited": tuple(self.named(exchange.waiting)),
            }
        )
        if inviting:
            new = new.model_copy(update={"round": self.state.round})
            self.tell_of_waiting(exchange)
        changed = new != self.state or engine.versions != self.versions
        super().look(engine, exchange, online)
        if changed or time.monotonic() - self.written > SECONDS:
            self.state = new
            self.write()

    def write(self) -> None:
        self.written = time.monotonic()
        self.publish(self.state, {self.names[k]: version for k, version in self.versions.items()})

    def tell_of_waiting(self, exchange: Exchange) -> None:
        """For whom the start waits: after a while, and when that changes."""
        if exchange.waiting and exchange.waiting != self.told and time.monotonic() - self.told_at > PATIENCE:
            self.told_at, self.told = time.monotonic(), set(exchange.waiting)
            ready, all_ = len(exchange.taken), len(exchange.taken) + len(exchange.waiting)
            waits = "%s: %d of %d sites are ready; waiting for %s"
            log.info(waits, self.state.name, ready, all_, listed(self.named(exchange.waiting)))

    def on_round(self, record: RoundRecord, rounds: int) -> None:
        super().on_round(record, rounds)
        self.state = self.state.model_copy(update={"round": record.round + 1, "round_began": now(), "answered": ()})
        self.after(record.round)
