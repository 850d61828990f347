"""A site: what it answers to messages, what it keeps on its disk, and what never leaves it."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedtailor import __version__
from fedtailor.base.errors import UserError
from fedtailor.base.sizes import size
from fedtailor.client.codec import client_to_bytes, to_bytes
from fedtailor.client.job import ClientState, Task
from fedtailor.client.step import client_step
from fedtailor.core.types import Params
from fedtailor.data.paper import AS_CLIP
from fedtailor.data.pictures import BrokenPicture
from fedtailor.remote import client as site_module
from fedtailor.remote.audit import read_lines
from fedtailor.remote.client import DIGEST, INVITATION, MakeSession, RemoteClient, Session, StateFiles
from fedtailor.remote.messages import (
    EvaluateRequest,
    Invitation,
    Message,
    PassReply,
    PassRequest,
    Ready,
    Refusal,
    decode,
    encode,
)
from fedtailor.remote.policy import ANYTHING
from fedtailor.remote.refusal import Refused
from fedtailor.settings.run import Run
from test_visit import SECRET, NoData, job

RUN, OTHER = "a" * 32, "b" * 32
ME = 3
DOWN = {"g": torch.tensor([1.0, 2.0])}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody cuts the power here."""
    monkeypatch.setattr("os.fsync", lambda file: None)


def invitation(**more: Any) -> Invitation:
    rest = {
        "settings": "",
        "weights": "",
        "classes": ("a",),
        "template": "{}",
        "paper": AS_CLIP,
        "groups": {},
        "name": "",
    }
    return Invitation(**{"run": RUN, "client": ME, "version": __version__, **rest, **more})


def make_session(invitation: Invitation, run: Run) -> Session:
    tests: Any = SimpleNamespace(labels=range(5))
    return Session(invitation.client, replace(job(), rounds=9), NoData(), tests, None, threads=1)  # type: ignore[arg-type]


def a_site(folder: Path, make_session: MakeSession = make_session) -> RemoteClient:
    return RemoteClient(folder, make_session, ANYTHING, "here")


def request(n: int, version: int = 0, state_id: str = "", pass_: str = "recalling", **more: Any) -> PassRequest:
    there = {"run": RUN, "client": ME, "request_id": f"00000000-{n}", "kept": 0, "round": 5}
    return PassRequest(**{**there, "version": version, "state_id": state_id, "pass_name": pass_, **more})


@pytest.fixture
def site(tmp_path: Path) -> RemoteClient:
    site = a_site(tmp_path)
    assert read(site.handle(encode(invitation()))) == Ready(samples=3, tests=5)
    return site


def read(data: bytes) -> Message:
    return decode(data)[0]


def sent(site: RemoteClient, message: Message) -> Message:
    groups: dict[str, Params] = {"params": DOWN, "inbox": {}, "stats": {}}
    return read(site.handle(encode(message, **{name: groups[name] for name in message.tensors})))


def refused(site: RemoteClient, message: Message) -> tuple[str, str]:
    """The code that leaves, and what it was about, which stays: the last line of the site's log has it."""
    answer = sent(site, message)
    assert isinstance(answer, Refusal)
    *_, last = read_lines(site.folder / "audit")
    assert last.facts["detail"] not in answer.text
    assert last.facts["why"] == answer.why
    return answer.why, last.facts["detail"]


def files(site: RemoteClient, run: str = RUN) -> list[str]:
    return sorted(path.name for path in (site.folder / run).iterdir() if path.name != INVITATION)


def kept(folder: Path) -> set[str]:
    """In a site's folder, but for what it writes of itself."""
    return {path.name for path in folder.iterdir()} - {"audit", "spent.json"}


