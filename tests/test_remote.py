"""Remote clients: the same bits as in one process, whoever is late, gone, wrong or killed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from fedtailor.base.errors import Note, UserError
from fedtailor.client.codec import client_to_bytes, from_bytes, to_bytes
from fedtailor.client.job import ClientState
from fedtailor.core.types import OWN, Params
from fedtailor.evaluation.metrics import Scores
from fedtailor.remote import client as site_module
from fedtailor.remote.audit import read_lines
from fedtailor.remote.client import INVITATION, RemoteClient
from fedtailor.remote.engine import NOT_NEEDED, Received
from fedtailor.remote.messages import Refusal, decode, encode
from fedtailor.remote.policy import ANYTHING
from fedtailor.remote.refusal import Refused
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from remote import (
    RUN,
    Clock,
    Coming,
    End,
    Fault,
    Killed,
    MemoryTransport,
    RemoteWorld,
    Sent,
    delayed,
    here,
    late,
    leaves,
    says,
    silent,
    stayed,
    twice,
    unheard,
    visited,
)
from world import CLIENTS, world

Case = tuple[str, str, dict[str, Any]]  # method, tuner, settings
PAPERS: dict[str, Case] = {
    "fedavg": ("fedavg", "text_prompt", {}),
    "capt": ("capt", "coupled+class_prompt", {}),
    "fedcopl": ("fedcopl", "text_prompt+visual_prompt", {}),
    "fedpurel": ("fedpurel", "text_prompt", {}),
    "the server has data of its own": ("capt", "coupled+class_prompt", {"data.server": 0.2}),
    "momentum is handed on": ("fedavg-released", "text_prompt", {}),
    "nothing is shared": ("local", "head", {}),
    "pictures are hidden": (
        "fedavg",
        "head",
        {"privacy": "gaussian", "privacy.unit": "picture", "privacy.generator": "seeded"},
    ),
}
# For faults, what takes the least time.
CASES: dict[str, Case] = {
    "plain": ("fedavg", "head", {}),
    # Clients have parameters of their own, and a closing round …
    "own": ("fedpurel", "head", {}),
    # … and memories, and up to three passes a round.
    "labels": ("fedpurel", "head", {"labels": "copl", "labels.refresh": 2, "every": 3}),
}
PASSES = ["labels.vote", "labels.select", "train"]
DEADLINE = 10.0


@cache
def made(case: str = "plain", **plan: Any) -> Experiment:
    """All clients in every round, and half of them are enough."""
    method, tuner, more = {**PAPERS, **CASES}[case]
    plan = {f"plan.{name}": value for name, value in {"deadline": DEADLINE, "quorum": 0.5, **plan}.items()}
    return world(method, tuner, **{"fraction": 1.0, **more, **plan})


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody cuts the power here, and every state would wait for it."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@cache
def locally(case: str, *absent: tuple[int, int]) -> End:
    return here(made(case), *absent)


# --- the same bits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", PAPERS)
def test_answers_in_any_order_give_the_same_bits_as_one_process(case: str, tmp_path: Path) -> None:
    """Parameters after each round, states at the sites, what every visit cost, and all tests."""
    method, tuner, more = PAPERS[case]
    experiment = world(method, tuner, **more)
    local, there = make_engine(experiment), RemoteWorld(experiment, tmp_path, seed=1)
    server = experiment.job.first_server()
    for other in there.rounds():
        server, _ = run_round(experiment, server, local)
        assert server_to_bytes(other) == server_to_bytes(server)
    bits = there.bits(other)[1]
    assert bits == {k: client_to_bytes(client) for k, client in sorted(local.clients.items())}
    assert visited(there.log) == visited(v for v in local.log if v.client != OWN)
    away, near = there.made.evaluate(experiment, other), local.evaluate(experiment, server)
    assert (away.clients, away.shared) == (near.clients, near.shared)
    assert there.made.pseudo_labels(experiment) == local.pseudo_labels(experiment)


def test_asked_the_same_after_a_crash_sites_answer_with_the_same_noise(tmp_path: Path) -> None:
    """The server and all sites are started anew, and nothing of the first round was kept but the sites' secrets."""
    experiment = world("fedavg", "head", privacy="gaussian")
    first, again, elsewhere = (
        server_to_bytes(next(RemoteWorld(experiment, tmp_path / folder).rounds())) for folder in ("a", "a", "b")
    )
    assert first == again != elsewhere


def test_another_order_of_answers_changes_nothing(tmp_path: Path) -> None:
    """And the order does change."""
    runs = [RemoteWorld(made("own"), tmp_path / str(seed), seed=seed) for seed in range(3)]
    assert {end[0] for end in (it.end() for it in runs)} == {locally("own")[0]}
    assert len({tuple(a.client for a in it.transport.came) for it in runs}) == 3


@pytest.mark.parametrize(
    ("case", "updates", "smaller"), [("own", "fp16", 2), ("own", "int8", 4), ("fedcopl", "int8", 4)]
)
def test_fewer_bits_are_the_same_bits_everywhere(case: str, updates: str, smaller: int, tmp_path: Path) -> None:
    """Both engines agree on every bit and every byte, and answers are about so much smaller than in fp32."""
    experiment = made(case, updates=updates)
    there = RemoteWorld(experiment, tmp_path)
    (few, visits), (whole, all_visits) = stayed(experiment), stayed(made(case))
    assert there.end() == few
    assert few[0] != whole[0]
    assert visited(there.log) == visited(visits)
    up, all_up = (sum(v.bytes_up for v in it if v.pass_name == "train") for it in (visits, all_visits))
    assert smaller * 0.75 < all_up / up <= smaller
    assert sum(v.bytes_down for v in visits) == sum(v.bytes_down for v in all_visits)


