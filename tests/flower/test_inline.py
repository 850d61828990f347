"""Every method over Flower's ClientApp and Grid, in one process: the same bits as the local engine. Law 9."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, inflate_object_from_contents
from inline import inline_engine

from fedtailor.base.errors import UserError
from fedtailor.client.codec import client_to_bytes
from fedtailor.core.types import OWN
from fedtailor.flower.messages import PIECE, client_app, unwrap, wrap
from fedtailor.flower.private.tasks import act_as, named
from fedtailor.flower.supernode import limited
from fedtailor.flower.worker import check_kinds
from fedtailor.methods import METHODS
from fedtailor.remote.audit import read_lines
from fedtailor.remote.client import StateFiles
from fedtailor.remote.messages import Refusal, decode
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import run_round
from remote import RemoteWorld
from world import combinations, world

FIRST = dict(reversed(combinations()))
FEDERATED = [
    name for name in reversed(FIRST) if METHODS[name].method.trains and OWN not in METHODS[name].method.everyone(1)
]


@pytest.mark.parametrize("method", FEDERATED)
def test_flower_equals_local(method: str, tmp_path: Path) -> None:
    here, there = world(method, FIRST[method]), world(method, FIRST[method])
    local, flower = make_engine(here), inline_engine(there, tmp_path)
    flower.open()
    server = other = here.job.first_server()
    for _ in range(here.rounds):
        server, _ = run_round(here, server, local)
        other, _ = run_round(there, other, flower)
        assert server_to_bytes(server) == server_to_bytes(other)
        flower.committed()
    for k, client in local.clients.items():
        ledger = flower.clients[k]
        held = (
            ledger
            if k == OWN
            else StateFiles(tmp_path / f"client-{k}" / flower.invitation.run).read(ledger.version, ledger.state_id)
        )
        assert client_to_bytes(replace(held, state_id="")) == client_to_bytes(client)
    own = [v for v in local.log if v.client != OWN]
    assert [replace(v, seconds=0) for v in sorted(own, key=str)] == [
        replace(v, seconds=0) for v in sorted(flower.log, key=str)
    ]
    away, near = flower.evaluate(there, other), local.evaluate(here, server)
    assert away.clients == near.clients
    if here.job.method.lent:  # what clients keep is not lent over a wire, not even for a test
        assert (away.shared.overall, near.shared.overall is None) == (None, False)
    else:
        assert away.shared == near.shared
    assert flower.pseudo_labels(there) == local.pseudo_labels(here)


def test_secure_sums_over_flower(tmp_path: Path) -> None:
    """Their messages are carried too; the model is the plain one but for rounding."""
    secure = {"engine": "flower", "secure": "masked", "fraction": 1.0, "rounds": 2}
    here, there = world("fedavg", "head", **secure), world("fedavg", "head", **secure)
    local, flower = LocalEngine(here.job, here.client_data), inline_engine(there, tmp_path)
    flower.open()
    server = other = here.job.first_server()
    for _ in range(here.rounds):
        server, _ = run_round(here, server, local)
        other, _ = run_round(there, other, flower)
    assert all(torch.allclose(value, other.params[name], atol=2e-5) for name, value in server.params.items())
    assert {step.weight for step in flower.log} == {None}


def test_a_letter_that_is_too_long_is_not_put_together(tmp_path: Path) -> None:
    """The site says so, and its log has a line of it."""
    site, most = RemoteWorld(world(), tmp_path).site(0), 3000
    act_as(1, 1, 1)
    app = client_app(lambda kind, data, context: site.handle(data), most)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    strange = RecordDict({"0": ConfigRecord({"other": 1})})
    for content, why in (
        (wrap(bytes(most + 1)), "too-large"),
        (wrap(bytes(most)), "unreadable"),
        (strange, "unreadable"),
    ):
        message = named(Message(content, 1, "train.pass"), "a")
        assert decode(unwrap(app(message, context).content))[0] == Refusal(why=why)
    first, *_ = read_lines(tmp_path / "client-0" / "audit")
    assert first.facts["detail"] == "a message of 0 MB, more than the 0 allowed (megabytes_in)"


def test_arrays_of_flowers_own_are_not_put_together() -> None:
    """What our messages are made of is."""
    act_as(1, 1, 1)

    def contents(content: RecordDict) -> list[bytes]:
        message = named(Message(content, 1, "train.pass"), "a")
        return [part.deflate() for part in get_all_nested_objects(message).values()]

    check_kinds(contents(wrap(bytes(10))))
    arrays = RecordDict({"0": ArrayRecord({"x": Array(np.zeros(3))})})
    with pytest.raises(UserError, match=r"Array, ArrayChunk, ArrayRecord in it, which is not of ours"):
        check_kinds(contents(arrays))


def test_of_a_message_that_is_too_long_the_rest_is_not_fetched() -> None:
    """By the node, for each message by itself."""
    fetched = []

    def pull_object(run: int, name: str) -> bytes:
        fetched.append(name)
        return bytes(100)

    for _ in range(2):
        pull = limited(pull_object, 250)
        assert [len(pull(1, name)) for name in "abc"] == [100] * 3
        with pytest.raises(ObjectPullError, match="the message has more than"):
            pull(1, "d")
    assert fetched == [*"abc"] * 2


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE])
def test_letters_in_pieces(size: int) -> None:
    """As Flower takes a message apart and puts it together; equal pieces are one object to it."""
    for data in (bytes(size), os.urandom(size)):
        content = wrap(data)
        contents = {name: part.deflate() for name, part in get_all_nested_objects(content).items()}
        assert max(map(len, contents.values())) < PIECE + 1000
        back = inflate_object_from_contents(content.object_id, contents)
        assert unwrap(back) == data
        with pytest.raises(UserError, match=r"plan\.limit"):
            unwrap(back, size - 1)
