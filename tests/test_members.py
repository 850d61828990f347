"""Clients that join a run and leave it between rounds: what the others compute is as if it had been so planned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.algorithms.counts import known_counts
from fedtailor.base.errors import UserError
from fedtailor.base.rng import generator
from fedtailor.client.codec import client_to_bytes
from fedtailor.client.job import ClientState
from fedtailor.core.types import Server
from fedtailor.methods.scaffold import ALL, grown
from fedtailor.remote.engine import Unfit
from fedtailor.remote.members import Members, no_joining, no_leaving
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import run_round
from remote import End, Fault, Killed, RemoteWorld, says
from world import world

NAMES = ("north", "east", "south", "west")
THERE = {1: NAMES[:3], 3: NAMES, 5: (NAMES[0], NAMES[2], NAMES[3])}  # west joins after round 2, east leaves after 4
ROUNDS = 6
Case = tuple[str, str, dict[str, Any]]
CASES: dict[str, Case] = {
    "plain": ("promptfl", "text_prompt", {}),
    "own parameters": ("fedpurel", "head", {}),
    "a mean over all clients": ("scaffold", "head", {}),
    "counts and clusters": ("capt", "coupled+class_prompt", {"method.bandit": False}),
    "labels": ("fedavg", "head", {"labels": "copl", "labels.refresh": 2}),
    "labels, of which a newcomer has none at first": ("fedavg", "head", {"labels": "copl", "labels.refresh": 5}),
    "privacy": ("fedavg", "head", {"privacy": "gaussian", "privacy.generator": "seeded"}),
}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


@cache
def made(case: str = "plain", **more: Any) -> Experiment:
    method, tuner, own = CASES[case]
    return world(method, tuner, **{"fraction": 1.0, "rounds": ROUNDS, "every": ROUNDS, **own, **more})


def there_at(t: int) -> tuple[str, ...]:
    return THERE[max(begin for begin in THERE if begin <= t)]


def expected(t: int) -> Members:
    """As of round t."""
    members = Members.first(THERE[1])
    for begin in sorted(begin for begin in THERE if 1 < begin <= t):
        members = members.from_round(begin, THERE[begin])
    return members


def at(experiment: Experiment, members: Members, t: int) -> Experiment:
    return experiment.with_members(members.names, members.gone(t), members.changes())


@cache
def by_hand(case: str) -> End:
    """The method's own rounds over those who are there, in this process."""
    base = made(case)
    engine = LocalEngine(base.job, base.client_data)
    server = at(base, expected(1), 1).job.first_server()
    while server.round < base.rounds:
        t = server.round + 1
        now = at(base, expected(t), t)
        cohort = [NAMES.index(name) for name in there_at(t)]
        engine.job, engine.data = now.job, {k: base.client_data[k] for k in range(now.run.clients)}
        server, _ = run_round(now, now.job.resumed(server), engine, cohort)
    return server_to_bytes(server), {k: client_to_bytes(engine.clients[k]) for k in sorted(engine.clients)}