def test_the_server_may_have_no_test_pictures(tmp_path: Path) -> None:
    """Then its model's score is the mean of what clients found, and so is CLIP's as it is."""
    experiment = made()
    there = RemoteWorld(experiment, tmp_path)
    *_, server = there.rounds()
    none = replace(
        experiment,
        tests=replace(experiment.tests, labels=experiment.tests.labels[:0], parts=(experiment.tests.parts[0][:0],)),
    )
    tested = there.made.evaluate(none, server)
    parts = [experiment.tests.of_client(k) for k in range(CLIENTS)]
    logits = experiment.job.model.zero_shot_logits
    expected = Scores.of([part.score(part.predict(logits, part.everything), part.everything) for part in parts]).mean()
    assert tested.untuned == expected
    assert tested.shared == Scores.of([reply.shared for reply in there.made.tested.values()]).mean()
    assert tested.shared.overall is not None


# --- late and gone --------------------------------------------------------------------------------------------------


def test_a_late_client_is_out_of_the_round_and_its_work_leaves_no_trace(tmp_path: Path) -> None:
    """The round ends at the deadline. The late answer comes in the next round, in which the client takes part from the
    state before."""
    there = RemoteWorld(made(), tmp_path, [Fault(late(DEADLINE + 0.5), client=1, round=1)])
    ends, servers = [], []
    for server in there.rounds():
        ends.append(there.clock.now)
        servers.append(server)
    assert ends[1] - ends[0] == pytest.approx(DEADLINE, abs=1e-6)
    assert ends[2] - ends[1] < 3
    assert there.bits(servers[-1]) == locally("plain", (1, 1))
    assert there.dropped() == {(1, 1): "late: no reply in time"}
    assert there.made.clients[1].version == 2
    stale = [a for a in there.transport.came if a.client == 1]
    assert len(stale) == 4  # the invitation's and three answers: the late one did come


@pytest.mark.parametrize("pass_", PASSES)
def test_who_is_late_in_one_pass_is_not_asked_in_later_ones_and_they_have_their_own_time(
    pass_: str, tmp_path: Path
) -> None:
    """Others answer a later pass a second after it was sent, which is after the first pass's deadline."""
    there = RemoteWorld(made("labels"), tmp_path, [Fault(silent, client=1, round=0, pass_name=pass_)])
    next(rounds := there.rounds())
    asked = [(sent.client, sent.pass_name) for sent in there.transport.sent if sent.kind == "train.pass"]
    assert [p for k, p in asked if k == 1] == PASSES[: PASSES.index(pass_) + 1]
    assert [p for k, p in asked if k == 0] == PASSES
    assert there.dropped() == {(0, 1): "late: no reply in time"}
    if pass_ == "labels.vote":  # only then has it done nothing at all in the round
        *_, server = rounds
        assert there.bits(server) == locally("labels", (0, 1))


def test_gone_and_back_in_time_changes_nothing(tmp_path: Path) -> None:
    """The client is written the same message once more."""
    there = RemoteWorld(made(), tmp_path, [Fault(leaves(4), client=2, round=1, times=1)])
    assert there.end() == locally("plain")
    assert there.dropped() == {}
    first, again = [
        sent.data for sent in there.transport.sent if (sent.client, sent.round, sent.kind) == (2, 1, "train.pass")
    ]
    assert first == again


def test_gone_for_good_is_dropped(tmp_path: Path) -> None:
    there = RemoteWorld(made(), tmp_path, [Fault(leaves(1e9), client=2, round=1)])
    assert there.end() == locally("plain", (1, 2), (2, 2))
    assert there.dropped() == dict.fromkeys([(1, 2), (2, 2)], "gone: it was not there, or left")


def test_a_client_that_is_there_but_never_reached_is_not_flooded(tmp_path: Path) -> None:
    """It is tried again at the pace of the message box until the deadline."""

    def unreachable(transport: MemoryTransport, sent: Sent) -> Coming:
        assert len(transport.sent) < 200
        return [(0.0, lambda: Received(sent.client, gone=True))]

    there = RemoteWorld(made(), tmp_path, [Fault(unreachable, client=2, round=1)])
    assert there.end() == locally("plain", (1, 2))
    assert there.dropped() == {(1, 2): "gone: it was not there, or left"}
    assert len([sent for sent in there.transport.sent if sent.round == 1]) < 40


def test_an_answer_that_comes_twice_counts_once(tmp_path: Path) -> None:
    """Both at the same moment, in a pass that others follow."""
    there = RemoteWorld(made("labels"), tmp_path, [Fault(twice, client=1)])
    assert there.end() == locally("labels")
    assert there.dropped() == {}


def test_gone_and_an_answer_at_once_is_an_answer(tmp_path: Path) -> None:
    """Nothing more is sent to a client that has replied, while others are waited for."""

    def both(transport: MemoryTransport, sent: Sent) -> Coming:
        return [(0.3, lambda: Received(sent.client, gone=True)), (0.3, lambda: transport.replied(sent))]

    for seed in range(3):
        there = RemoteWorld(made(), tmp_path / str(seed), [Fault(both, client=1, kind=None)], seed=seed)
        assert there.end() == locally("plain")
        assert there.dropped() == {}
        assert len(there.transport.sent) == CLIENTS * 4


