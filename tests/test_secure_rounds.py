"""Secure sums in rounds: the same models as without, for each method that says so; who is lost; who refuses what."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.base.errors import UserError
from fedtailor.cli.site_log import done_to
from fedtailor.core.types import Params, Pass, Reply, Server
from fedtailor.methods import METHODS
from fedtailor.methods.fedavg import FedAvg
from fedtailor.privacy.ledger import BY_CLIENT, BY_SIZE
from fedtailor.remote import client as site_module
from fedtailor.remote.audit import read_lines
from fedtailor.remote.client import RemoteClient
from fedtailor.remote.messages import (
    KeysRequest,
    MaskedReply,
    MaskedRequest,
    PassReply,
    PassRequest,
    Refusal,
    decode,
    encode,
)
from fedtailor.remote.policy import ANYTHING
from fedtailor.secure.encoding import UNIT
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import run_round
from remote import (
    RUN,
    Fault,
    Killed,
    MemoryTransport,
    RemoteWorld,
    Sent,
    Without,
    delayed,
    late,
    leaves,
    silent,
    twice,
    unheard,
)
from world import CLIENTS, world

MASKED: dict[str, Any] = {"engine": "flower", "secure": "masked", "fraction": 1.0, "every": 3}
DEADLINE = 10.0
LOST = {
    "the request": silent,
    "the answer": unheard,
    "it is gone for two rounds": leaves(99.0),
    "the answer comes too late": late(99.0),
}
STAGES = ("train.keys", "train.shares", "train.pass", "train.open")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


@cache
def made(method: str = "fedavg", tuner: str = "text_prompt", **more: Any) -> Experiment:
    plan = {"plan.deadline": DEADLINE, "plan.quorum": 0.5}
    return world(method, tuner, **{**MASKED, "rounds": 2, **plan, **more})


def locally(experiment: Experiment, *absent: tuple[int, int]) -> Server:
    """The same run in one process, each reply by itself, without some clients in some rounds."""
    engine, server = Without(experiment.job, experiment.client_data), experiment.job.first_server()
    engine.absent = absent
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
    return server


def apart(one: Server, other: Server) -> float:
    """The largest difference of a parameter or of what else the server remembers."""
    assert one.params.keys() == other.params.keys()
    assert one.state.keys() == other.state.keys()
    pairs = [(value, there[name]) for mine, there in ((one.params, other.params), (one.state, other.state))
             for name, value in mine.items()]  # fmt: skip
    return max((float((value.double() - there.double()).abs().max()) for value, there in pairs), default=0.0)


# --- the same models --------------------------------------------------------------------------------------------------


def test_promptfl_is_the_plain_run_up_to_the_encoding(tmp_path: Path) -> None:
    """After a round: half a unit of each client by the weight of all, and float32's rounding, in either run."""
    experiment = made("promptfl", "text_prompt", rounds=1)
    *_, server = RemoteWorld(experiment, tmp_path).rounds()
    plain, weight = locally(experiment), sum(len(data) for data in experiment.client_data.values())
    largest = max(float(value.abs().max()) for value in plain.params.values())
    assert apart(server, plain) <= CLIENTS * UNIT / 2 / weight + 2 * 2**-24 * largest
    moved = {name: value - experiment.job.start[name] for name, value in plain.params.items()}
    assert max(float(value.abs().max()) for value in moved.values()) > 1e-4  # there is something to be the same


def test_whatever_keys_there_are_and_whoever_comes_back_late_the_bits_are_the_same(tmp_path: Path) -> None:
    """Sums are of whole numbers: a run that was disturbed ends like one that was not."""
    ends = []
    for n, faults in enumerate(
        ([], [], [Fault(silent, client=k, round=1, kind="train.open", times=1) for k in (0, 1)])
    ):
        ends.append(RemoteWorld(made(), tmp_path / str(n), faults).end()[0])
    assert ends[0] == ends[1] == ends[2]


