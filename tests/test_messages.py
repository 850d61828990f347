"""Messages: what goes in comes out, and what has anything missing, too much or of another type is refused."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.base.errors import UserError
from fedtailor.client.codec import from_bytes, to_bytes
from fedtailor.core.types import Params
from fedtailor.data.paper import PaperPreprocess
from fedtailor.evaluation.metrics import METRICS, Score
from fedtailor.remote.messages import (
    EvaluateReply,
    EvaluateRequest,
    Invitation,
    KeysReply,
    KeysRequest,
    MaskedReply,
    MaskedRequest,
    Message,
    ModelReply,
    ModelRequest,
    OpenReply,
    OpenRequest,
    PassReply,
    PassRequest,
    PublicKeys,
    Ready,
    Refusal,
    SharesReply,
    SharesRequest,
    decode,
    encode,
)

RUN, REQUEST_ID = "0123456789abcdef" * 2, "00c0ffee-12"
TO: dict[str, Any] = {"run": RUN, "client": 3, "request_id": REQUEST_ID}
SCORE = Score(dict(zip(METRICS, (100 / 3, 0.1 + 0.2, None, 50.0, 1e-17, 99.9), strict=True)), (None, 0.0, 100.0))
SUM = "fedcba98" * 4
KEYS = PublicKeys(sealing="01" * 32, masking="ab" * 32, signature="30" * 103)
MESSAGES: dict[str, Message] = {
    "invitation": Invitation(
        run=RUN,
        name="capt-1",
        client=0,
        version="1.2",
        settings='rounds = 3\n# "ü"\n',
        weights="ab12",
        classes=("cat", "T-shirt/top", "Ωmega"),
        template="a photo of a {}.",
        paper=PaperPreprocess(mean=(0.1 + 0.2, 0.5, 1), std=(0.25, 0.25, 0.25), resize="late", augment=True),
        groups={"head": (0,), "mid": (), "tail": (1, 2)},
    ),
    "ready": Ready(samples=11, tests=0),
    "pass request": PassRequest(**TO, version=4, state_id="deadbeef-7", kept=3, pass_name="labels.vote", round=2),
    "first pass request": PassRequest(**TO, version=0, state_id="", kept=0, pass_name="train", round=0),
    "pass reply": PassReply(**TO, version=5, samples=11, seconds=0.25, weight=0.1 + 0.2),
    "keys request": KeysRequest(**TO, version=4, state_id="deadbeef-7", masking=SUM, pass_name="train", round=2),
    "keys reply": KeysReply(**TO, keys=KEYS),
    "shares request": SharesRequest(**TO, version=4, state_id="deadbeef-7", masking=SUM, peers={0: KEYS, 12: KEYS}),
    "shares reply": SharesReply(**TO, sealed={0: "ab" * 96, 12: "cd" * 96}),
    "masked request": MaskedRequest(
        **TO, version=4, state_id="", kept=3, pass_name="train", round=2, masking=SUM, sealed={0: "ab" * 96}
    ),
    "masked reply": MaskedReply(**TO, version=5, samples=11, seconds=0.25),
    "open request": OpenRequest(**TO, version=4, state_id="deadbeef-7", masking=SUM, survivors=(0, 3, 12)),
    "open reply": OpenReply(**TO, shares={0: "ef" * 34, 3: "01" * 34}),
    "evaluate request": EvaluateRequest(**TO, version=5, state_id=REQUEST_ID),
    "evaluate reply": EvaluateReply(**TO, personal=SCORE, shared=SCORE, zero_shot=SCORE, pseudo=(9, 8, 7, 11)),
    "evaluate reply, no pseudo-labels": EvaluateReply(**TO, personal=SCORE, shared=SCORE, zero_shot=SCORE, pseudo=None),
    "model request": ModelRequest(**TO, version=5, state_id=REQUEST_ID),
    "model reply": ModelReply(**TO),
    "refusal": Refusal(request_id=REQUEST_ID, why="lost-state"),
    "refusal of nothing": Refusal(why="failed"),
    "refusal of a version": Refusal(why="version", version="0.3.0.dev1"),
}


def groups_of(message: Message) -> dict[str, Params]:
    return {group: {"a.b": torch.arange(3.0), "n": torch.tensor(2**40)} for group in message.tensors}


def message_with(name: str, change: dict[str, Any], without: str = "") -> bytes:
    groups, note = from_bytes(encode(MESSAGES[name], **groups_of(MESSAGES[name])))
    message = {key: value for key, value in {**note["message"], **change}.items() if key != without}
    return to_bytes(groups, {"message": message})


@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_encoded_comes_out(name: str) -> None:
    """The message to the last bit of every number, and its tensors."""
    message, groups = MESSAGES[name], groups_of(MESSAGES[name])
    back, tensors = decode(encode(message, **groups))
    assert back == message
    assert type(back) is type(message)
    assert tensors.keys() == groups.keys()
    assert all(torch.equal(tensors[g][n], groups[g][n]) for g in groups for n in groups[g])


def fields(name: str) -> list[str]:
    return list(type(MESSAGES[name]).model_fields)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_missing_field_is_refused(name: str) -> None:
    for field in fields(name):
        data = message_with(name, {}, without=field)
        if (name.partition(" ")[0], field) in [("refusal", "request_id"), ("refusal", "version")]:
            assert decode(data)[0] == MESSAGES[name].model_copy(update={field: ""})
            continue
        with pytest.raises(UserError, match=r"a message is not one of ours \("):
            decode(data)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_field_too_many_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"a message is not one of ours \(.*price: extra inputs are not permitted"):
        decode(message_with(name, {"price": 3}))


FREE = {"version", "settings", "weights", "template"}  # texts that may say anything
STRANGE = [{"x": 1}, [[]], True, 2.5, -1, float("nan"), float("inf"), "../x", "é", None]


def may_be(name: str, field: str, value: object) -> bool:
    """Whether a strange value is one that the field may have."""
    text = isinstance(value, str) and isinstance(getattr(MESSAGES[name], field), str) and field in FREE
    number = (field, value) in [("seconds", 2.5), ("weight", 2.5), ("weight", -1)]  # an engine looks at weights
    return (text and not name.startswith("refusal")) or number or (field == "pseudo" and value is None)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_field_of_another_type_is_refused(name: str) -> None:
    """Nothing is turned into what it is not."""
    for field, strange in product(fields(name), STRANGE):
        data = message_with(name, {field: strange})
        if may_be(name, field, strange):
            assert getattr(decode(data)[0], field) == strange
            continue
        with pytest.raises(UserError, match=r"a message is not one of ours \("):
            decode(data)


BAD_RUNS = ["", "../x", "/etc", RUN[:-1], RUN + "0", RUN.upper(), RUN[:-1] + "g", RUN + "\n", RUN[:-2] + "/.", "٣" * 32]
BAD_IDS = ["../x", "00c0ffee-", "00c0ffee-1/../../x", "00C0FFEE-1", "00c0ffee-1\n", "00c0ffee-٣", "c0ffee-1"]


@pytest.mark.parametrize("name", ["invitation", "pass request", "pass reply", "evaluate request", "evaluate reply"])
def test_a_run_that_could_be_another_folder_is_refused(name: str) -> None:
    for run in BAD_RUNS:
        with pytest.raises(UserError, match=r"not one of ours \(.*run: string should match pattern"):
            decode(message_with(name, {"run": run}))


def test_a_name_that_is_no_plain_word_is_refused() -> None:
    """It becomes a part of a folder's name, and is printed."""
    for name in ("../x", ".x", "a/b", "capt 1", "capt\x1b[2J", "capt-1\n", "-x", "é", "a" * 101):
        with pytest.raises(UserError, match=r"not one of ours \(.*name: string should match pattern"):
            decode(message_with("invitation", {"name": name}))