def test_an_old_request_that_comes_behind_newer_ones_disturbs_nothing(tmp_path: Path) -> None:
    """Client 1 reads the second round's order in the fifth, when the state that it starts from is long forgotten."""
    more = {"rounds": 6, "fraction": 1.0, "plan.deadline": DEADLINE, "plan.quorum": 0.5}
    experiment = world("fedpurel", "head", **more)
    there = RemoteWorld(experiment, tmp_path, [Fault(delayed(DEADLINE + 3.5), client=1, round=1)])
    assert there.end() == here(experiment, (1, 1))
    assert set(there.dropped()) == {(1, 1)}
    refusals = [decode(a.data)[0] for a in there.transport.came if a.client == 1]
    assert [r.why for r in refusals if isinstance(r, Refusal)] == ["lost-state"]  # the case that is meant


def test_an_old_request_that_can_still_be_carried_out_disturbs_nothing(tmp_path: Path) -> None:
    """Its state has the same version as the one that counts, and another mark."""
    there = RemoteWorld(made("own"), tmp_path, [Fault(silent, client=1, round=1)])
    rounds = there.rounds()
    next(rounds), next(rounds)
    old = next(sent for sent in there.transport.sent if (sent.client, sent.round, sent.kind) == (1, 1, "train.pass"))
    next(rounds)
    there.transport.sites[1].handle(old.data)
    assert [version for version, _ in there.states(1).held()] == [1, 2, 2]
    *_, server = rounds
    assert there.bits(server) == locally("own", (1, 1))


# --- wrong answers --------------------------------------------------------------------------------------------------

Change = Callable[[bytes], bytes]


def note(**changes: Any) -> Change:
    """Another value in an answer's note; `...` takes it out."""

    def change(data: bytes) -> bytes:
        groups, note = from_bytes(data)
        message = {**note["message"], **changes}
        return to_bytes(groups, {"message": {name: value for name, value in message.items() if value is not ...}})

    return change


def tensors(group: str, name: str, value: Any) -> Change:
    """Another tensor in an answer; a function is given the one that was there, `...` takes it out."""

    def change(groups: dict[str, Params]) -> None:
        there = groups[group].pop(name, None)
        if value is not ...:
            groups[group][name] = value(there) if callable(value) else value

    return regrouped(change)


def regrouped(change: Callable[[dict[str, Params]], object]) -> Change:
    def changed(data: bytes) -> bytes:
        groups, note = from_bytes(data)
        change(groups)
        return to_bytes(groups, note)

    return changed


NAN, INF = float("nan"), float("inf")
OTHER = "f" * 32
WRONG: dict[str, tuple[Change, str]] = {
    "garbage": (lambda data: b"\x00garbage" * 20, "a message of 160 bytes is cut short or not one of ours"),
    "cut short": (lambda data: data[:-7], "is cut short or not one of ours"),
    "nothing": (lambda data: b"", "a message of 0 bytes is cut short"),
    "another kind": (lambda data: encode(Refusal(why="failed")), "something went wrong there"),
    "no message at all": (lambda data: to_bytes({"params": {}}, {"weight": 1}), "no message"),
    "a kind that is not known": (note(kind="threat"), "a message is not one of ours"),
    "a field is missing": (note(weight=...), "not one of ours.*weight: field required"),
    "a field is too many": (note(price=3), "not one of ours.*price: extra inputs"),
    "another version": (note(version=7), "its reply is of state 7, not of 2"),
    "the version is no number": (note(version="2"), "not one of ours.*version"),
    "NaN": (tensors("params", "head.weight", lambda v: v * NAN), "head.weight is no longer finite"),
    "a statistic that is not declared": (tensors("stats", "n", torch.ones(2)), "n is not declared"),
    "another shape": (tensors("params", "head.weight", lambda v: v[:-1]), r"head.weight came back as \(4, 16\)"),
    "another dtype": (tensors("params", "head.weight", lambda v: v.double()), "head.weight came back as torch.float64"),
    "an unknown parameter": (tensors("params", "head.more", torch.zeros(3)), "unknown parameter 'head.more'"),
    "a scale that is not due": (
        tensors("params", "head.weight:scale", torch.ones(())),
        "unknown parameter 'head.weight:scale'",
    ),
    "1e38": (tensors("params", "head.weight", lambda v: v * 0 + 1e38), "its update is 8.94e\\+38 long"),
    "far from all others": (tensors("params", "head.weight", lambda v: v + 10), "as long as is typical in this round"),
    "a negative weight": (note(weight=-1.0), r"a client with \d+ samples weighs 0 to \d+, got -1"),
    "more weight than samples": (note(weight=1e6), r"a client with \d+ samples weighs 0 to \d+, got 1e\+06"),
    "more samples than when it joined": (
        note(weight=1e6, samples=10**6),
        "1000000 samples, and had 1[01] when it joined",
    ),
    "a weight of NaN": (note(weight=NAN), "weight"),
    "an endless weight": (note(weight=INF), "weight"),
    "endless seconds": (note(seconds=INF), "not one of ours.*seconds"),
    "another client's": (note(client=2), "it replied to another message than it was sent"),
    "another run's": (note(run=OTHER), "it replied to another message than it was sent"),
    "too long": (tensors("stats", "n", torch.zeros(60_000)), "a reply of 0.2 MB is more than plan.limit=0.1"),
    "an exotic dtype": (tensors("stats", "n", torch.zeros(3).to(torch.float8_e4m3fn)), "n is not declared"),
    "no params": (regrouped(lambda groups: groups.pop("params")), "not one of ours.*params"),
    "one group more": (regrouped(lambda groups: groups.update(secrets={})), "not one of ours.*secrets"),
    "a test's reply": (note(kind="evaluate-reply"), "not one of ours"),
}


