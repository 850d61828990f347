"""A server's state as bytes, for checkpoints."""

import re

from pydantic import BaseModel, NonNegativeInt

from ..base.errors import UserError, shortened
from ..client.codec import from_bytes, noted, to_bytes
from ..core.types import Params, Server


def server_to_bytes(server: Server) -> bytes:
    groups: dict[str, Params] = {"params": server.params, "state": server.state}
    for name, copies in server.clusters.items():
        groups |= {f"cluster:{name}:{c}": dict(params) for c, params in copies.items()}
    return to_bytes(groups, {"round": server.round, "cluster_of": {n: dict(m) for n, m in server.cluster_of.items()}})


class ServerNote(BaseModel):
    round: NonNegativeInt
    cluster_of: dict[str, dict[int, int]]  # JSON has the clients' numbers as text


def server_from_bytes(data: bytes) -> Server:
    groups, found = from_bytes(data, ("params", "state"))
    note, clusters = noted(ServerNote, found), dict[str, dict[int, Params]]()
    for group, params in groups.items():
        if group in ("params", "state"):
            continue
        if not (place := re.fullmatch(r"cluster:([^:]+):(\d{1,9})", group)):
            raise UserError(f"a state is damaged, or not one of ours (it has a group {shortened(group)})")
        clusters.setdefault(place[1], {})[int(place[2])] = params
    return Server(note.round, groups["params"], clusters, note.cluster_of, groups["state"])
