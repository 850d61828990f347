"""A site that goes wrong in round 2: `python rogue.py HOME DATA FAULT`. In all else it is a site like any other."""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

import torch
from flwr.app import Context

import fedtailor.flower.client as client
import fedtailor.remote.client as site_module
from fedtailor.flower.messages import client_app
from fedtailor.remote.messages import PassReply, PassRequest, decode, encode

ROUND = 1  # counted from 0


def spoil(reply: bytes, fault: str, before: list[bytes]) -> bytes:
    message, tensors = decode(reply)
    assert isinstance(message, PassReply)
    params, stats = tensors["params"], tensors["stats"]
    if fault == "nan":
        return encode(message, params={n: torch.full_like(v, float("nan")) for n, v in params.items()}, stats=stats)
    if fault == "shapes":
        return encode(message, params={n: v.flatten()[1:] for n, v in params.items()}, stats=stats)
    if fault == "truncated":
        return reply[: len(reply) // 2]
    if fault == "huge":
        return reply + os.urandom(10**9)
    if fault == "bomb":
        return reply + bytes(10**9)  # all its pieces are one and the same
    if fault == "replay":
        return before[-1]
    if fault == "slow":
        time.sleep(10**4)
    return reply


def main(home: client.SiteFolder, data: str, fault: str) -> None:
    site = client.open_site(home.folder, client.find_policy(home.folder), data, server=home.known_as)
    before: list[bytes] = []
    mark = home.folder / "fault.done"  # once in its life
    if fault == "version":
        site_module.__version__ = "0.0.0"

    def write(path: Path, content: bytes) -> None:
        if fault == "disk full" and path.name.startswith("state-2") and not mark.exists():
            mark.touch()
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    real, site_module.write_atomic = site_module.write_atomic, write

    def reply(kind: str, message: bytes, context: Context) -> bytes:
        request = decode(message)[0] if kind == "train.pass" else None
        now = isinstance(request, PassRequest) and request.round == ROUND and not mark.exists()
        if now and fault == "crash":
            mark.touch()
            site.handle(message)
            os._exit(1)  # the work is done and on disk, and nobody is told
        given = site.handle(message)
        if now and fault not in ("disk full", "version", "crash"):
            mark.touch()
            return spoil(given, fault, before)
        if kind == "train.pass":
            before.append(given)
        return given

    client.serve_site(home, client_app(reply))


if __name__ == "__main__":
    main(client.SiteFolder.open(Path(sys.argv[1])), f"folder:{sys.argv[2]}", sys.argv[3])
