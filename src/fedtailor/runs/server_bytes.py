"""A server's state as bytes, for checkpoints."""

from ..client.codec import from_bytes, to_bytes
from ..core.types import Params, Server


def server_to_bytes(server: Server) -> bytes:
    groups: dict[str, Params] = {"params": server.params, "state": server.state}
    for name, copies in server.clusters.items():
        groups |= {f"cluster:{name}:{c}": dict(params) for c, params in copies.items()}
    return to_bytes(groups, {"round": server.round, "cluster_of": {n: dict(m) for n, m in server.cluster_of.items()}})


def server_from_bytes(data: bytes) -> Server:
    groups, note = from_bytes(data, ("params", "state"), ("round", "cluster_of"))
    clusters: dict[str, dict[int, Params]] = {}
    for group, params in groups.items():
        if group.startswith("cluster:"):
            _, name, c = group.split(":")
            clusters.setdefault(name, {})[int(c)] = params
    cluster_of = {name: {int(k): c for k, c in members.items()} for name, members in note["cluster_of"].items()}
    return Server(note["round"], groups["params"], clusters, cluster_of, groups["state"])
