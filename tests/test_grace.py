"""Who is waited for, and how long, once a quorum has replied (plan.grace)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedtailor.simulation.build import Experiment
from remote import Fault, RemoteWorld, here, late, leaves, silent
from world import CLIENTS, world

DEADLINE, GRACE = 100.0, 5.0
EVERYONE = set(range(CLIENTS))


def made(**plan: Any) -> Experiment:
    plan = {"deadline": DEADLINE, "grace": GRACE, "quorum": 0.5, **plan}
    return world("fedavg", "head", fraction=1.0, **{f"plan.{name}": value for name, value in plan.items()})


def took(there: RemoteWorld) -> list[float]:
    """Seconds of each round; of every client each answer takes one."""
    ends = [there.clock.now for _ in there.rounds()]
    return [end - begin for begin, end in pairwise(ends)]


def test_an_absent_client_costs_the_grace_once_and_not_the_deadline(tmp_path: Path) -> None:
    """Once it was waited for in vain, it is not waited for again until it is back; then it takes part."""
    experiment = world("fedavg", "head", rounds=5, fraction=1.0, **{"plan.quorum": 0.5, "plan.grace": GRACE})
    there = RemoteWorld(experiment, tmp_path, [Fault(leaves(8), client=2, round=1)])
    *seconds, _ = took(there)
    assert seconds[0] == pytest.approx(1 + GRACE, abs=0.6)
    assert max(seconds[1:]) < 3
    assert there.dropped() == dict.fromkeys([(1, 2), (2, 2)], "gone: it was not there, or left")
    assert there.made.clients[2].version == 3


def test_a_slow_client_is_waited_for(tmp_path: Path) -> None:
    """It is there, at work; only the deadline ends that."""
    there = RemoteWorld(made(), tmp_path, [Fault(late(DEADLINE - 1), client=1)])
    assert there.end() == here(made())
    assert there.dropped() == {}
    there = RemoteWorld(made(), tmp_path / "silent", [Fault(silent, client=1, round=1)])
    assert took(there)[0] == pytest.approx(DEADLINE, abs=0.6)
    assert there.dropped() == {(1, 1): "late: no reply in time"}


def test_one_that_comes_within_the_grace_counts(tmp_path: Path) -> None:
    """And then has the time that its work takes."""
    faults = [Fault(leaves(1 + GRACE - 0.5), client=1, round=1, times=1), Fault(late(20), client=1, round=1)]
    there = RemoteWorld(made(), tmp_path, faults)
    assert there.end() == here(made())
    assert there.dropped() == {}


@pytest.mark.parametrize("plan", [{"quorum": 1.0, "tries": 1}, {"grace": 1000.0}])
def test_where_everyone_must_reply_or_grace_is_long_the_deadline_holds(plan: dict[str, Any], tmp_path: Path) -> None:
    there = RemoteWorld(made(**plan), tmp_path, [Fault(leaves(DEADLINE - 2), client=3, round=1, times=1)])
    assert took(there)[0] == pytest.approx(DEADLINE - 1, abs=0.6)
    assert there.dropped() == {}


def test_grace_begins_with_the_quorum(tmp_path: Path) -> None:
    """Three of four, of whom the third takes long: the fourth, who is gone, has the grace from there on."""
    faults = [Fault(late(30), client=0, round=1), Fault(leaves(1000), client=1, round=1)]
    there = RemoteWorld(made(quorum=0.75), tmp_path, faults)
    assert took(there)[0] == pytest.approx(30 + GRACE, abs=0.6)
    assert there.dropped()[1, 1] == "gone: it was not there, or left"


def test_at_the_start_the_others_have_the_grace_too_and_who_is_awaited_is_told(tmp_path: Path) -> None:
    seen: list[tuple[str, set[int], set[int]]] = []
    there = RemoteWorld(made(), tmp_path)
    there.transport.away = {3: 50.0}
    engine = there.engine()
    engine.watch = lambda _, exchange, online: seen.append((exchange.kind, set(exchange.waiting), set(online)))
    engine.open()
    assert there.clock.now == pytest.approx(1 + GRACE, abs=0.6)
    assert seen[0] == ("query.invite", EVERYONE, EVERYONE - {3})
    assert seen[-1] == ("query.invite", {3}, EVERYONE - {3})
    assert engine.invited == EVERYONE - {3}


def test_a_test_does_not_wait_longer_either(tmp_path: Path) -> None:
    there = RemoteWorld(made(), tmp_path, [Fault(leaves(1000), client=1, kind="evaluate.test")])
    *_, server = there.rounds()
    began = there.clock.now
    found = there.made.evaluate(there.experiment, server)
    assert there.clock.now - began == pytest.approx(1 + GRACE, abs=0.6)
    assert [k for k, overall in enumerate(found.clients.overall) if overall is None] == [1]
