"""Letters: what goes in comes out, and what has anything missing, too much or of another type is refused."""

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
from fedtailor.data.preprocess import PaperPreprocess
from fedtailor.evaluation.metrics import Score
from fedtailor.remote.messages import (
    EvaluateReply,
    EvaluateRequest,
    Invitation,
    Message,
    PassReply,
    PassRequest,
    Ready,
    Refusal,
    decode_message,
    encode_message,
)

RUN, SERIAL = "0123456789abcdef" * 2, "00c0ffee-12"
TO: dict[str, Any] = {"run": RUN, "client": 3, "serial": SERIAL}
SCORE = Score(100 / 3, 0.1 + 0.2, None, 50.0, 1e-17, 99.9, (None, 0.0, 100.0), worst=None)
LETTERS: dict[str, Message] = {
    "charter": Invitation(
        run=RUN,
        client=0,
        version="1.2",
        settings='rounds = 3\n# "ü"\n',
        weights="ab12",
        classes=("cat", "T-shirt/top", "Ωmega"),
        template="a photo of a {}.",
        paper=PaperPreprocess(mean=(0.1 + 0.2, 0.5, 1), std=(0.25, 0.25, 0.25), resize="late", augment=True),
        groups={"head": (0,), "mid": (), "tail": (1, 2)},
    ),
    "present": Ready(samples=11, tests=0),
    "order": PassRequest(**TO, version=4, mark="deadbeef-7", kept=3, pass_name="labels.vote", round=2),
    "first order": PassRequest(**TO, version=0, mark="", kept=0, pass_name="train", round=0),
    "answer": PassReply(**TO, version=5, samples=11, seconds=0.25, weight=0.1 + 0.2),
    "exam": EvaluateRequest(**TO, version=5, mark=SERIAL),
    "marks": EvaluateReply(**TO, personal=SCORE, shared=SCORE, zero_shot=SCORE, pseudo=(9, 8, 7, 11)),
    "marks, no pseudo-labels": EvaluateReply(**TO, personal=SCORE, shared=SCORE, zero_shot=SCORE, pseudo=None),
    "refusal": Refusal(serial=SERIAL, why="lost", text="state 3 is not here"),
    "refusal of nothing": Refusal(why="failed", text=""),
}


def groups_of(letter: Message) -> dict[str, Params]:
    return {group: {"a.b": torch.arange(3.0), "n": torch.tensor(2**40)} for group in letter.tensors}


def letter_with(name: str, change: dict[str, Any], without: str = "") -> bytes:
    groups, note = from_bytes(encode_message(LETTERS[name], **groups_of(LETTERS[name])))
    letter = {key: value for key, value in {**note["letter"], **change}.items() if key != without}
    return to_bytes(groups, {"letter": letter})


@pytest.mark.parametrize("name", LETTERS)
def test_what_is_sealed_comes_out(name: str) -> None:
    """The letter to the last bit of every number, and its tensors."""
    letter, groups = LETTERS[name], groups_of(LETTERS[name])
    back, tensors = decode_message(encode_message(letter, **groups))
    assert back == letter
    assert type(back) is type(letter)
    assert tensors.keys() == groups.keys()
    assert all(torch.equal(tensors[g][n], groups[g][n]) for g in groups for n in groups[g])


def fields(name: str) -> list[str]:
    return list(type(LETTERS[name]).model_fields)


@pytest.mark.parametrize("name", LETTERS)
def test_a_missing_field_is_refused(name: str) -> None:
    for field in fields(name):
        data = letter_with(name, {}, without=field)
        if (name.partition(" ")[0], field) == ("refusal", "serial"):
            assert decode_message(data)[0] == LETTERS[name].model_copy(update={field: ""})
            continue
        with pytest.raises(UserError, match=r"a letter is not one of ours \("):
            decode_message(data)


@pytest.mark.parametrize("name", LETTERS)
def test_a_field_too_many_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"a letter is not one of ours \(.*price: Extra inputs are not permitted"):
        decode_message(letter_with(name, {"price": 3}))


FREE = {"version", "settings", "weights", "template", "normal", "pass_name", "text"}  # texts that may say anything
STRANGE = [{"x": 1}, [[]], True, 2.5, -1, float("nan"), float("inf"), "../x", "é", None]