def test_a_request_is_a_client_step(site: RemoteClient) -> None:
    """The reply is the step's own, and the state on disk is the one it left, named by the request."""
    data = site.handle(encode(request(1), params=DOWN, inbox={}))
    reply, after = client_step(
        job(), ME, job().find_pass("recalling"), Task("recalling", 5, DOWN), ClientState(), NoData()
    )
    answer, tensors = decode(data)
    assert isinstance(answer, PassReply)
    assert (answer.request_id, answer.version, answer.samples, answer.weight) == ("00000000-1", 1, 3, reply.weight)
    assert tensors["stats"]["n"].item() == 1
    assert torch.equal(tensors["stats"]["l"], reply.stats["l"])
    kept = StateFiles(site.folder / RUN).read(1, "00000000-1")
    assert client_to_bytes(kept) == client_to_bytes(replace(after, state_id="00000000-1"))


def test_a_request_is_carried_out_from_the_state_that_it_names(site: RemoteClient) -> None:
    """Not from the last one: whatever came of other requests meanwhile is as if it had not been."""
    sent(site, request(1))
    for n in (2, 3, 4):
        data = site.handle(encode(request(n, 1, "00000000-1"), params=DOWN, inbox={}))
        assert decode(data)[1]["stats"]["n"].item() == 2
    assert files(site) == ["state-1-00000000-1", "state-2-00000000-2", "state-2-00000000-3", "state-2-00000000-4"]
    data = site.handle(encode(request(5, 2, "00000000-3"), params=DOWN, inbox={}))
    assert decode(data)[1]["stats"]["n"].item() == 3


def test_the_same_request_again_is_the_same_reply(site: RemoteClient) -> None:
    """But for the seconds."""
    message = encode(request(1, pass_="drawing"), params=DOWN, inbox={})
    (first, drawn), (again, same) = decode(site.handle(message)), decode(site.handle(message))
    assert first.model_copy(update={"seconds": 0}) == again.model_copy(update={"seconds": 0})
    assert torch.equal(drawn["stats"]["draw"], same["stats"]["draw"])
    assert files(site) == ["state-1-00000000-1"]


def test_only_states_that_may_be_asked_for_are_kept(site: RemoteClient) -> None:
    """By the server's word alone, and of all ids."""
    state_id = ""
    for n in range(1, 5):
        sent(site, request(n, n - 1, state_id))
        state_id = f"00000000-{n}"
    sent(site, request(9, 1, "00000000-1"))  # one that did not count
    assert len(files(site)) == 5
    sent(site, request(10, 4, state_id, kept=3))
    assert files(site) == ["state-3-00000000-3", "state-4-00000000-4", "state-5-00000000-10"]
    sent(site, request(11, 4, state_id, kept=0))
    assert len(files(site)) == 4


def test_other_files_and_runs_are_left_alone(site: RemoteClient) -> None:
    assert read(site.handle(encode(invitation(run=OTHER)))) == Ready(samples=3, tests=5)
    sent(site, request(1, run=OTHER))
    sent(site, request(1))
    for name in ("notes.txt", "state-0-x", "state-1-00000000-1.bak"):
        (site.folder / RUN / name).write_text("mine")
    sent(site, request(2, 1, "00000000-1", kept=1000))
    assert files(site) == ["notes.txt", "state-0-x", "state-1-00000000-1.bak"]
    assert files(site, OTHER) == ["state-1-00000000-1"]


def test_a_state_that_is_not_there_is_lost_and_what_there_is_is_told(site: RemoteClient) -> None:
    assert refused(site, request(2, 1, "00000000-1")) == (
        "lost-state",
        "state 1 is not here; of this run there are: none",
    )
    sent(site, request(1))
    assert refused(site, request(2, 1, "00000000-9")) == ("lost-state", "state 1 is not here; of this run there are: 1")
    assert refused(site, request(2, 1, "")) == ("lost-state", "state 1 is not here; of this run there are: 1")


@pytest.mark.parametrize("at", [0, DIGEST - 1, DIGEST, DIGEST + 60, -1])
def test_one_damaged_byte_is_noticed(at: int, site: RemoteClient) -> None:
    sent(site, request(1))
    path = site.folder / RUN / "state-1-00000000-1"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert refused(site, request(2, 1, "00000000-1")) == ("lost-state", "state 1 is damaged; of this run there are: 1")


