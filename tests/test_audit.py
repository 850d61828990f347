"""A site's log of what left it: a line for every reply, before it leaves, in a chain that shows what was changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Call
from fedtailor.client.codec import from_bytes
from fedtailor.remote import audit
from fedtailor.remote.audit import BROKEN, FIRST, AuditLog, files_of, read_lines
from fedtailor.remote.client import RemoteClient
from fedtailor.remote.messages import EvaluateReply, PassReply, Ready, Refusal, decode
from remote import Fault, MemoryTransport, RemoteWorld, Sent, twice
from test_policy import PRIVATE
from world import CLIENTS, world


def facts(folder: Path) -> list[dict[str, Any]]:
    lines = list(read_lines(folder))
    assert not any(line.trouble for line in lines)
    return [line.facts for line in lines]


# --- a line for every reply -----------------------------------------------------------------------------------------


def test_every_reply_of_every_kind_has_a_line_of_its_own(tmp_path: Path) -> None:
    """Of a federation with passes of a labeler and a method, tests, repeated and refused orders, sites started anew and
    messages that are none: the hashes of all that ever came from a site are, in their order, those of its log."""

    def strange(transport: MemoryTransport, sent: Sent) -> list[Any]:
        """Garbage first, then the message to a site started anew, and the message twice."""
        transport.sites[sent.client].handle(b"garbage")
        transport.restart(sent.client)
        return [*twice(transport, sent)]

    more = {"labels": "copl", "labels.refresh": 2, "every": 3, "fraction": 1.0, "plan.quorum": 0.5, "plan.lost": "anew"}
    experiment = world("fedpurel", "head", **more)
    there = RemoteWorld(experiment, tmp_path, [Fault(strange, client=1, round=1)])
    left: dict[int, list[bytes]] = {k: [] for k in range(CLIENTS)}
    real = RemoteClient.handle

    def handle(site: RemoteClient, data: bytes) -> bytes:
        reply = real(site, data)
        left[int(site.folder.name.removeprefix("client-"))].append(reply)
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteClient, "handle", handle)
        rounds = there.rounds()
        next(rounds)
        for _, path in there.states(2).held():
            path.unlink()
        *_, server = rounds
        there.made.evaluate(experiment, server)
    kinds = {type(decode(data)[0]) for replies in left.values() for data in replies}
    assert kinds == {Ready, PassReply, EvaluateReply, Refusal}
    for k, replies in left.items():
        rows = facts(tmp_path / f"client-{k}" / "audit")
        assert [row["sha256"] for row in rows] == [hashlib.sha256(data).hexdigest() for data in replies]
        assert [row["bytes"] for row in rows] == [len(data) for data in replies]
        for row, data in zip(rows, replies, strict=True):
            message, groups = decode(data)
            assert row["what"] == message.kind
            assert (row["why"] is None) == (not isinstance(message, Refusal))
            told = {tensor["name"]: tensor for tensor in row["tensors"]}
            sent = {f"{group}/{name}": value for group, params in groups.items() for name, value in params.items()}
            assert told.keys() == sent.keys()
            for name, value in sent.items():
                assert told[name]["shape"] == list(value.shape)
                assert told[name]["sha256"] == hashlib.sha256(value.numpy().tobytes()).hexdigest()
    rows = facts(tmp_path / "client-1" / "audit")
    assert {(row["order"], row["pass"]) for row in rows} == {
        ("invitation", None), ("pass-request", "labels.vote"), ("pass-request", "labels.select"), (None, None),
        ("pass-request", "train"), ("pass-request", "personalise"), ("evaluate-request", None),
    }  # fmt: skip
    assert {row["round"] for row in rows if row["pass"]} == set(range(1, experiment.rounds + 1))


def test_a_line_tells_whom_when_and_with_how_much_noise(tmp_path: Path) -> None:
    experiment = world("fedavg", "head", **PRIVATE, rounds=1)
    assert RemoteWorld(experiment, tmp_path).end()
    ready, row = facts(tmp_path / "client-2" / "audit")
    assert (ready["what"], ready["privacy"], ready["to"]) == ("ready", None, "here")
    assert row["privacy"] == {"mechanism": "gaussian", "noise": {"updates": 4.0, "counts": 4.0}}
    assert ready["at"] <= row["at"]
    assert [tensor["name"] for tensor in row["tensors"]] == ["params/head.weight", "params/head.bias"]


@pytest.mark.parametrize("fails", ["fsync", "write"])
def test_without_a_line_nothing_leaves(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a refusal; and what was written of the line is taken back."""
    site = RemoteWorld(world(), tmp_path).site(0)
    site.handle(b"garbage")

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> int:
            return int(self.file.write(data[:10]))

    def no_space(file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if fails == "fsync":
            patch.setattr(os, "fsync", no_space)
        else:
            real = Path.open
            patch.setattr(Path, "open", lambda path, *given, **more: Full(real(path, *given, **more)))
        with pytest.raises(OSError, match=r"No space|written whole"):
            site.handle(b"garbage")
    assert len(facts(site.folder / "audit")) == 1
    site.handle(b"garbage")
    assert len(facts(site.folder / "audit")) == 2


def test_a_line_is_on_the_disk_before_the_reply_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    site = RemoteWorld(world(), tmp_path).site(0)
    site.handle(b"garbage")
    real = audit.AuditLog.add

    def add(log: AuditLog, **more: Any) -> None:
        real(log, **more)
        seen.append("line")

    monkeypatch.setattr(os, "fsync", lambda file: seen.append("fsync"))
    monkeypatch.setattr(AuditLog, "add", add)
    site.handle(b"garbage")
    seen.append("reply")
    assert seen == ["fsync", "line", "reply"]


# --- the chain ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six lines in three files."""
    made = AuditLog(tmp_path / "audit", "here")
    for n in range(6):
        made.add(what="refusal", n=n)
        made.number += n in (1, 3)
    assert [len(path.read_bytes().splitlines()) for path in files_of(tmp_path / "audit")] == [2, 2, 2]
    return tmp_path / "audit"


def test_files_are_one_chain(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over starts, and when a file is full."""
    raw = b"".join(path.read_bytes() for path in files_of(folder)).splitlines(keepends=True)
    before = [FIRST, *(hashlib.sha256(line).hexdigest() for line in raw[:-1])]
    assert [json.loads(line)["before"] for line in raw] == before
    monkeypatch.setattr(audit, "LARGEST", 1000)
    for n in range(6, 30):
        AuditLog(folder, "here").add(what="refusal", n=n)
    assert [row["n"] for row in facts(folder)] == list(range(30))
    sizes = [path.stat().st_size for path in files_of(folder)]
    assert len(sizes) > 5
    assert all(1000 <= size < 1300 for size in sizes[3:-1])
    assert {path.stat().st_mode & 0o777 for path in files_of(folder)} == {0o600}


def line_of(change: Callable[[list[bytes]], object], file: int = 1) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        path = files_of(folder)[file]
        lines = path.read_bytes().splitlines(keepends=True)
        change(lines)
        path.write_bytes(b"".join(lines))

    return harm


def at(n: int, change: Callable[[bytes], bytes], file: int = 1) -> Callable[[Path], None]:
    return line_of(lambda lines: lines.__setitem__(n, change(lines[n])), file)


HARM: dict[str, tuple[Callable[[Path], None], str]] = {
    "a digit": (at(0, lambda line: line.replace(b'"n": 2', b'"n": 7')), "000002.jsonl, line 2"),
    "a line gone": (line_of(lambda lines: lines.pop(0)), "000002.jsonl, line 1"),
    "two lines the other way": (line_of(lambda lines: lines.reverse()), "000002.jsonl, line 1"),
    "a line in between": (line_of(lambda lines: lines.insert(1, lines[0])), "000002.jsonl, line 2"),
    "a file gone": (lambda folder: files_of(folder)[1].unlink(), "000003.jsonl, line 1"),
    "the last line cut short": (at(1, lambda line: line[:20], file=2), "000003.jsonl, line 2: it is cut"),
    "no line": (line_of(lambda lines: lines.insert(0, b"[]\n")), "000002.jsonl, line 1: it is not a line"),
    "no JSON": (line_of(lambda lines: lines.insert(0, b"\xff{\n")), "000002.jsonl, line 1: it is not a line"),
    "a false beginning": (at(1, lambda line: line.replace(b"refusal", BROKEN.encode())), "000003.jsonl, line 1"),
}


@pytest.mark.parametrize("how", HARM)
def test_a_broken_chain_is_told_and_never_continued(how: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where it is broken is in the log, loudly, once; the new chain is whole, and the old trouble stays to be seen."""
    harm, place = HARM[how]
    harm(folder)
    first = next(line for line in read_lines(folder) if line.trouble)
    assert place in f"{first.place}: {first.trouble}"
    old = {path: path.read_bytes() for path in files_of(folder)}
    made = AuditLog(folder, "here")
    assert "THE LOG OF WHAT LEFT THIS SITE IS BROKEN" in caplog.text
    assert {path: path.read_bytes() for path in old} == old
    made.add(what="refusal", n=6)
    begins, more = (json.loads(line) for line in made.file.read_bytes().splitlines())
    assert (begins["what"], begins["before"], more["n"]) == (BROKEN, FIRST, 6)
    assert place in begins["detail"]
    caplog.clear()
    AuditLog(folder, "here").add(what="refusal", n=7)
    assert not caplog.text
    assert [line.facts.get("n") for line in read_lines(folder)][-2:] == [6, 7]
    assert next(line for line in read_lines(folder) if line.trouble) == first


def test_old_files_may_be_kept_elsewhere(folder: Path) -> None:
    files_of(folder)[0].unlink()
    AuditLog(folder, "here").add(what="refusal", n=6)
    assert [row["n"] for row in facts(folder)] == [2, 3, 4, 5, 6]


def test_an_empty_last_file_is_gone_on_with(folder: Path) -> None:
    """As when the power failed after a file was begun."""
    (folder / "audit-000004.jsonl").touch()
    AuditLog(folder, "here").add(what="refusal", n=6)
    assert [row["n"] for row in facts(folder)] == list(range(7))


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A site's folder, as if it had taken part in a run over Flower."""
    there = RemoteWorld(world("fedavg", "head", **PRIVATE, rounds=1), tmp_path)
    assert there.end()
    there.transport.sites[0].handle(b"garbage")
    (tmp_path / "client-0").rename(tmp_path / "state")
    return tmp_path


def test_the_log_as_a_table_and_as_json(home: Path, call: Call) -> None:
    answer = call("flower", "log", "--home", str(home))
    assert answer.code == 0
    for told in ("ready", "pass-reply", "refusal", "train", "head.weight", "gaussian,", "unreadable:"):
        assert told in answer.out
    *_, last = read_lines(home / "state" / "audit")
    assert f"3 lines, none changed or taken out; the last has the hash {last.hash}" in answer.out
    found = json.loads(call("flower", "log", "--home", str(home), "--json").out)
    assert (found["whole"], found["broken"], found["last"]) == (True, "", last.hash)
    assert found["lines"] == facts(home / "state" / "audit")
    for since, count in (("2020-01-01", 3), (last.facts["at"], 1), ("2999-01-01T09:30", 0)):
        assert (
            len(json.loads(call("flower", "log", "--home", str(home), "--json", "--since", since).out)["lines"])
            == count
        )
    assert "a day or a moment is due" in call("flower", "log", "--home", str(home), "--since", "soon").err


def test_a_changed_log_is_said_to_be_broken(home: Path, call: Call) -> None:
    assert call("flower", "log", "--home", str(home), "--verify").out.count("\n") == 1
    file = home / "state" / "audit" / "audit-000001.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"ready"', b'"Ready"'))
    for words in ((), ("--verify",), ("--json",)):
        answer = call("flower", "log", "--home", str(home), *words)
        assert answer.code == 2
        assert "audit-000001.jsonl, line 2: it does not follow from the line before" in answer.err
    assert "pass-reply" in call("flower", "log", "--home", str(home)).out
    assert json.loads(call("flower", "log", "--home", str(home), "--json").out)["whole"] is False


def test_no_log(tmp_path: Path, call: Call) -> None:
    answer = call("flower", "log", "--home", str(tmp_path))
    assert (answer.code, answer.out) == (2, "")
    assert "give a site's own folder with --home" in " ".join(answer.err.split())


def test_what_is_sent_holds_no_more_than_its_line_says() -> None:
    """A refusal on the wire is a code and an id."""
    from fedtailor.remote.messages import encode

    _, note = from_bytes(encode(Refusal(why="failed")))
    assert note["message"] == {"kind": "refusal", "request_id": "", "why": "failed", "version": ""}