def may_be(name: str, field: str, value: object) -> bool:
    """Whether a strange value is one that the field may have."""
    text = isinstance(value, str) and isinstance(getattr(LETTERS[name], field), str) and field in FREE
    number = (field, value) in [("seconds", 2.5), ("weight", 2.5), ("weight", -1)]  # an engine looks at weights
    return text or number or (field == "pseudo" and value is None)


@pytest.mark.parametrize("name", LETTERS)
def test_a_field_of_another_type_is_refused(name: str) -> None:
    """Nothing is turned into what it is not."""
    for field, strange in product(fields(name), STRANGE):
        data = letter_with(name, {field: strange})
        if may_be(name, field, strange):
            assert getattr(decode_message(data)[0], field) == strange
            continue
        with pytest.raises(UserError, match=r"a letter is not one of ours \("):
            decode_message(data)


BAD_RUNS = ["", "../x", "/etc", RUN[:-1], RUN + "0", RUN.upper(), RUN[:-1] + "g", RUN + "\n", RUN[:-2] + "/.", "٣" * 32]
BAD_SERIALS = ["../x", "00c0ffee-", "00c0ffee-1/../../x", "00C0FFEE-1", "00c0ffee-1\n", "00c0ffee-٣", "c0ffee-1"]


@pytest.mark.parametrize("name", ["charter", "order", "answer", "exam", "marks"])
def test_a_run_that_could_be_another_folder_is_refused(name: str) -> None:
    for run in BAD_RUNS:
        with pytest.raises(UserError, match=r"not one of ours \(.*run: String should match pattern"):
            decode_message(letter_with(name, {"run": run}))


@pytest.mark.parametrize("field", ["serial", "mark"])
def test_a_serial_that_could_be_another_file_is_refused(field: str) -> None:
    """Or one with a name that is too long for a file."""
    for serial in (*BAD_SERIALS, SERIAL + "0" * 300):
        with pytest.raises(UserError, match=rf"not one of ours \(.*{field}.*: String should match pattern"):
            decode_message(letter_with("order", {field: serial}))


@pytest.mark.parametrize("name", LETTERS)
def test_tensors_that_are_missing_or_not_due_are_refused(name: str) -> None:
    letter = LETTERS[name]
    with pytest.raises(UserError, match=r"a letter is not one of ours \(its tensors are to be .*; secrets is amiss"):
        decode_message(encode_message(letter, **groups_of(letter), secrets={}))
    for group in letter.tensors:
        rest = {other: tensors for other, tensors in groups_of(letter).items() if other != group}
        with pytest.raises(UserError, match=f"a letter is not one of ours .*; {group} is amiss"):
            decode_message(encode_message(letter, **rest))
    note = {"letter": letter.model_dump(mode="json"), "postscript": 1}
    with pytest.raises(UserError, match="postscript is amiss"):
        decode_message(to_bytes(groups_of(letter), note))


@pytest.mark.parametrize("letter", [None, 3, "order", [], {}, {"kind": None}, {"kind": []}, {"kind": "threat"}])
def test_what_is_no_letter_is_refused(letter: Any) -> None:
    with pytest.raises(UserError, match="a letter is not one of ours"):
        decode_message(to_bytes({}, {"letter": letter}))
    with pytest.raises(UserError, match="no letter"):
        decode_message(to_bytes({}, {"other": letter}))


WHOLE = encode_message(LETTERS["order"], **groups_of(LETTERS["order"]))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(WHOLE) - 1))
def test_a_letter_cut_short_is_refused(length: int) -> None:
    """Wherever it is cut."""
    with pytest.raises(UserError, match=rf"a message of {length} bytes is cut short or not one of ours"):
        decode_message(WHOLE[:length])


@settings(deadline=None, max_examples=150)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_damaged_letter_is_refused_or_one_of_its_kind(at: int, flip: int) -> None:
    """A changed byte ends in our error or in a letter, never in anything else."""
    data = bytearray(WHOLE)
    data[at] ^= flip
    with suppress(UserError):
        assert isinstance(decode_message(bytes(data))[0], Message)


def test_a_letter_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        LETTERS["order"].round = 7  # type: ignore[attr-defined]