@pytest.mark.parametrize("field", ["request_id", "state_id"])
def test_an_id_that_could_be_another_file_is_refused(field: str) -> None:
    """Or one with a name that is too long for a file."""
    for request_id in (*BAD_IDS, REQUEST_ID + "0" * 300):
        with pytest.raises(UserError, match=rf"not one of ours \(.*{field}.*: string should match pattern"):
            decode(message_with("pass request", {field: request_id}))


@pytest.mark.parametrize("name", MESSAGES)
def test_tensors_that_are_missing_or_not_due_are_refused(name: str) -> None:
    message = MESSAGES[name]
    with pytest.raises(UserError, match=r"a message is not one of ours \(its tensors are to be .*; secrets is amiss"):
        decode(encode(message, **groups_of(message), secrets={}))
    for group in message.tensors:
        rest = {other: tensors for other, tensors in groups_of(message).items() if other != group}
        with pytest.raises(UserError, match=f"a message is not one of ours .*; {group} is amiss"):
            decode(encode(message, **rest))
    note = {"message": message.model_dump(mode="json"), "postscript": 1}
    with pytest.raises(UserError, match="postscript is amiss"):
        decode(to_bytes(groups_of(message), note))


@pytest.mark.parametrize("message", [None, 3, "pass-request", [], {}, {"kind": None}, {"kind": []}, {"kind": "threat"}])
def test_what_is_no_message_is_refused(message: Any) -> None:
    with pytest.raises(UserError, match="a message is not one of ours"):
        decode(to_bytes({}, {"message": message}))
    with pytest.raises(UserError, match="no message"):
        decode(to_bytes({}, {"other": message}))


WHOLE = encode(MESSAGES["pass request"], **groups_of(MESSAGES["pass request"]))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(WHOLE) - 1))
def test_a_message_cut_short_is_refused(length: int) -> None:
    """Wherever it is cut."""
    with pytest.raises(UserError, match=rf"a message of {length} bytes is cut short or not one of ours"):
        decode(WHOLE[:length])


@settings(deadline=None, max_examples=150)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_damaged_letter_is_refused_or_one_of_its_kind(at: int, flip: int) -> None:
    """A changed byte ends in our error or in a message, never in anything else."""
    data = bytearray(WHOLE)
    data[at] ^= flip
    with suppress(UserError):
        assert isinstance(decode(bytes(data))[0], Message)


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        MESSAGES["pass request"].round = 7  # type: ignore[attr-defined]
