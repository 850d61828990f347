"""Sites and a server of different versions: it is told whom to upgrade, and who is takes part from then on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fedtailor.base.errors import UserError
from fedtailor.base.version import __version__, apart
from fedtailor.remote import client as site_module
from fedtailor.remote.engine import AGAIN, RemoteEngine, Unfit
from fedtailor.remote.messages import Refusal, encode
from fedtailor.simulation.build import Experiment
from remote import RemoteWorld, here
from world import CLIENTS, world

DEADLINE, GRACE = 200.0, 5.0
OLD = "0.0.7"
TOLD = f"it has fedtailor {OLD}, this server {__version__}: upgrade it"


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


def made(more: dict[str, Any] | None = None, **plan: Any) -> Experiment:
    plan = {"deadline": DEADLINE, "grace": GRACE, **plan}
    policy = {f"plan.{name}": value for name, value in plan.items()}
    return world("fedavg", "head", fraction=1.0, **policy, **(more or {}))


def set_version(there: RemoteWorld, k: int, version: str) -> None:
    """Start a site anew with this version of fedtailor; what it has kept stays."""
    there.transport.restart(k)
    site: Any = there.transport.sites[k]
    handle = site.handle

    def with_version(data: bytes) -> bytes:
        with mock.patch.object(site_module, "__version__", version):
            answer: bytes = handle(data)
            return answer

    site.handle = with_version


def at(there: RemoteWorld, moment: float, happens: Callable[[], object]) -> None:
    """Once, when the clock has come that far."""
    wait, due = there.clock.wait, [happens]

    def waited(seconds: float) -> None:
        wait(seconds)
        if due and there.clock.now >= moment:
            due.pop()()

    there.clock.wait = waited  # type: ignore[method-assign]
    if hasattr(there, "made"):
        there.made.wait = waited


def restarted(there: RemoteWorld, k: int, version: str, takes: float = 5.0) -> Callable[[], None]:
    def happens() -> None:
        there.transport.away[k] = there.clock.now + takes
        set_version(there, k, version)

    return happens


def asked(there: RemoteWorld, k: int) -> list[str]:
    return [sent.kind for sent in there.transport.sent if sent.client == k]


def test_a_site_is_waited_for_until_it_is_upgraded(tmp_path: Path) -> None:
    """Then it takes part in all. Meanwhile it is not asked again and again."""
    there = RemoteWorld(made(), tmp_path)
    set_version(there, 1, OLD)
    at(there, 30.0, restarted(there, 1, __version__))
    rounds = there.rounds()
    next(rounds)
    assert 35.0 < there.clock.now < 40.0
    *_, server = rounds
    assert there.bits(server) == here(made())
    assert there.dropped() == {}
    assert asked(there, 1)[:3] == ["query.invite", "query.invite", "train.pass"]


def test_which_version_who_has_is_told_at_once(tmp_path: Path) -> None:
    seen: list[tuple[float, str]] = []
    there = RemoteWorld(made(), tmp_path)
    set_version(there, 1, OLD)
    at(there, 30.0, restarted(there, 1, __version__))
    engine = there.engine()
    engine.watch = lambda engine, *_: seen.append((there.clock.now, engine.versions.get(1, "")))
    engine.open()
    first = {version: min(when for when, it in seen if it == version) for _, version in seen}
    assert first[OLD] < 2.0
    assert seen[-1][1] == __version__
    assert "" in {version for when, version in seen if when > 30.0}, "what a site had says nothing once it has left"


def test_one_that_nobody_upgrades_is_an_error_at_the_deadline(tmp_path: Path) -> None:
    there = RemoteWorld(made(), tmp_path)
    set_version(there, 1, OLD)
    with pytest.raises(UserError) as told:
        there.engine().open()
    assert str(told.value) == f"only 3 of 4 clients are ready (client 1: gone: {TOLD}); start the others"
    assert there.clock.now == pytest.approx(DEADLINE)


def test_a_quorum_goes_on_without_it_and_it_takes_part_once_it_is_upgraded(tmp_path: Path) -> None:
    there = RemoteWorld(made(quorum=0.5), tmp_path)
    set_version(there, 1, OLD)
    rounds = there.rounds()
    next(rounds)
    assert there.clock.now == pytest.approx(1 + GRACE + 1, abs=1.0), "the grace once, at the start"
    next(rounds)
    restarted(there, 1, __version__, takes=0.5)()
    *_, server = rounds
    assert there.dropped() == dict.fromkeys([(0, 1), (1, 1)], f"gone: {TOLD}")
    assert there.bits(server) == here(made(), (0, 1), (1, 1))


def test_where_nobody_sees_it_leave_it_is_asked_again_after_a_while(tmp_path: Path) -> None:
    there = RemoteWorld(made(), tmp_path)
    set_version(there, 1, OLD)
    at(there, AGAIN / 2, lambda: set_version(there, 1, __version__))
    there.engine().open()
    assert there.clock.now == pytest.approx(AGAIN + 2, abs=1.5)
    assert asked(there, 1) == ["query.invite"] * 2


def test_sites_before_their_server(tmp_path: Path) -> None:
    """They wait for it, and keep what they have; once it is upgraded, the run begins."""
    there = RemoteWorld(made(), tmp_path)
    old = there.engine()
    old.invitation = old.invitation.model_copy(update={"version": OLD})
    with pytest.raises(UserError, match=f"client 3: gone: it has fedtailor {__version__}, this server {OLD}: upgrade"):
        old.open()
    assert there.end() == here(made())


def test_in_secure_sums_it_is_waited_for_too(tmp_path: Path) -> None:
    there = RemoteWorld(made({"secure": "masked", "engine": "flower"}, quorum=0.75), tmp_path)
    set_version(there, 1, OLD)
    rounds = there.rounds()
    next(rounds)
    restarted(there, 1, __version__, takes=0.5)()
    list(rounds)
    assert there.dropped() == {(0, 1): f"gone: {TOLD}"}
    last = there.experiment.rounds - 1
    assert {step.client for step in there.log if step.round == last} == {*range(CLIENTS)}


@pytest.mark.parametrize("quorum", [0.5, 1.0])
def test_one_that_is_upgraded_too_early_goes_on_once_it_is_rolled_back(quorum: float, tmp_path: Path) -> None:
    """Its states are as they were."""
    there = RemoteWorld(made(quorum=quorum), tmp_path)
    rounds = there.rounds()
    next(rounds)
    set_version(there, 2, "99.0")
    at(there, there.clock.now + 3.0, restarted(there, 2, __version__, takes=0.5))
    *_, server = rounds
    assert there.bits(server) == here(made())
    assert there.dropped() == {}


def test_a_newcomer_is_not_waited_for(tmp_path: Path) -> None:
    """A run under way goes on at once without it."""
    there = RemoteWorld(made(), tmp_path)
    set_version(there, 3, OLD)
    engine = RemoteEngine(
        there.experiment, None, there.transport, "ab" * 16, clock=there.clock, wait=there.clock.wait, newcomers={3}
    )
    with pytest.raises(Unfit) as told:
        engine.open()
    assert told.value.why == {3: TOLD}
    assert there.clock.now < 3


def test_a_newcomer_that_is_upgraded_too_early_later_is_as_any_other(tmp_path: Path) -> None:
    there = RemoteWorld(made(), tmp_path)
    rounds = there.rounds()
    next(rounds)
    there.made.newcomers = {2}
    set_version(there, 2, "99.0")
    at(there, there.clock.now + 3.0, restarted(there, 2, __version__, takes=0.5))
    *_, server = rounds
    assert there.bits(server) == here(made())
    assert there.dropped() == {}


def test_a_refusal_that_cannot_be_meant_is_trouble_alone(tmp_path: Path) -> None:
    """It says that it has another version, and names ours."""
    there = RemoteWorld(made(quorum=0.5), tmp_path)
    engine = there.engine()
    set_version(there, 1, OLD)
    site: Any = there.transport.sites[1]
    handle = site.handle
    site.handle = lambda data: handle(data) and encode(Refusal(why="version", version=__version__))
    told: list[dict[int, str]] = []
    engine.watch = lambda _, exchange, online: told.append(dict(exchange.trouble))
    engine.open()
    assert told[-1] == {1: "it has another version of fedtailor; install the same on both"}
    assert engine.invited == set(range(CLIENTS)) - {1}


@pytest.mark.parametrize(
    ("theirs", "what"),
    [
        ("0.2.0", "upgrade it"),
        ("0.10.0", "upgrade the server"),
        ("0.3.1", "upgrade the server"),
        ("0.3.0.dev1", "install the same on both"),
        ("", "upgrade it"),
        ("?", "upgrade it"),
    ],
)
def test_whom_to_upgrade(theirs: str, what: str) -> None:
    assert apart(theirs, "0.3.0") == f"has fedtailor {theirs or '(unknown)'}, this server 0.3.0: {what}"
    assert apart("0.3.0", "0.3.0") == ""