FORMS = {
    "equal weights": ("fedclip", "adapter", {"method.equal": True}),
    "statistics": ("scaffold", "head", {}),
    "by class": ("creff", "resnet", {}),
    "a closing round": ("fedpurel", "text_prompt", {}),
    "a round before": ("tailor", "text_prompt", {}),
    "labels of their own": ("fedcopl", "text_prompt+visual_prompt", {"labels": "zeroshot"}),
    "nothing is shared": ("local", "head", {}),
    "an optimiser at the server": ("fedavg", "head", {"server": "fedadam"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_methods_of_every_form(form: str, tmp_path: Path) -> None:
    method, tuner, more = FORMS[form]
    experiment = made(method, tuner, **more)
    there = RemoteWorld(experiment, tmp_path)
    *_, server = there.rounds()
    plain = locally(experiment)
    assert apart(server, plain) < 2e-5 if server.params else not plain.params
    assert not there.dropped()
    assert {decode(it.data)[0].kind for it in there.transport.came} <= {
        "ready", "keys-reply", "shares-reply", "masked-reply", "open-reply",
    }  # fmt: skip


class SumsOnly(LocalEngine):
    """Clients in this process, of whose replies the method sees what a secure sum leaves: each is the mean of all."""

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        replies = super().__call__(pass_, server, cohort, inbox)
        tasks = [*self.tasks(pass_, server, cohort, inbox).values()]
        assert all(task.inbox.keys() == tasks[0].inbox.keys() for task in tasks)
        assert all(torch.equal(task.inbox[n], tasks[0].inbox[n]) for task in tasks for n in task.inbox)
        layout = self.job.layout(tasks[0].params, self.job.pass_name(pass_))
        even = [replace(it, weight=1.0) if self.job.method.evenly else it for it in replies.values()]
        total = sum((layout.encoded(it) for it in even), np.zeros(layout.words, np.uint64))
        return dict.fromkeys(sorted(replies), layout.mean(total, len(replies)))


def rounds(experiment: Experiment, engine: type[LocalEngine]) -> Server:
    made, server = engine(experiment.job, experiment.client_data), experiment.job.first_server()
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, made)
    return server


OWN_SERVER = ("creff", "fedclip", "fedpurel", "fedtpg", "scaffold", "tailor")  # the others' is FedAvg's
CLAIMS = [
    pytest.param(name, marks=[] if name in OWN_SERVER else [pytest.mark.slow])
    for name, entry in METHODS.items()
    if entry.method.trains and not entry.method().singly and name != "central"  # which has nobody to add up
]


@pytest.mark.parametrize("name", CLAIMS)
def test_who_says_that_sums_are_enough_is_held_to_it(name: str) -> None:
    """Two rounds with replies and two with their mean end in the same, but for rounding."""
    tuner = METHODS[name].tuner if METHODS[name].tuners else "text_prompt"
    labels = {"labels": "zeroshot"} if name == "fedcopl" else {}
    experiment = world(name, tuner, rounds=2, fraction=1.0, **labels)
    assert apart(rounds(experiment, SumsOnly), rounds(experiment, LocalEngine)) < 5e-5


def test_that_would_show_who_says_so_and_is_wrong() -> None:
    class Median(FedAvg):
        @property
        def singly(self) -> str:
            return ""

        def aggregate(self, server: Server, replies: Mapping[int, Reply]) -> Server:
            names = next(iter(replies.values())).params
            middle = {n: torch.stack([it.params[n] for it in replies.values()]).median(0).values for n in names}
            return replace(server, params={**server.params, **middle})

    experiment = world("fedavg", "head", rounds=2, fraction=1.0)
    wrong = replace(experiment, job=replace(experiment.job, method=Median(local=experiment.run.local)))
    assert apart(rounds(wrong, SumsOnly), rounds(wrong, LocalEngine)) > 1e-3
    rucr = world("rucr", "resnet", rounds=2, fraction=1.0)
    with pytest.raises(UserError, match="counts counts pictures"):
        rounds(rucr, SumsOnly)


def test_a_method_from_elsewhere_says_nothing_and_is_refused() -> None:
    class Own(FedAvg):
        def aggregate(self, server: Server, replies: Mapping[int, Reply]) -> Server:
            return super().aggregate(server, replies)

    assert not FedAvg().singly
    assert "does not say that the mean of their replies is enough" in Own().singly


# --- what the server sees ---------------------------------------------------------------------------------------------


def trained(there: RemoteWorld, k: int) -> list[bytes]:
    """The parameters that a client has reached, as it would send them: each two neighbours in float32, and encoded."""
    version, path = there.states(k).held()[-1]
    tuned = there.states(k).read(version, path.name.split("-", 2)[2]).tuned
    raw = [value.flatten().numpy().tobytes() for value in tuned.values()]
    assert any(any(it) for it in raw)
    return [it[at : at + 8] for it in raw for at in range(0, len(it) - 8, 4)]


@pytest.mark.parametrize("secure", ["none", "masked"])
def test_no_byte_of_a_parameter_that_a_client_has_reached_comes_to_the_server(secure: str, tmp_path: Path) -> None:
    """Nor its weight. In the plain run they do."""
    experiment = made(secure=secure, rounds=1)
    there = RemoteWorld(experiment, tmp_path)
    assert [*there.rounds()]
    came = b"".join(it.data for it in there.transport.came)
    seen = [any(piece in came for piece in trained(there, k)) for k in range(CLIENTS)]
    assert seen == [secure == "none"] * CLIENTS
    weights = [step.weight for step in there.log if not step.dropped]
    assert (None in weights) == (secure == "masked")
    assert (rb"\"weight\"" in came) == (secure == "none")


def test_a_masked_word_is_no_word_of_the_reply(tmp_path: Path) -> None:
    """Of what was about to be masked, nothing is in what came."""
    encoded: list[np.ndarray[Any, Any]] = []
    real = site_module.Vault.keep_masked

    def keep(vault: Any, words: Any, *rest: Any) -> None:
        encoded.append(words)
        real(vault, words, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_module.Vault, "keep_masked", keep)
        there = RemoteWorld(made(rounds=1), tmp_path)
        assert [*there.rounds()]
    replies = [tensors["masked"]["words"] for it in there.transport.came
               for message, tensors in [decode(it.data)] if isinstance(message, MaskedReply)]  # fmt: skip
    assert len(replies) == len(encoded) == CLIENTS
    came = {int(word) for words in replies for word in words}
    assert not came & {int(word) for words in encoded for word in words.view(np.int64)}


# --- who is lost ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("stage", STAGES)
def test_a_client_lost_at_any_stage(stage: str, fault: str, tmp_path: Path) -> None:
    """The round is that of the others, but for who is lost when the sum is opened: it is in it."""
    there = RemoteWorld(made(), tmp_path, [Fault(LOST[fault], client=2, round=0, kind=stage, times=1)])
    *_, server = there.rounds()
    lost = [(0, 2)] if stage != "train.open" else []
    lost += [(1, 2)] if fault == "it is gone for two rounds" else []
    assert apart(server, locally(made(), *lost)) < 2e-5
    assert there.dropped().keys() == set(lost)


@pytest.mark.parametrize("fault", [twice, delayed(3.0), leaves(3.0)])
def test_messages_that_come_twice_or_late_change_nothing(fault: Any, tmp_path: Path) -> None:
    faults = [Fault(fault, client=2, kind=stage, times=1) for stage in STAGES]
    there = RemoteWorld(made(), tmp_path, faults)
    *_, server = there.rounds()
    assert apart(server, locally(made())) < 2e-5
    assert not there.dropped()


def restarted(transport: MemoryTransport, sent: Sent) -> Any:
    """The site was killed after its last answer, and has nothing but its disk."""
    transport.restart(sent.client)
    return [(transport.pace, lambda: transport.replied(sent))]


def test_sites_started_anew_before_every_message(tmp_path: Path) -> None:
    there = RemoteWorld(made(), tmp_path, [Fault(restarted, kind=stage) for stage in STAGES])
    *_, server = there.rounds()
    assert apart(server, locally(made())) < 2e-5
    assert not there.dropped()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_site_killed_as_it_writes_its_answer(stage: str, when: str, tmp_path: Path) -> None:
    """It is asked the same again when it is back, and answers what it has on disk, or anew if it has nothing there."""
    written, real = 0, site_module.Vault.write

    def write(vault: Any) -> None:
        nonlocal written
        here = vault.me == 1 and vault.order.kind == STEPS[stage]
        if here and not written and when == "before":
            written = 1
            raise Killed
        real(vault)
        if here and not written:
            written = 1
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_module.Vault, "write", write)
        there = RemoteWorld(made(), tmp_path)
        *_, server = there.rounds()
    assert written
    assert apart(server, locally(made())) < 2e-5
    assert not there.dropped()


STEPS = dict(zip(STAGES, ("keys-request", "shares-request", "masked-request", "open-request"), strict=True))


@pytest.mark.parametrize("stage", STAGES)
def test_with_too_few_the_round_is_tried_again_with_other_keys(stage: str, tmp_path: Path) -> None:
    faults = [Fault(silent, client=k, round=0, kind=stage, times=1) for k in (0, 3)]
    there = RemoteWorld(made(), tmp_path, faults)
    *_, server = there.rounds()
    assert apart(server, locally(made())) < 2e-5
    sums = [it.message.masking for it in there.transport.sent
            if isinstance(it.message, KeysRequest) and it.client == 1]  # fmt: skip
    assert len(sums) == len(set(sums)) == 3  # two rounds, one of them twice
    assert there.dropped().keys() == {(0, 0), (0, 3)}


def test_with_too_few_every_time_the_run_ends_and_says_why(tmp_path: Path) -> None:
    faults = [Fault(silent, client=k, kind="train.open") for k in (0, 3)]
    with pytest.raises(UserError, match=r"the sum of the replies cannot be opened: 2 shares of a secret of client \d"):
        RemoteWorld(made(), tmp_path, faults).end()


WRONG = {"all": slice(None), "a weight": slice(0, 1), "a count": slice(1, 2), "a parameter": slice(3, 4)}


@pytest.mark.parametrize("where", WRONG)
def test_a_client_that_sends_what_no_reply_can_be(where: str, tmp_path: Path) -> None:
    """The sum is not one of replies: the round does not count, and the run goes on when the client is as it should."""

    def wrong(transport: MemoryTransport, sent: Sent) -> Any:
        arrival = transport.replied(sent)
        message, tensors = decode(arrival.data)
        words = tensors["masked"]["words"]
        words[WRONG[where]] += 1 << 50
        return [(1.0, lambda: replace(arrival, data=encode(message, masked={"words": words})))]

    there = RemoteWorld(made(), tmp_path, [Fault(wrong, client=1, round=0, times=1)])
    *_, server = there.rounds()
    assert apart(server, locally(made())) < 2e-5
    assert sum(isinstance(it.message, KeysRequest) for it in there.transport.sent) == 3 * CLIENTS


def test_an_update_beyond_the_range_never_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtailor.secure.encoding.most", lambda clients: 1e-9)
    there = RemoteWorld(made(rounds=1), tmp_path)
    with pytest.raises(UserError, match="its update is too large for a secure sum; a smaller lr may help"):
        there.end()
    assert not any(isinstance(decode(it.data)[0], MaskedReply) for it in there.transport.came)
    rows = [line.facts for line in read_lines(tmp_path / "client-0" / "audit")]
    assert any("that each of 4 clients may add to a secure sum" in row["detail"] for row in rows)


# --- who refuses what -------------------------------------------------------------------------------------------------


def site_of(there: RemoteWorld) -> tuple[RemoteClient, Any]:
    """A site that has joined, and the first pass that it would be asked for."""
    engine = there.engine()
    engine.open()
    params = there.experiment.job.first_server().params
    about = {"run": RUN, "client": 0, "version": 0, "state_id": "", "kept": 0, "pass_name": "train", "round": 0}
    return there.transport.sites[0], (about, params)


def test_a_pass_in_the_clear_is_refused_in_a_run_of_sums_and_the_other_way_round(tmp_path: Path) -> None:
    site, (about, params) = site_of(RemoteWorld(made(), tmp_path / "a"))
    asked = encode(PassRequest(**about, request_id="00000000-1"), params=params, inbox={})
    reply = decode(site.handle(asked))[0]
    assert isinstance(reply, Refusal)
    assert reply.why == "beyond"
    plain, (about, params) = site_of(RemoteWorld(made(secure="none"), tmp_path / "b"))
    asked = encode(
        MaskedRequest(**about, request_id="00000000-1", masking="a" * 32, sealed={}), params=params, inbox={}
    )
    reply = decode(plain.handle(asked))[0]
    assert isinstance(reply, Refusal)
    assert reply.why == "beyond"
    assert isinstance(
        decode(plain.handle(encode(PassRequest(**about, request_id="00000000-2"), params=params, inbox={})))[0],
        PassReply,
    )


def test_a_site_whose_policy_asks_for_sums(tmp_path: Path) -> None:
    policy = ANYTHING.model_copy(update={"secure": "required"})
    assert [*RemoteWorld(made(rounds=1), tmp_path / "a", policy=policy).rounds()]
    with pytest.raises(UserError, match="its policy asks for secure=masked"):
        RemoteWorld(made(secure="none"), tmp_path / "b", policy=policy).end()
    more = ANYTHING.model_copy(update={"together": 5})
    with pytest.raises(UserError, match="its policy asks for more sites in a secure sum"):
        RemoteWorld(made(), tmp_path / "c", policy=more).end()


def test_the_sites_log_says_that_a_reply_was_masked_and_among_whom(tmp_path: Path) -> None:
    assert [*RemoteWorld(made(rounds=1), tmp_path).rounds()]
    rows = [line.facts for line in read_lines(tmp_path / "client-2" / "audit")]
    told = {row["what"]: row["secure"] for row in rows}
    assert told["ready"] is None
    assert told["masked-reply"] == told["open-reply"]
    assert told["masked-reply"]["among"] == [0, 1, 3]
    assert len(told["masked-reply"]["sum"]) == 32
    assert {row["what"]: done_to(row) for row in rows}["masked-reply"] == ["in a sum with 3 others"]


REFUSED = {
    "engine": ({"engine": "local"}, "of which engine=local has none"),
    "clusters": ({"method": "capt"}, "capt averages in clusters"),
    "rucr": ({"method": "rucr"}, "rucr takes the directions of each client's features"),
    "released": ({"method": "fedavg-released"}, "fedavg-released asks one client after the other"),
    "votes": ({"method": "fedcopl"}, "labels=copl evens out classes by the votes of each client"),
    "robust": ({"robust": "median"}, "robust=median compares them with each other"),
    "bits": ({"plan.updates": "int8"}, "take plan.updates=fp32"),
    "oversample": ({"plan.oversample": 0.5}, "take plan.oversample=0"),
    "few": ({"clients": 20, "fraction": 0.1}, "hides a client among 3 or more in each round; here it has 2"),
    "odd": ({"secure.neighbours": 5}, "secure.neighbours: 0, or an even number, 4 or more"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_go_with_it(case: str) -> None:
    more, told = REFUSED[case]
    settings = {"engine": "flower", "secure": "masked", "clients": 4, **more}
    with pytest.raises(UserError, match=told):
        make_run(settings.pop("method", "fedavg"), settings)


def test_what_goes_with_it() -> None:
    run = make_run("promptfl", {"engine": "flower", "secure": "masked", "secure.neighbours": 4})
    assert run.secure.value is not None
    assert run.secure.value.neighbours == 4
    assert make_run(settings={"method": "promptfl"}).secure.value is None


# --- with noise -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("against", ["server", "others"])
def test_with_noise_the_budget_is_counted_as_without_sums(against: str, tmp_path: Path) -> None:
    """By those who are in the sum: who is lost adds no noise."""
    pytest.importorskip("dp_accounting")
    noise = {"privacy": "gaussian", "privacy.against": against, "privacy.generator": "seeded", "rounds": 1}
    fault, ends = Fault(silent, client=2, times=1), []
    for secure in ("none", "masked"):
        *_, server = RemoteWorld(made(secure=secure, **noise), tmp_path / secure, [replace(fault)]).rounds()
        ends.append(server)
    assert apart(*ends) < 2e-5
    assert ends[1].state[BY_SIZE + "updates"].tolist() == [0, 0, 0, 1, 0]
    assert ends[1].state[BY_CLIENT + "updates"].tolist() == [1, 1, 1, 1]