class Conducted:
    """As a server conducts it: it goes on from the last checkpoint whenever others are there."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.base, self.folder, self.sites = experiment, folder / "run", folder / "sites"
        self.faults: list[Fault] = []
        self.rows: list[dict[str, Any]] = []

    def attempt(self) -> bool:
        """Whether it was the last."""
        resuming = (self.folder / "run.toml").is_file()
        t = RunFolder(self.folder).done() + 1 if resuming else 1
        members = (Members.read(self.folder) or Members.first(there_at(t))).from_round(t, there_at(t))
        self.experiment = at(self.base, members, t)
        names = members.names
        store = (
            RunFolder.reopen_with(self.folder, len(names))
            if resuming
            else RunFolder.create(self.folder, self.experiment.run, {})
        )
        members.write(self.folder)
        self.world = RemoteWorld(self.experiment, self.sites, self.faults)
        try:
            for record in self.world.train(store, resuming):
                self.rows.append(record.row())
                following = members.from_round(record.round + 1, there_at(record.round + 1))
                now, then = (members.names, members.gone(t)), (following.names, following.gone(record.round + 1))
                if record.round < self.experiment.rounds and now != then:
                    return False
            return True
        finally:
            store.close()

    def end(self) -> End:
        while not self.attempt():
            pass
        return self.bits()

    def bits(self) -> End:
        store = RunFolder(self.folder)
        server, clients = store.saved()
        return self.world.bits(server, clients)


@pytest.mark.parametrize("case", CASES)
def test_from_then_on_it_is_as_computed_by_hand(case: str, tmp_path: Path) -> None:
    """The server's bits and every site's; who came and went is in the records, by name."""
    there = Conducted(made(case), tmp_path)
    bits, rows = there.end(), there.rows
    assert bits == by_hand(case)
    assert [(row["joined"], row["left"]) for row in rows[:ROUNDS]] == [
        ([], []), ([], []), (["west"], []), ([], []), ([], ["east"]), ([], []),
    ]  # fmt: skip
    assert [len(row["cohort"]) for row in rows[:ROUNDS]] == [3, 3, 4, 4, 3, 3]
    assert rows[-1]["clients"].keys() == set(THERE[5])
    assert there.experiment.run.clients == 4


@pytest.mark.parametrize("nth", [12, 14, 20, 24])
def test_killed_across_the_join_it_goes_on_to_the_same_bits(nth: int, tmp_path: Path) -> None:
    """At messages of rounds before and after it, to the server that is started again."""
    there = Conducted(made(), tmp_path)
    seen = 0

    def dies(event: str) -> None:
        nonlocal seen
        seen += event == "sent"
        if seen == nth:
            raise Killed

    original = RemoteWorld.__post_init__

    def watched(world: RemoteWorld) -> None:
        original(world)
        world.transport.watch = dies

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteWorld, "__post_init__", watched)
        with pytest.raises(Killed):
            there.end()
    assert there.end() == by_hand("plain")


def test_what_was_decided_holds_for_a_round_that_is_made_again(tmp_path: Path) -> None:
    """The last checkpoint is lost after the join: round 2 is again one of three, whoever is there by now."""
    there = Conducted(made(), tmp_path)
    assert not there.attempt()
    Members.first(THERE[1]).from_round(3, NAMES).write(there.folder)
    (there.folder / "checkpoint.json").unlink()
    with pytest.warns(match="going back to the checkpoint before it"):
        assert not there.attempt()
    assert [len(row["cohort"]) for row in there.rows] == [3, 3, 3]
    assert there.end() == by_hand("plain")


# --- who is a member --------------------------------------------------------------------------------------------------


def test_numbers_are_places_and_nobody_elses_afterwards(tmp_path: Path) -> None:
    members = Members.first("abc").from_round(3, ["a", "c", "d"]).from_round(5, ["a", "b", "e", "c"])
    assert members.names == ["a", "b", "c", "d", "e"]
    assert [members.gone(t) for t in (1, 2, 3, 4, 5)] == [{3, 4}, {3, 4}, {1, 4}, {1, 4}, {3}]
    assert {t: (it.joined, it.left) for t, it in members.changes().items()} == {
        3: (["d"], ["b"]),
        5: (["b", "e"], ["d"]),
    }
    assert members.newcomers(5) == {1, 4}
    assert members.newcomers(1) == set()
    members.write(tmp_path)
    assert Members.read(tmp_path) == members
    (tmp_path / "members.json").write_text('{"members": []')
    with pytest.raises(UserError, match="damaged"):
        Members.read(tmp_path)


def test_a_change_that_is_taken_back_before_its_round_never_was(tmp_path: Path) -> None:
    members = Members.first("ab")
    assert members.from_round(3, "a").from_round(3, "ab") == members
    stranger = members.from_round(3, "abc").from_round(3, "ab")
    assert (stranger.names, stranger.gone(9), stranger.changes()) == (["a", "b", "c"], {2}, {})
    assert members.from_round(3, "abc").from_round(2, "a") == members.from_round(3, "abc")


def test_who_could_not_join_was_never_there_and_keeps_its_number() -> None:
    """Broken: it was a member from then on, so the run asked it again and again, and never came to its next round."""
    asked = expected(1).from_round(3, NAMES)
    refused = asked.without({3}, 3)
    assert (refused.present(3), refused.names) == ([*NAMES[:3]], [*NAMES])
    assert refused.from_round(3, NAMES[:3]) == refused
    assert refused.changes() == {}
    assert refused.newcomers(3) == set()
    again = refused.from_round(5, NAMES)
    assert (again.newcomers(5), again.gone(4), again.gone(5)) == ({3}, {3}, frozenset())


def test_runs_that_count_on_the_same_clients_keep_them() -> None:
    def run(**more: Any) -> Any:
        return world("fedavg", "head", **more).run

    gaussian = {"privacy": "gaussian"}
    assert (no_joining(run()), no_leaving(run())) == ("", "")
    assert (no_joining(run(**gaussian)), no_leaving(run(**gaussian))) == ("", "")
    others = run(**gaussian, **{"privacy.against": "others"})
    assert "privacy.against=others" in no_joining(others)
    assert "privacy.against=others" in no_leaving(others)
    once = run(labels="zeroshot")
    assert ("once, at the beginning" in no_joining(once), no_leaving(once)) == (True, "")
    assert no_joining(run(labels="copl", **{"labels.refresh": 2})) == ""


def test_cohorts_are_drawn_from_those_who_are_there(tmp_path: Path) -> None:
    """As many as the fraction of them, by the same draw as in a federation of so many."""
    base = world("fedavg", "head", clients=4, fraction=0.7, rounds=8)
    now = base.with_members(NAMES, {1})
    asked, engine, server = [], LocalEngine(now.job, now.client_data), now.job.first_server()
    for t in range(8):
        server, cohort = run_round(now, server, engine)
        drawn = now.job.method.cohort(t, 3, 0.7, generator(now.run.seed, "cohort", t))
        assert cohort == [(0, 2, 3)[k] for k in drawn]
        asked += cohort
    assert now.job.cohort == 2 == len(cohort)
    assert set(asked) == {0, 2, 3}


# --- what has the number of clients in it -----------------------------------------------------------------------------


def test_scaffolds_c_is_the_mean_of_all_who_ever_came() -> None:
    """Of two clients with c_i = 3 and 1, then of four, two of whom are new."""
    server = Server(3, {}, state={ALL + "w": torch.tensor(2.0)}, clients=2)
    before = grown(server)
    assert before.state[ALL + "w"].item() == 2.0
    more = grown(Server(4, {}, state=dict(before.state), clients=4))
    assert more.state[ALL + "w"].item() == 1.0
    assert grown(more).state[ALL + "w"].item() == 1.0


def test_counts_of_those_who_left_are_not_counted() -> None:
    server = Server(3, {}, state={"counts": torch.tensor([[1, 2], [3, 4]])}, clients=3, gone=frozenset({0}))
    assert known_counts(server).tolist() == [[0, 0], [3, 4], [0, 0]]
    assert server.state["counts"].tolist() == [[1, 2], [3, 4]]
    assert server.members == [1, 2]


def test_an_unfit_newcomer_is_told_apart(tmp_path: Path) -> None:
    """By number, so that the server can go on without it."""
    there = RemoteWorld(made().with_members(NAMES, ()), tmp_path)
    refused = says(lambda data: refusal())
    there.transport.faults = [Fault(refused, client=3, kind="query.invite")]
    with pytest.raises(Unfit) as told:
        there.engine().open()
    assert told.value.why == {3: "its policy does not allow this method"}


def refusal() -> bytes:
    from fedtailor.remote.messages import Refusal, encode

    return encode(Refusal(why="policy-method"))


def test_states_of_those_who_left_are_kept(tmp_path: Path) -> None:
    there = Conducted(made(), tmp_path)
    there.end()
    clients: Mapping[int, ClientState] = RunFolder(there.folder).saved()[1]
    assert {k: clients[k].version for k in clients} == {0: 6, 1: 4, 2: 6, 3: 4}