@pytest.mark.parametrize("length", [0, 1, DIGEST, DIGEST + 40])
def test_a_state_cut_short_is_noticed(length: int, site: RemoteClient) -> None:
    sent(site, request(1))
    path = site.folder / RUN / "state-1-00000000-1"
    path.write_bytes(path.read_bytes()[:length])
    assert refused(site, request(2, 1, "00000000-1"))[0] == "lost-state"


def test_refusals_bear_the_id_of_what_they_refuse(site: RemoteClient) -> None:
    """So that one of an old request is not taken for one of the request that is due."""
    for message in (
        request(7, 1, "00000000-1"),
        request(7, run=OTHER),
        request(7, client=1),
        request(7, pass_="failing"),
    ):
        answer = sent(site, message)
        assert isinstance(answer, Refusal)
        assert answer.request_id == "00000000-7"
    unreadable = read(site.handle(b"?"))
    assert isinstance(unreadable, Refusal)
    assert unreadable.request_id == ""


# --- messages that are not for it -----------------------------------------------------------------------------------


def raw(message: Message, **change: Any) -> bytes:
    note = {"message": {**message.model_dump(mode="json"), **change}}
    return to_bytes({"params": DOWN, "inbox": {}} if isinstance(message, PassRequest) else {}, note)


@pytest.mark.parametrize(
    "data",
    [
        raw(request(1), run="../" + "a" * 29),
        raw(request(1), run="../../x"),
        raw(request(1), request_id="../x"),
        raw(request(1), request_id="00000000-1/../../x"),
        raw(request(1), state_id="../x", version=1),
        raw(invitation(), run="../x"),
        raw(invitation(), run="/tmp/" + "a" * 27),
        raw(invitation(), run=""),
    ],
)
def test_no_message_reaches_another_folder(data: bytes, site: RemoteClient) -> None:
    """Nothing is read, nothing is written, and it is told why."""
    before = sorted(str(path) for path in site.folder.parent.rglob("*"))
    answer = read(site.handle(data))
    assert isinstance(answer, Refusal)
    assert answer.why == "unreadable"
    *_, last = read_lines(site.folder / "audit")
    assert "string should match pattern" in last.facts["detail"]
    assert sorted(str(path) for path in site.folder.parent.rglob("*")) == before


def test_a_message_for_another_client_is_refused(site: RemoteClient) -> None:
    told = ("unreadable", "a message for client 1 came to client 3")
    assert refused(site, request(1, client=1)) == told
    assert refused(site, EvaluateRequest(run=RUN, client=1, request_id="00000000-1", version=0, state_id="")) == told
    assert files(site) == []


@pytest.mark.parametrize(
    "message",
    [
        Ready(samples=1, tests=1),
        Refusal(why="lost-state"),
        PassReply(run=RUN, client=ME, request_id="00000000-1", version=1, samples=3, seconds=1.0, weight=1.0),
    ],
)
def test_what_only_a_server_should_get_is_refused(message: Message, site: RemoteClient) -> None:
    assert refused(site, message) == ("unreadable", f"a {message.kind} is not for clients")


@pytest.mark.parametrize("data", [b"", b"?", b"\xff" * 300, encode(request(1), params=DOWN, inbox={})[:-1]])
def test_garbage_is_refused_and_the_site_lives_on(data: bytes, site: RemoteClient) -> None:
    answer = read(site.handle(data))
    assert isinstance(answer, Refusal)
    assert answer.why == "unreadable"
    assert isinstance(sent(site, request(1)), PassReply)


@pytest.mark.parametrize(
    ("pass_", "code", "told"),
    [
        ("complaining", "failed", "Odd.complaining, client 3, round 6: this will not do"),
        ("failing", "failed", "ZeroDivisionError: oh"),
        ("diverged", "diverged", "g is no longer finite"),
        ("nothing", "beyond", "there is no pass 'nothing' here"),
    ],
)
def test_a_pass_that_fails_is_told_and_leaves_the_state_alone(
    pass_: str, code: str, told: str, site: RemoteClient
) -> None:
    sent(site, request(1))
    before = (site.folder / RUN / "state-1-00000000-1").read_bytes()
    why, text = refused(site, request(2, 1, "00000000-1", pass_))
    assert (why, told in text) == (code, True)
    assert files(site) == ["state-1-00000000-1"]
    assert (site.folder / RUN / "state-1-00000000-1").read_bytes() == before


