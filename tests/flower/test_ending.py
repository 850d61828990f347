"""SIGTERM and Ctrl-C: what is under way is broken off at once, leaves no trace, and is done again to the same bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from deployed import SITES, Deployed, until, write_data
from flwr.clientapp import ClientApp

from fedtailor.client.data import ClientData
from fedtailor.core.types import Batch
from fedtailor.flower import process, worker
from fedtailor.flower.process import BrokenOff, ManagedProcess, Over, until_signal
from fedtailor.flower.worker import FlowerTask, serve
from fedtailor.remote.messages import PassReply, PassRequest, decode
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes
from remote import RemoteWorld, Sent
from world import world


@pytest.fixture
def over() -> Iterator[Over]:
    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    yield until_signal()
    for name, handler in before.items():
        signal.signal(name, handler)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_a_pass_is_broken_off_between_batches(
    name: signal.Signals, over: Over, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the site has on its disk is as before; the same request to the site started anew has the same reply."""
    there = RemoteWorld(world("fedpurel", rounds=2, fraction=1.0), tmp_path)
    there.end()
    request = next(sent for sent in reversed(there.transport.sent) if sent.client == 1)
    before, real, batches = files(tmp_path), ClientData.some, list[int]()

    def some(data: ClientData, *given: Any) -> Batch:
        batches.append(1)
        if len(batches) == 2:
            os.kill(os.getpid(), name)
        return real(data, *given)

    with monkeypatch.context() as patch:
        patch.setattr(ClientData, "some", some)
        with pytest.raises(BrokenOff), over.may_break_off():
            there.site(1).handle(request.data)
    assert len(batches) == 2
    assert files(tmp_path) == before
    (first, said), (again, told) = decode(reply_to(there, request)), decode(there.site(1).handle(request.data))
    assert first.model_copy(update={"seconds": 0.0}) == again.model_copy(update={"seconds": 0.0})
    for group, params in said.items():
        assert params.keys() == told[group].keys()
        assert all(torch.equal(value, told[group][name]) for name, value in params.items())


def reply_to(there: RemoteWorld, request: Sent) -> bytes:
    """The one that counted."""
    wanted = request.message
    assert isinstance(wanted, PassRequest)
    found = [arrival.data for arrival in there.transport.came if arrival.client == request.client]
    messages = {message.request_id: data for data in found if isinstance(message := decode(data)[0], PassReply)}
    return messages[wanted.request_id]


class Tasks:
    """A Runtime with one task, which ends this process in its middle."""

    def __init__(self) -> None:
        self.asked, self.ended = 0, list[str]()

    def acquire(self) -> FlowerTask:
        self.asked += 1
        return FlowerTask(1, "token")

    @contextmanager
    def task(self, token: str) -> Iterator[None]:
        try:
            yield
            self.ended.append("replied")
        finally:
            self.ended.append("put down")


def test_a_site_ends_in_the_middle_of_a_task(over: Over, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reply, no further task; what the task holds is put down."""
    runtime: Any = Tasks()
    monkeypatch.setattr(worker, "task_input", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    serve(runtime, ClientApp(), over)
    assert (runtime.asked, runtime.ended) == (1, ["put down"])
    over.end()


def test_between_tasks_nothing_is_broken_off(over: Over) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    assert over.is_set()
    with pytest.raises(BrokenOff), over.may_break_off():
        raise AssertionError("work begins")
    with pytest.raises(KeyboardInterrupt):  # exit code 130
        over.end()


def test_what_ends_the_work_is_not_broken_off_in_turn(over: Over) -> None:
    ended = list[str]()

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            ended.append("in order")

    with pytest.raises(BrokenOff), over.may_break_off():
        work()
    assert ended == ["in order"]


def test_the_log_of_another_process_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it writes goes on at the end."""
    monkeypatch.setattr(process, "LARGEST", 10)
    managed = ManagedProcess("fedtailor.flower.supernode", [], tmp_path / "supernode.log", tmp_path)
    with managed.log_file.open("ab", buffering=0) as out:
        out.write(b"twelve bytes")
        managed.begin_anew()
        out.write(b"more")
        managed.begin_anew()
    assert managed.log_file.read_bytes() == b"more"
    assert (tmp_path / "supernode.log.1").read_bytes() == b"twelve bytes"


@pytest.mark.flower
def test_a_server_and_sites_end_in_the_middle_of_a_pass(tmp_path: Path) -> None:
    """With the exit code of each signal; started again, they come to the bits of a run that nothing disturbed."""
    there = Deployed(tmp_path, write_data(tmp_path / "data"))
    long = {"rounds": 1, "every": 1, "epochs": 200}
    try:
        there.start()
        there.run("straight", "promptfl", **long)
        there.ask("ended", "promptfl", **long)
        logs = [there.home / "clients" / f"client-{k}" / "log" / "site.log" for k in range(SITES)]
        until(lambda: all("ended, round 1 of 1: train: begins" in log.read_text() for log in logs), told=there.logs)
        signals = {"client-0": signal.SIGTERM, "client-1": signal.SIGINT, "server": signal.SIGTERM}
        for name, how in signals.items():
            there.processes[name].send_signal(how)
        codes = {name: there.processes.pop(name).wait(timeout=60) for name in signals}
        assert codes == {"client-0": 0, "client-1": 130, "server": 0}
        for log in logs[:2]:
            assert "what was under way is broken off" in log.read_text()
        assert "ended: stopped; it goes on when the server is started again" in (tmp_path / "server.log").read_text()
        there.server()
        there.client(0)
        there.client(1)
        there.finished("ended")
        states = [RunFolder(there.runs / name).saved()[0] for name in ("straight", "ended")]
        assert server_to_bytes(states[0]) == server_to_bytes(states[1])
    finally:
        there.stop()
