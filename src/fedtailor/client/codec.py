"""Tensors and a JSON note as bytes: safetensors, which cannot run code when read."""

import json
from collections.abc import Iterable
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from ..base.errors import UserError
from ..core.types import Params
from .job import ClientState

NOTE = "fedtailor"
Opened = tuple[dict[str, Params], dict[str, Any]]  # groups and note


def to_bytes(groups: dict[str, Params], note: dict[str, Any]) -> bytes:
    """Groups of tensors and a note. A slash, which no parameter's name has, divides group and name."""
    # Cloned, since one tensor may be in two groups (trained and kept, say), and safetensors refuses shared memory.
    flat = {
        f"{group}/{name}": value.detach().clone(memory_format=torch.contiguous_format)
        for group, params in groups.items()
        for name, value in params.items()
    }
    return save(flat, metadata={NOTE: json.dumps({**note, "groups": list(groups)})})


def from_bytes(data: bytes, groups_due: Iterable[str] = (), notes_due: Iterable[str] = ()) -> Opened:
    """What was put in; an error if it is damaged, or lacks a group or note that is due."""
    try:
        flat = load(data)
        length = int.from_bytes(data[:8], "little")
        note = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][NOTE])
        groups: dict[str, Params] = {group: {} for group in note.pop("groups")}
        for name, value in flat.items():
            group, _, rest = name.partition("/")
            groups[group][rest] = value
        for due, there in ((groups_due, groups), (notes_due, note)):
            if lacking := set(due) - set(there):
                raise ValueError(f"no {sorted(lacking)[0]}")
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"a message of {len(data)} bytes is cut short or not one of ours ({error})") from error
    return groups, note


def client_to_bytes(client: ClientState) -> bytes:
    groups = {"local": client.local, "memory": client.memory, "tuned": client.tuned}
    return to_bytes(groups, {"version": client.version, "state_id": client.state_id, "secret": client.secret.hex()})


def client_from_bytes(data: bytes) -> ClientState:
    groups, note = from_bytes(data, ("local", "memory", "tuned"), ("version",))
    told = note["version"], note.get("state_id", ""), bytes.fromhex(note.get("secret", ""))
    return ClientState(groups["local"], groups["memory"], groups["tuned"], *told)
