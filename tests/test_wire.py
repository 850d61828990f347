"""Messages as bytes: what goes in comes out, and what is damaged is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from fedtailor.base.errors import UserError
from fedtailor.client.codec import client_from_bytes, client_to_bytes, from_bytes, to_bytes
from fedtailor.client.job import ClientState, Task
from fedtailor.core.types import Params, Reply
from posted import reply_from_bytes, reply_to_bytes, task_from_bytes, task_to_bytes


def tensors() -> Params:
    """Of every kind that methods send, and the awkward ones."""
    rng = torch.Generator().manual_seed(0)
    return {
        "text.ctx": torch.randn(3, 4, generator=rng),
        "half": torch.randn(5, generator=rng).to(torch.bfloat16),
        "fp16": torch.randn(5, generator=rng).half(),
        "double": torch.randn(2, generator=rng, dtype=torch.float64),
        "counts": torch.tensor([-(2**40), 0, 2**40]),
        "bytes": torch.arange(7, dtype=torch.uint8),
        "yes.or.no": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
        "zero.dim": torch.tensor(0.1),
        "special": torch.tensor([float("inf"), float("nan"), -0.0]),
        "turned": torch.randn(3, 4, generator=rng).T,
        "part": torch.randn(10, generator=rng)[::2],
    }


def same(a: Params, b: Params) -> bool:
    """Names, shapes, types and bits."""
    return a.keys() == b.keys() and all(
        a[n].dtype == b[n].dtype
        and a[n].shape == b[n].shape
        and a[n].contiguous().view(torch.uint8).tolist() == b[n].contiguous().view(torch.uint8).tolist()
        if a[n].dim()
        else a[n].dtype == b[n].dtype and a[n].item() == b[n].item()
        for n in a
    )


def test_tasks() -> None:
    """Pass, round, parameters and mail, bit for bit."""
    task = Task("train", 7, tensors(), {"quota": torch.arange(4)})
    back = task_from_bytes(task_to_bytes(task))
    assert (back.pass_name, back.round) == ("train", 7)
    assert same(back.params, task.params)
    assert same(back.inbox, task.inbox)


def test_replies() -> None:
    """Parameters, statistics and a weight that has no short decimal form."""
    reply = Reply(tensors(), 0.1 + 0.2, {"n": torch.tensor(3)})
    back = reply_from_bytes(reply_to_bytes(reply))
    assert back.weight == reply.weight
    assert same(back.params, reply.params)
    assert same(back.stats, reply.stats)


def test_clients() -> None:
    """All that a client keeps, and an empty one."""
    client = ClientState(tensors(), {"k": torch.arange(3)}, {"t": torch.ones(2)}, 12)
    back = client_from_bytes(client_to_bytes(client))
    assert back.version == 12
    assert all(same(getattr(back, part), getattr(client, part)) for part in ("local", "memory", "tuned"))
    assert client_from_bytes(client_to_bytes(ClientState())) == ClientState()


def test_one_tensor_in_two_places() -> None:
    """A pass may train a tensor and keep the very same, or a part of it; each place gets its own."""
    value = torch.arange(6.0)
    client = ClientState(memory={"last": value, "first.two": value[:2]}, tuned={"w": value})
    back = client_from_bytes(client_to_bytes(client))
    assert back.memory["last"].tolist() == back.tuned["w"].tolist() == value.tolist()
    assert back.memory["first.two"].tolist() == [0.0, 1.0]
    back.memory["last"].zero_()
    assert back.tuned["w"].tolist() == value.tolist()


def test_keep_never_travels() -> None:
    """Neither the names nor the numbers of `keep` are anywhere in a reply's bytes."""
    secret = torch.tensor(list(b"a secret of 24 bytes ...")).to(torch.uint8)
    reply = Reply({"w": torch.zeros(3)}, keep={"diary": secret})
    data = reply_to_bytes(reply)
    assert b"a secret" not in data
    assert b"diary" not in data
    assert reply_from_bytes(data).keep == {}
    assert b"a secret" in client_to_bytes(ClientState(memory={"diary": secret}))  # the search can find it


WHOLE = task_to_bytes(Task("train", 1, {"w": torch.arange(3.0)}, {}))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(WHOLE) - 1))
def test_a_message_cut_short_is_refused(length: int) -> None:
    """Wherever it is cut."""
    with pytest.raises(UserError, match=rf"a message of {length} bytes is cut short or not one of ours"):
        task_from_bytes(WHOLE[:length])


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    """Any other bytes end in the same error, never in another."""
    with pytest.raises(UserError, match="not one of ours"):
        from_bytes(data)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, len(WHOLE) - 13), st.integers(1, 255))
def test_a_damaged_header_is_refused_or_harmless(at: int, flip: int) -> None:
    """A changed byte before the numbers gives our error or a task, nothing else."""
    data = bytearray(WHOLE)
    data[at] ^= flip
    with suppress(UserError):
        assert isinstance(task_from_bytes(bytes(data)), Task)


@pytest.mark.parametrize(
    "data",
    [
        save({"params/w": torch.zeros(1)}),
        save({"params/w": torch.zeros(1)}, metadata={"fedtailor": "[]"}),
        save({"params/w": torch.zeros(1)}, metadata={"fedtailor": "3"}),
        save({"params/w": torch.zeros(1)}, metadata={"fedtailor": '{"groups": ["stats"]}'}),
        save({"params/w": torch.zeros(1)}, metadata={"fedtailor": "no json"}),
        reply_to_bytes(Reply({})),
        to_bytes({"params": {}}, {"pass": "train", "round": 1}),
        to_bytes({"params": {}, "inbox": {}}, {"pass": "train"}),
    ],
)
def test_other_files_are_no_tasks(data: bytes) -> None:
    """Safetensors of someone else, a message of another kind, and one that lacks a part."""
    with pytest.raises(UserError, match="not one of ours"):
        task_from_bytes(data)


def test_a_task_is_no_reply_and_no_client() -> None:
    """Each reader takes its own kind only."""
    with pytest.raises(UserError, match="not one of ours"):
        reply_from_bytes(WHOLE)
    with pytest.raises(UserError, match="not one of ours"):
        client_from_bytes(WHOLE)
