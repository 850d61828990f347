"""Every method over Flower's ClientApp and Grid, in one process: the same bits as the local engine. Law 9."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from inline import inline_engine

from fedtailor.base.errors import UserError
from fedtailor.client.codec import client_to_bytes
from fedtailor.core.types import OWN
from fedtailor.flower.messages import PIECE, unwrap, wrap
from fedtailor.methods import METHODS
from fedtailor.remote.client import StateFiles
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
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