# --- the invitation -------------------------------------------------------------------------------------------------


def test_a_site_that_was_not_told_of_a_run_does_not_know_it(tmp_path: Path) -> None:
    assert refused(a_site(tmp_path), request(1)) == ("unknown-run", "this client has no invitation to the run")
    assert kept(tmp_path) == set()


def test_a_site_started_anew_goes_on_by_its_kept_invitation(site: RemoteClient) -> None:
    """It furnishes its session once, however many messages come."""
    seen: list[Invitation] = []

    def counting(invitation: Invitation, run: Run) -> Session:
        seen.append(invitation)
        return make_session(invitation, run)

    sent(site, request(1))
    anew = a_site(site.folder, counting)
    assert isinstance(sent(anew, request(2, 1, "00000000-1")), PassReply)
    assert isinstance(sent(anew, request(3, 1, "00000000-1")), PassReply)
    assert seen == [invitation()]


def test_another_version_is_unfit(tmp_path: Path) -> None:
    why, text = refused(a_site(tmp_path), invitation(version="0.0.7"))
    assert why == "version"
    assert text == f"this client has fedtailor {__version__}, the server 0.0.7"
    assert kept(tmp_path) == set()


def test_an_invitation_that_only_another_version_can_read_is_known_as_such(tmp_path: Path) -> None:
    """Broken: as `unreadable` nobody would know that the site is to be upgraded. Of our own version it is damaged."""

    def with_news(version: str) -> bytes:
        note = invitation(version=version).model_dump(mode="json")
        return to_bytes({}, {"message": {**note, "news": 1}})

    for version, why in (("99.0", "version"), (__version__, "unreadable")):
        answer = decode(a_site(tmp_path).handle(with_news(version)))[0]
        assert isinstance(answer, Refusal)
        assert (answer.why, answer.version) == (why, __version__ if why == "version" else "")


