"""Clients side by side: the same bits, one failure for all, and states that stand apart until they count."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedtailor
from fedtailor.base.errors import UserError
from fedtailor.base.workers import side_by_side
from fedtailor.client.codec import client_to_bytes
from fedtailor.client.job import ClientState
from fedtailor.client.states import ClientStates, SavedStates
from fedtailor.core.method import Method
from fedtailor.core.types import Me, Params, Reply, Server
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.simulation import local
from fedtailor.simulation.loop import run_round
from world import world

CASES = [("capt", "coupled+class_prompt"), ("fedpurel", "lora"), ("fedcopl", "text_prompt+visual_prompt")]


@pytest.mark.parametrize(("method", "tuner"), CASES)
def test_the_same_bits_on_any_number_of_cores(method: str, tuner: str) -> None:
    """Server, clients, tests, and the log of steps in client order."""
    found = []
    for threads in (1, 2, 5):
        experiment = world(method, tuner, threads=threads, fraction=1.0)
        engine = local.make_engine(experiment, None, None)
        engine.trace = []
        server = experiment.job.first_server()
        for _ in range(2):
            server, _ = run_round(experiment, server, engine)
        tested = engine.evaluate(experiment, server)
        log = [(s.round, s.client, s.pass_name, s.bytes_up) for s in engine.log]
        assert [(t.task.round, t.client) for t in engine.trace] == [(r, k) for r, k, *_ in log]
        states = [client_to_bytes(engine.clients[k]) for k in range(4)]
        found.append((server_to_bytes(server), states, log, tested.shared, list(tested.clients)))
    assert found[0] == found[1] == found[2]


def test_they_do_run_at_the_same_time() -> None:
    """Three that wait for each other would never end one after the other; each has one thread of torch's."""
    meeting = threading.Barrier(3, timeout=20)

    def work(k: int) -> tuple[int, int]:
        meeting.wait()
        return k, torch.get_num_threads()

    assert side_by_side([lambda k=k: work(k) for k in range(3)], 3) == [(0, 1), (1, 1), (2, 1)]


def test_a_single_one_has_all_threads() -> None:
    before = torch.get_num_threads()
    assert side_by_side([torch.get_num_threads], 2) == [2]
    assert side_by_side([torch.get_num_threads] * 3, 1) == [1, 1, 1]
    assert side_by_side([torch.get_num_threads] * 3, 4) == [1, 1, 1]
    assert torch.get_num_threads() == before


def test_the_first_that_fails_ends_all() -> None:
    """The other would go on for a minute; it ends at its next line."""
    ended = threading.Event()

    def endless() -> None:
        try:
            for _ in range(6000):
                time.sleep(0.01)
        finally:
            ended.set()

    def fails() -> None:
        raise UserError("this client cannot")

    with pytest.raises(UserError, match="this client cannot"):
        side_by_side([endless, fails], 2)
    assert ended.wait(10)


def test_an_error_names_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = world("fedavg", "text_prompt", threads=2)
    method = experiment.job.method
    train = type(method).train

    def failing(self: Method, model: Any, me: Me, theta: Params) -> Reply:
        if me.id == 2:
            raise UserError("no pictures today")
        return train(self, model, me, theta)

    monkeypatch.setattr(type(method), "train", failing)
    with pytest.raises(UserError, match=r"client 2, round 1: no pictures today"):
        method.round(experiment.job.first_server(), [0, 1, 2, 3], local.make_engine(experiment, None, None))


def test_short_steps_are_done_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is known how long they take; with as many threads of torch's each, so that time decides no bit."""
    asked: list[bool] = []

    def watching(work: list[Callable[[], Any]], threads: int, at_once: bool) -> list[Any]:
        asked.append(at_once)
        return side_by_side(work, threads, at_once)

    monkeypatch.setattr(local, "side_by_side", watching)
    experiment = world("fedclip", "adapter", threads=2)
    for limit, expected in ((1e9, [True, False]), (0.0, [True, True])):
        monkeypatch.setattr(local, "PAYS", limit)
        engine, server = local.make_engine(experiment, None, None), experiment.job.first_server()
        asked.clear()
        for _ in range(2):
            experiment.job.method.round(server, [0, 1], engine)
        assert asked == expected
    for size, each in ((1, 4), (2, 2), (3, 1), (9, 1)):
        for at_once in (True, False):
            assert side_by_side([torch.get_num_threads] * size, 4, at_once) == [each] * size


def test_a_rounds_changes_stand_apart_until_it_counts() -> None:
    one, two = ClientState(version=1), ClientState(version=2)
    states = ClientStates({3: one})
    assert (states[3], states[7], len(states), 7 in states) == (one, ClientState(), 1, False)
    states[3] = states[7] = two
    assert (states[3], states[7], sorted(states)) == (two, two, [3, 7])
    assert (states.before()[3], states.before()[7]) == (one, ClientState())
    states.roll_back()
    assert (states[3], sorted(states)) == (one, [3])
    states[7] = two
    states.commit()
    assert (states.changed, states[7], states.before()[7]) == ({}, two, two)
    with pytest.raises(TypeError, match="never removed"):
        del states[3]


def test_states_on_disk_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    """After a round, none of them is in memory; a checkpoint writes the changed ones alone."""
    folder = RunFolder.create(tmp_path / "run", fedtailor.make_run(), {})
    states, reads = ClientStates(folder.clients), list[int]()
    read = folder.clients.read
    folder.clients.read = lambda k: (reads.append(k), read(k))[1]
    assert isinstance(states.saved, SavedStates)
    for t, who in enumerate([(0, 1), (1, 2)], 1):
        for k in who:
            states[k] = ClientState(memory={"m": torch.tensor([float(10 * t + k)])}, version=t)
        folder.checkpoint(Server(t, {}), states.changed)
        states.commit()
    assert (states.changed, reads, sorted(states)) == ({}, [], [0, 1, 2])
    assert [states[k].memory["m"].item() for k in range(3)] == [10.0, 21.0, 22.0]
    assert reads == [0, 1, 2]
    assert len((tmp_path / "run" / "states.jsonl").read_text().splitlines()) == 4
    folder.close()