@cache
def brief(case: str = "plain", **plan: Any) -> tuple[Experiment, End]:
    method, tuner, more = CASES[case]
    plan = {f"plan.{name}": value for name, value in {"deadline": DEADLINE, "quorum": 0.5, **plan}.items()}
    experiment = world(method, tuner, **{"rounds": 2, "fraction": 1.0, **more, **plan})
    return experiment, here(experiment, (1, 1))


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_answer_is_dropped_with_its_reason_and_others_count(how: str, tmp_path: Path) -> None:
    change, why = WRONG[how]
    experiment, without = brief(limit=0.1)
    there = RemoteWorld(experiment, tmp_path, [Fault(says(change), client=1, round=1)])
    assert there.end() == without
    assert list(there.dropped()) == [(1, 1)]
    assert_matches(there.dropped()[1, 1], why)


def assert_matches(text: str, pattern: str) -> None:
    with pytest.raises(UserError, match=pattern):
        raise UserError(text)


def test_a_replayed_answer_is_laid_aside_and_the_client_waited_for(tmp_path: Path) -> None:
    """The answer of the round before, once more: nothing of it counts, and who sends nothing else is late."""

    def replays(transport: MemoryTransport, sent: Sent) -> Coming:
        transport.replied(sent)
        old = [a for a in transport.came if a.client == sent.client][1]
        return [(1.0, lambda: old)]

    experiment, without = brief()
    there = RemoteWorld(experiment, tmp_path, [Fault(replays, client=1, round=1)])
    assert there.end() == without
    assert there.dropped() == {(1, 1): "late: no reply in time, only to an earlier request"}


def test_no_local_parameter_is_taken_from_an_answer(tmp_path: Path) -> None:
    """Even if the client sends one of its own."""
    experiment, without = brief("own")
    wrong = tensors("params", "local.head.weight", torch.zeros(5, 16))
    there = RemoteWorld(experiment, tmp_path, [Fault(says(wrong), client=1, round=1)])
    assert there.end() == without
    assert "unknown parameter 'local.head.weight'" in there.dropped()[1, 1]


PACKED: dict[str, tuple[str, Change, str]] = {
    "fp16, in whole": (
        "fp16",
        tensors("params", "head.weight", lambda v: v.float()),
        "head.weight is not packed as fp16",
    ),
    "int8, another dtype": (
        "int8",
        tensors("params", "head.weight", lambda v: v.to(torch.uint8)),
        "not packed as int8",
    ),
    "int8, another shape": (
        "int8",
        tensors("params", "head.weight", lambda v: v[0]),
        r"not packed as int8 of \(5, 16\)",
    ),
    "int8, no scale": ("int8", tensors("params", "head.weight:scale", ...), "not packed as int8"),
    "fp16, no scale": ("fp16", tensors("params", "head.weight:scale", ...), "not packed as fp16"),
    "int8, a scale of NaN": ("int8", tensors("params", "head.weight:scale", torch.tensor(NAN)), "no longer finite"),
    "fp16, a scale of inf": ("fp16", tensors("params", "head.weight:scale", torch.tensor(INF)), "no longer finite"),
    "int8, many scales": ("int8", tensors("params", "head.weight:scale", torch.ones(4, 1)), "not packed as int8"),
    "int8, a complex scale": ("int8", tensors("params", "head.weight:scale", torch.tensor(1j)), "not packed as int8"),
    "int8, a scale of nothing": (
        "int8",
        tensors("params", "head.weight", ...),
        "unknown parameter 'head.weight:scale'",
    ),
}


@pytest.mark.parametrize("how", PACKED)
def test_a_wrongly_packed_answer_is_dropped_with_its_reason(how: str, tmp_path: Path) -> None:
    updates, change, why = PACKED[how]
    experiment, without = brief(updates=updates)
    there = RemoteWorld(experiment, tmp_path, [Fault(says(change), client=1, round=1)])
    assert there.end() == without
    assert list(there.dropped()) == [(1, 1)]
    assert_matches(there.dropped()[1, 1], why)


def personal(**changes: Any) -> Change:
    def change(data: bytes) -> bytes:
        groups, note = from_bytes(data)
        note["message"]["personal"] |= changes
        return to_bytes(groups, note)

    return change


SCORES: dict[str, tuple[Change, str]] = {
    "garbage": (lambda data: b"?", "not one of ours"),
    "too few classes": (personal(per_class=[50.0]), "scores of 5 classes"),
    "no classes": (personal(per_class=[]), "scores of 5 classes"),
    "NaN": (personal(values={"overall": NAN}), "personal.values.overall: .*finite"),
    "not a number": (personal(values={"overall": "all"}), "not one of ours"),
    "other metrics": (personal(values={"overall": 50.0}), "personal: .*a score consists of"),
    "an answer": (lambda data: note(kind="pass-reply")(data), "not one of ours"),
    "another client's": (note(client=3), "it replied to another message"),
}