def test_after_an_upgrade_a_site_asks_to_be_invited_anew(site: RemoteClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The invitation that it kept was of another version; by now the server may be upgraded too."""
    monkeypatch.setattr(site_module, "__version__", "99.0")
    after = a_site(site.folder)
    assert refused(after, request(1))[0] == "unknown-run"
    assert isinstance(sent(after, invitation(version="99.0")), Ready)
    assert isinstance(sent(after, request(1)), PassReply)


def test_what_the_site_cannot_do_is_unfit_and_what_went_wrong_is_failed(tmp_path: Path) -> None:
    def raising(error: Exception) -> MakeSession:
        def make_session(invitation: Invitation, run: Run) -> Session:
            raise error

        return make_session

    broken = BrokenPicture(Path("patient-0417.png"), "not a picture")
    for error, told in (
        (UserError("no such layer"), ("settings", "no such layer")),
        (Refused("pictures", "no pictures"), ("pictures", "no pictures")),
        (broken, ("pictures", str(broken))),
        (OSError(5, "I/O error"), ("failed", "[Errno 5] I/O error")),
    ):
        assert refused(a_site(tmp_path, raising(error)), invitation()) == told
    assert kept(tmp_path) == set()


@pytest.mark.parametrize("data", [b"", b"?", encode(invitation(run=OTHER)), encode(Ready(samples=1, tests=1))])
def test_an_invitation_that_cannot_be_read_is_as_good_as_none(data: bytes, site: RemoteClient) -> None:
    """It will be sent again."""
    (site.folder / RUN / INVITATION).write_bytes(data)
    anew = a_site(site.folder)
    assert refused(anew, request(1))[0] == "unknown-run"
    sent(anew, invitation())
    assert isinstance(sent(anew, request(1)), PassReply)


# --- a full disk, and secrets ---------------------------------------------------------------------------------------


def test_a_full_disk_leaves_nothing_half_done(site: RemoteClient, monkeypatch: pytest.MonkeyPatch) -> None:
    sent(site, request(1))

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            sent(site, request(2, 1, "00000000-1"))  # not even a line about a refusal fits
        assert files(site) == ["state-1-00000000-1"]
    assert isinstance(sent(site, request(3, 1, "00000000-1")), PassReply)


def test_what_stays_is_in_no_bytes_that_leave(site: RemoteClient) -> None:
    """LOCAL and FIXED parameters and what a pass keeps are secrets; they are on the site's disk and nowhere else."""
    secret = struct.pack("<f", SECRET)
    left = [site.handle(encode(request(1, pass_="leaky"), params=DOWN, inbox={}))]
    for n, pass_ in enumerate(("drawing", "unknown", "misshaped", "failing", "diverged_at_home", "destroying")):
        left.append(site.handle(encode(request(2 + n, 1, "00000000-1", pass_), params=DOWN, inbox={})))
    left.append(site.handle(encode(request(9, 7, "00000000-9"), params=DOWN, inbox={})))
    assert not [data for data in left if secret in data or str(SECRET).encode() in data]
    kept = (site.folder / RUN / "state-1-00000000-1").read_bytes()
    assert kept.count(secret) == 3  # twice in l, once in k: the search can find it
    assert decode(left[0])[1]["params"]["g"].tolist() == [2.0, 3.0]


def test_states_by_themselves(tmp_path: Path) -> None:
    """Version 0 is nothing; others are whole or refused."""
    states = StateFiles(tmp_path)
    assert states.read(0, "anything") == ClientState()
    client = ClientState({"l": torch.ones(2)}, {}, {}, 2, "00000000-1")
    states.write(client)
    assert client_to_bytes(states.read(2, "00000000-1")) == client_to_bytes(client)
    with pytest.raises(Refused, match="state 3 is not here; of this run there are: 2") as caught:
        states.read(3, "00000000-1")
    assert caught.value.why == "lost-state"
    states.forget(below=2)
    assert len(states.held()) == 1
    states.forget(below=3)
    assert states.held() == []


def test_what_was_asked_is_said_with_its_time_and_bytes(site: RemoteClient, caplog: pytest.LogCaptureFixture) -> None:
    """By the run's name and for machines too; once more if it was asked again; why it is refused if it is."""
    caplog.set_level("DEBUG")
    ready = site.handle(encode(invitation(name="capt-1")))
    data = [site.handle(encode(request(n), params=DOWN, inbox={})) for n in (1, 2)]
    site.handle(encode(request(3, round=9), params=DOWN, inbox={}))
    told = [(record.getMessage(), vars(record)) for record in caplog.records if record.name == "fedtailor.site"]
    sentences = [re.sub(r"took [\d.]+ s", "took a moment", sentence) for sentence, _ in told]
    assert sentences == [
        "capt-1: invited to this run of the server's",
        f"capt-1: ready, 3 images to train on, 5 to test, CLIP ; {size(len(ready))} to the server",
        "capt-1, round 6 of 9: recalling: begins",
        f"capt-1, round 6 of 9: recalling took a moment; {size(len(data[0]))} to the server",
        "capt-1, round 6 of 9: recalling: begins",
        f"capt-1, round 6 of 9: recalling, asked again, took a moment; {size(len(data[1]))} to the server",
        "capt-1, round 10 of 9: recalling: refused (beyond), round 10 of a run of 9",
    ]
    facts = told[3][1]["facts"]
    assert (facts["run"], facts["name"], facts["round"], facts["pass"]) == (RUN, "capt-1", 6, "recalling")
    assert facts["bytes"] == len(data[0])
    now = [more["now"] for _, more in told]
    assert now[2:4] == ["capt-1, round 6 of 9: recalling", "capt-1: waiting for what is next"]
    *_, last = read_lines(site.folder / "audit")
    assert (last.facts["name"], last.facts["why"]) == ("capt-1", "beyond")