@pytest.mark.parametrize("how", SCORES)
def test_wrong_marks_are_no_score_and_the_run_goes_on(how: str, tmp_path: Path) -> None:
    """The client has no score in that round, and the round's record says why."""
    change, why = SCORES[how]
    experiment, _ = brief()
    there = RemoteWorld(experiment, tmp_path / "sites", [Fault(says(change), client=1, round=0, kind="evaluate.test")])
    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    first, second = there.train(store)
    assert first.clients["1"] is None
    assert None not in (first.clients["0"], second.clients["1"])
    assert_matches(first.dropped["1"], why)
    assert second.dropped == {}
    lines = [json.loads(line) for line in (store.folder / "clients.jsonl").read_text().splitlines()]
    assert [(v["round"], v["client"], v["pass"]) for v in lines if v["dropped"]] == [(1, "1", "evaluate")]


def test_records_say_who_was_dropped_and_why(tmp_path: Path) -> None:
    """Also in the store's logs, where they come back from."""
    experiment = made()
    there = RemoteWorld(experiment, tmp_path / "sites", [Fault(silent, client=1, round=1)])
    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    assert [record.dropped for record in there.train(store)] == [{}, {"1": "late: no reply in time"}, {}]
    assert [row["dropped"] for row in store.rounds()] == [{}, {"1": "late: no reply in time"}, {}]


# --- a quorum -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [silent, unheard, leaves(12), says(lambda data: b"")], ids=["silent", "unheard", "gone", "empty"]
)
def test_a_round_without_its_quorum_is_made_again_to_the_same_bits(fault: Any, tmp_path: Path) -> None:
    """In the middle pass of a round in which clients change."""
    there = RemoteWorld(
        made("labels", quorum=1.0), tmp_path, [Fault(fault, client=2, round=0, pass_name="labels.select", times=1)]
    )
    assert there.end() == locally("labels")
    assert list(there.dropped()) == [(0, 2)]


def test_a_round_that_never_has_its_quorum_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    experiment = made("labels", quorum=1.0, tries=2)
    faults = [Fault(silent, client=2, round=1), Fault(says(lambda data: b""), client=0, round=1)]
    there = RemoteWorld(experiment, tmp_path / "sites", faults)
    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    told = (
        r"round 2: 2 of 4 clients replied, 4 are needed \(plan.quorum\); client 0: a message of 0 bytes .*; "
        r"client 2: late: no reply in time; tried 2 times \(plan.tries\). Resume the run"
    )
    with pytest.raises(UserError, match=told):
        list(there.train(store))
    assert len([sent for sent in there.transport.sent if sent.kind == "train.pass" and sent.round == 1]) == 2 * CLIENTS
    assert there.transport.closed == 1
    there.transport.faults.clear()
    assert [record.round for record in there.train(store, resuming=True)] == [2, 3, 4]
    assert ended(there, store) == locally("labels")


def ended(there: RemoteWorld, store: RunFolder) -> End:
    saved = store.resume()
    assert saved
    return there.bits(*saved)


@pytest.mark.parametrize(
    ("quorum", "lost", "enough"), [(0.5, 2, True), (0.5, 3, False), (0.75, 1, True), (0.01, 3, True), (0.01, 4, False)]
)
def test_a_quorum_is_a_part_of_those_who_were_asked_and_at_least_one(
    quorum: float, lost: int, enough: bool, tmp_path: Path
) -> None:
    faults = [Fault(silent, client=k, round=0) for k in range(lost)]
    there = RemoteWorld(made(quorum=quorum, tries=1), tmp_path, faults)
    if enough:
        next(there.rounds())
        assert len(there.dropped()) == lost
    else:
        with pytest.raises(UserError, match=f"{4 - lost} of 4 clients replied"):
            next(there.rounds())


# --- more than are needed -------------------------------------------------------------------------------------------


def orders(there: RemoteWorld, t: int) -> list[int]:
    return sorted(sent.client for sent in there.transport.sent if sent.kind == "train.pass" and sent.round == t)


def test_more_are_asked_and_the_first_count(tmp_path: Path) -> None:
    """Who is not needed in one round is asked in the next, in which its old answer comes first."""
    slow = [(0, 0), (0, 3), (1, 0), (1, 3), (2, 1), (2, 2)]
    faults = [Fault(late(2.0), client=k, round=t) for t, k in slow]
    experiment = world(tuner="head", fraction=0.5, **{"plan.oversample": 1.0})
    there = RemoteWorld(experiment, tmp_path, faults)
    assert there.end() == locally("plain", *slow)
    assert there.dropped() == dict.fromkeys(slow, NOT_NEEDED)
    assert [orders(there, t) for t in range(3)] == [[0, 1, 2, 3]] * 3


def test_of_answers_that_come_at_once_no_more_count_than_are_needed(tmp_path: Path) -> None:
    there = RemoteWorld(world(tuner="head", fraction=0.5, **{"plan.oversample": 1.0}), tmp_path)
    there.end()
    for t in range(3):
        assert len([v for v in there.log if v.round == t and not v.dropped]) == 2
    assert set(there.dropped().values()) == {NOT_NEEDED}


def test_a_first_round_with_everyone_wants_everyone(tmp_path: Path) -> None:
    """Although fewer are needed in later ones."""
    experiment = world("local", "head", fraction=0.5, **{"plan.oversample": 0.5})
    assert experiment.job.method.everyone_first
    there = RemoteWorld(experiment, tmp_path)
    there.end()
    assert [len(orders(there, t)) for t in range(3)] == [4, 3, 3]
    assert [len([v for v in there.log if v.round == t and not v.dropped]) for t in range(3)] == [4, 2, 2]


# --- lost states ----------------------------------------------------------------------------------------------------


def deleted(path: Path) -> None:
    path.unlink()


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def test_the_server_goes_back_to_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: the sites, which have made the round after it too, have forgotten the states that it starts from."""
    experiment = made("own")
    there = RemoteWorld(experiment, tmp_path / "sites")
    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    records = there.train(store)
    assert [next(records).round for _ in range(3)] == [1, 2, 3]
    with monkeypatch.context() as patch:
        patch.setattr(store, "checkpoint", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            next(records)
    flipped(tmp_path / "run" / "state" / "server-3.safetensors")
    with pytest.warns(Note, match="going back to the checkpoint before it, after round 2"):
        assert [record.round for record in there.train(store, resuming=True)] == [3, 4]
    assert ended(there, store) == locally("own")


@pytest.mark.parametrize(("harm", "told"), [(deleted, "not here"), (flipped, "damaged")])
def test_a_lost_state_stops_the_run_until_it_is_back(harm: Callable[[Path], None], told: str, tmp_path: Path) -> None:
    experiment = made("own")
    there = RemoteWorld(experiment, tmp_path / "sites")
    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    records = there.train(store)
    next(records), next(records)
    path = there.states(1).path(2, there.made.clients[1].state_id)
    shutil.copy(path, tmp_path / "kept")
    harm(path)
    with pytest.raises(UserError, match=r"client 1 has lost its state \(it does not.*resume the run.*plan.lost=anew"):
        list(records)
    *_, last = read_lines(tmp_path / "sites" / "client-1" / "audit")
    assert f"state 2 is {told}" in last.facts["detail"]
    with pytest.raises(UserError, match="client 1 has lost its state"):
        list(there.train(store, resuming=True))
    shutil.copy(tmp_path / "kept", path)
    assert [record.round for record in there.train(store, resuming=True)] == [3, 4]
    assert ended(there, store) == locally("own")


@pytest.mark.parametrize("harm", [deleted, flipped])
def test_a_client_without_its_state_may_begin_anew(harm: Callable[[Path], None], tmp_path: Path) -> None:
    """With plan.lost=anew: as a client that has never been visited, and it is written down."""
    experiment = made("own", lost="anew")
    there = RemoteWorld(experiment, tmp_path)
    local, server = make_engine(experiment), experiment.job.first_server()
    for other in there.rounds():
        server, _ = run_round(experiment, server, local)
        assert server_to_bytes(other) == server_to_bytes(server)
        if server.round == 2:
            harm(there.states(1).path(2, there.made.clients[1].state_id))
            local.clients[1] = ClientState()
    assert there.bits(other)[1] == {k: client_to_bytes(client) for k, client in sorted(local.clients.items())}
    assert there.made.clients[1].version == 2
    assert list(there.dropped()) == [(2, 1)]
    assert there.dropped()[2, 1].startswith("began anew: it does not have the state")
    assert len([v for v in there.log if (v.round, v.client) == (2, 1) and not v.dropped]) == 1


def test_a_client_that_lost_its_state_before_a_test_begins_anew_in_that_round(tmp_path: Path) -> None:
    """And the checkpoint knows it."""
    experiment = made("own", lost="anew")
    there = RemoteWorld(experiment, tmp_path / "sites")
    store = RunFolder.create(tmp_path / "run", experiment.run, {})

    def loses(transport: MemoryTransport, sent: Sent) -> Coming:
        for _, path in there.states(1).held():
            path.unlink()
        return [(1.0, lambda: transport.replied(sent))]

    there.transport.faults.append(Fault(loses, client=1, round=0, kind="evaluate.test", times=1))
    first = next(there.train(store))
    assert first.dropped["1"].startswith("began anew: it does not have the state")
    assert first.clients["1"] is not None
    saved = store.resume()
    assert saved
    assert saved[1][1] == ClientState()


# --- killed ---------------------------------------------------------------------------------------------------------


def rows(store: RunFolder) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in {"seconds", "peak_rss_mb"}} for row in store.rounds()]


def lines(store: RunFolder) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (store.folder / "clients.jsonl").read_text().splitlines()]
    return sorted(({k: v for k, v in row.items() if k != "seconds"} for row in found), key=str)


@pytest.mark.parametrize(
    ("case", "killed", "moment"), [("labels", 2, "sent"), ("labels", 2, "replied"), ("own", 3, "replied")]
)
def test_a_server_killed_at_any_message_of_a_round_goes_on_to_the_same_bits(
    case: str, killed: int, moment: str, tmp_path: Path
) -> None:
    """A round with all its passes, from the first invitation of its process to the last exam: before a client has read
    the message, and after it has replied. Again and again in the same folder, so that what was left is there too."""
    experiment = made(case)
    whole = RemoteWorld(experiment, tmp_path / "straight")
    straight = RunFolder.create(tmp_path / "straight/run", experiment.run, {})
    list(whole.train(straight))
    messages = CLIENTS + len([sent for sent in whole.transport.sent if sent.round == killed])

    there = RemoteWorld(experiment, tmp_path / "sites")
    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    for _ in zip(range(killed), there.train(store), strict=False):
        pass
    for k in range(1, messages + 1):
        there.transport.watch = dying_after(k, moment)
        with pytest.raises(Killed):
            list(there.train(store, resuming=True))
        there.transport.under_way.clear()
    there.transport.watch = lambda event: None
    assert [record.round for record in there.train(store, resuming=True)] == list(
        range(killed + 1, experiment.rounds + 1)
    )
    assert ended(there, store) == ended(whole, straight) == locally(case)
    assert rows(store) == rows(straight)
    assert lines(store) == lines(straight)


def dying_after(k: int, moment: str) -> Callable[[str], None]:
    seen: list[str] = []

    def watch(event: str) -> None:
        seen.append(event)
        if seen.count(moment) == k:
            raise Killed

    return watch


def test_answers_to_a_killed_server_do_not_count_for_the_next(tmp_path: Path) -> None:
    """They come first, and the right ones behind them."""
    experiment = made("own")
    there = RemoteWorld(experiment, tmp_path / "sites")
    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    next(there.train(store))
    there.transport.watch = dying_after(2 * CLIENTS, "sent")
    with pytest.raises(Killed):
        list(there.train(store, resuming=True))
    there.transport.watch = lambda event: None
    assert len(there.transport.under_way) == CLIENTS
    there.transport.under_way = [(there.clock.now + 1.8, what) for _, what in there.transport.under_way]
    list(there.train(store, resuming=True))
    assert not there.transport.under_way
    assert ended(there, store) == locally("own")
    assert all(row["dropped"] == {} for row in rows(store))


def test_a_client_started_anew_before_every_message_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    there = RemoteWorld(made("labels"), tmp_path)

    def anew(transport: MemoryTransport, sent: Sent) -> Coming:
        transport.restart(sent.client)
        return [(1.0, lambda: transport.replied(sent))]

    there.transport.faults.append(Fault(anew, kind=None))
    assert there.end() == locally("labels")


def test_a_client_killed_in_the_middle_of_any_visit_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every visit dies three times: before the state is written, with half of it on disk, and after it is written."""
    there, deaths = RemoteWorld(made("labels"), tmp_path), dict[Path, int]()
    write = site_module.write_atomic

    def dying(path: Path, data: bytes) -> None:
        if path.name == INVITATION:
            return write(path, data)
        deaths[path] = deaths.get(path, 0) + 1
        if deaths[path] == 2:
            path.with_name(path.name + ".part").write_bytes(data[: len(data) // 2])
        if deaths[path] >= 3:
            write(path, data)
        if deaths[path] <= 3:
            raise Killed
        return None

    monkeypatch.setattr(site_module, "write_atomic", dying)
    assert there.end() == locally("labels")
    assert set(deaths.values()) == {4}
    assert there.dropped() == {}


# --- the invitation -------------------------------------------------------------------------------------------------


def test_an_unfit_site_is_refused_at_the_start_by_name(tmp_path: Path) -> None:
    """Whatever the quorum: it would not be fit later either."""
    there = RemoteWorld(made(), tmp_path)

    def make_session(invitation: object, run: object) -> site_module.Session:
        raise Refused("pictures", "there are no pictures of 'maple tree' here")

    there.transport.sites[2] = RemoteClient(tmp_path / "client-2", make_session, ANYTHING, "here")
    with pytest.raises(UserError, match=r"not all clients can take part in this run \(client 2: its pictures cannot"):
        there.engine().open()


def test_too_few_clients_at_the_start_are_an_error_at_the_deadline(tmp_path: Path) -> None:
    there = RemoteWorld(made(quorum=0.75), tmp_path)
    there.transport.away = {1: 1e9, 3: 1e9}
    told = r"only 2 of 4 clients are ready \(client 1: gone: .*; client 3: gone: .*\); start the others"
    with pytest.raises(UserError, match=told):
        there.engine().open()
    assert there.clock.now == pytest.approx(DEADLINE)


def test_who_comes_after_the_start_is_told_of_the_run_then(tmp_path: Path) -> None:
    """With a quorum of the others the run has begun; in the round in which it comes, it takes part."""
    there = RemoteWorld(made(), tmp_path)
    there.transport.away = {1: DEADLINE + 1.5}
    assert there.end() == locally("plain", (0, 1))
    assert [sent.kind for sent in there.transport.sent if sent.client == 1][:2] == ["query.invite", "train.pass"]


def test_a_quorum_is_not_spoilt_by_rounding(tmp_path: Path) -> None:
    """0.07 · 100 is a little more than 7 in binary."""
    assert 0.07 * 100 > 7
    assert RemoteWorld(made(quorum=0.07), tmp_path).engine().quorum(100) == 7


@pytest.mark.parametrize("harm", [deleted, flipped, lambda path: path.write_bytes(b"{}")])
def test_a_site_that_lost_its_invitation_is_told_again(harm: Callable[[Path], None], tmp_path: Path) -> None:
    """It says so, if its invitation is gone or nobody can read it."""
    there = RemoteWorld(made("own"), tmp_path)
    rounds = there.rounds()
    next(rounds)
    path = tmp_path / "client-1" / RUN / INVITATION
    kept = path.read_bytes()
    harm(path)
    there.transport.restart(1)
    *_, server = rounds
    assert there.bits(server) == locally("own")
    assert there.dropped() == {}
    assert path.read_bytes() == kept


@pytest.mark.parametrize("kinds", [["train.pass"], ["train.pass", "query.invite"]])
def test_a_site_that_is_always_a_stranger_holds_up_nobody(kinds: list[str], tmp_path: Path) -> None:
    stranger = says(lambda data: encode(Refusal(why="unknown-run")))
    there = RemoteWorld(made(), tmp_path)
    rounds = there.rounds()
    next(rounds)
    there.transport.faults += [Fault(stranger, client=1, kind=kind) for kind in kinds]
    before = there.clock.now
    next(rounds)
    assert there.clock.now - before < DEADLINE
    assert there.dropped() == {(1, 1): "it asks for the same again and again"}
    assert len([sent for sent in there.transport.sent if sent.client == 1]) < 15


def test_a_site_that_is_always_a_stranger_to_the_invitation_is_not_ready(tmp_path: Path) -> None:
    stranger = says(lambda data: encode(Refusal(why="unknown-run")))
    there = RemoteWorld(made(quorum=1.0), tmp_path, [Fault(stranger, client=1, kind=None)])
    with pytest.raises(UserError, match=r"only 3 of 4 clients are ready \(client 1: it asks for the same again"):
        there.engine().open()


# --- a full disk ----------------------------------------------------------------------------------------------------


def test_a_full_disk_at_a_site_drops_it_and_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = RemoteWorld(made("own"), tmp_path)
    rounds = there.rounds()
    next(rounds)
    folder = tmp_path / "client-1" / RUN
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def no_space(file: int) -> None:
        raise OSError(28, "No space left on device")

    def full(path: Path, data: bytes) -> None:
        with monkeypatch.context() as patch:
            if path.parent == folder:
                patch.setattr(os, "fsync", no_space)
            write(path, data)

    write = site_module.write_atomic
    monkeypatch.setattr(site_module, "write_atomic", full)
    next(rounds)
    assert there.dropped() == {(1, 1): "its disk is full"}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    monkeypatch.setattr(site_module, "write_atomic", write)
    *_, server = rounds
    assert there.bits(server) == locally("own", (1, 1))


# --- nothing leaves -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["own", "fedcopl"])
def test_nothing_that_stays_with_a_client_is_in_any_bytes_that_leave_it(case: str, tmp_path: Path) -> None:
    """All its states' own parameters and memories, in every version, searched for in all that ever came."""
    experiment = made(case)
    there = RemoteWorld(experiment, tmp_path)
    secrets = set[bytes]()
    for _ in there.rounds():
        for k in range(CLIENTS):
            client = there.states(k).read(there.made.clients[k].version, there.made.clients[k].state_id)
            kept = [*client.local.values(), *client.memory.values()]
            secrets |= {raw for raw in (value.numpy().tobytes() for value in kept) if len(set(raw)) > 8}
    there.made.evaluate(experiment, experiment.job.first_server())
    assert len(secrets) >= CLIENTS
    came = [arrival.data for arrival in there.transport.came]
    assert not [secret for secret in secrets for data in came if secret in data]
    shared = next(iter(experiment.job.first_server().params.values())).numpy().tobytes()
    assert any(shared in sent.data for sent in there.transport.sent)  # the search can find what is there


def test_a_clock_of_our_own_is_all_that_is_waited_for(tmp_path: Path) -> None:
    """So none of this takes long."""
    there = RemoteWorld(made(deadline=3600.0), tmp_path, [Fault(silent, client=1, round=1)])
    there.end()
    assert isinstance(there.clock, Clock)
    assert there.clock.now > 3600


STATISTICS: dict[str, tuple[str, Change, str]] = {
    "none": ("capt", regrouped(lambda groups: groups.update(stats={})), "counts is missing"),
    "none of a vote": (
        "labels",
        regrouped(lambda groups: groups.update(stats={})),
        "votes is missing; size is missing",
    ),
    "a class too many": ("capt", tensors("stats", "counts", lambda v: torch.cat([v, v[:1]])), r"counts is \(6,\)"),
    "another type": ("capt", tensors("stats", "counts", lambda v: v.double()), "counts is .* in torch.float64"),
    "fewer than none": ("capt", tensors("stats", "counts", lambda v: v - 100), "counts counts -"),
    "more than there are": (
        "capt",
        tensors("stats", "counts", lambda v: v + 1000),
        r"counts counts .* of 1[01] pictures",
    ),
    "a size out of the blue": ("labels", tensors("stats", "size", torch.tensor(10**12)), r"size counts .* pictures"),
    "NaN": ("scaffold", tensors("stats", "scaffold.all.head.weight", lambda v: v * NAN), "is not finite"),
    "a million times too long": (
        "scaffold",
        tensors("stats", "scaffold.all.head.weight", lambda v: v * 1e6),
        "scaffold.all.head.weight is .* times as long",
    ),
}


@pytest.mark.parametrize("how", STATISTICS)
def test_statistics_that_are_not_as_declared_cost_a_client_its_round(how: str, tmp_path: Path) -> None:
    """It is out of the round, its state is as before it, and the others go on to what they would have without it."""
    case, change, why = STATISTICS[how]
    method, tuner, more = {**CASES, "capt": PAPERS["capt"], "scaffold": ("scaffold", "head", {})}[case]
    experiment = world(method, tuner, **{**more, "fraction": 1.0, "rounds": 2, "plan.quorum": 0.5})
    pass_name, at = ("labels.vote", 0) if case == "labels" else ("train", 1)
    there = RemoteWorld(experiment, tmp_path, [Fault(says(change), client=1, round=at, pass_name=pass_name)])
    assert there.end() == here(experiment, (at, 1))
    assert list(there.dropped()) == [(at, 1)]
    assert_matches(there.dropped()[at, 1], why)


def test_no_weight_is_out_of_proportion(tmp_path: Path) -> None:
    """A client may have many samples: it counts for plan.heaviest times the median at most, and the log says so."""
    experiment = world("fedavg", "head", fraction=1.0, rounds=1, **{"plan.heaviest": 0.5})
    there = RemoteWorld(experiment, tmp_path)
    there.end()
    weights = [len(experiment.client_data[k]) for k in range(CLIENTS)]
    assert {step.weight for step in there.log} == {0.5 * median(weights)}
