"""Tensors and a JSON note as bytes: safetensors, which cannot run code when read."""

import json
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save

from ..base.documents import json_object
from ..base.errors import UserError, explain
from ..core.types import Params
from .job import ClientState

NOTE = "fedtailor"
MAX_HEADER = 4 << 20  # bytes
MAX_TENSORS = 10_000
N = TypeVar("N", bound=BaseModel)
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
        header = read_header(data)
        flat = load(data)  # checks every declared shape against the bytes that there are
        note = json_object(header["__metadata__"][NOTE])
        groups: dict[str, Params] = {f"{group}": {} for group in note.pop("groups")}
        for name, value in flat.items():
            group, _, rest = name.partition("/")
            groups[group][rest] = value
        for due, there in ((groups_due, groups), (notes_due, note)):
            if lacking := set(due) - set(there):
                raise ValueError(f"no {sorted(lacking)[0]}")
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"a message of {len(data)} bytes is cut short or not one of ours ({error})") from error
    return groups, note


def read_header(data: bytes) -> dict[str, Any]:
    """What is said of the tensors. A million empty ones fit into few bytes, and take minutes and gigabytes to make."""
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER:
        raise ValueError(f"a header of {length} bytes, {MAX_HEADER} are the most")
    header = json_object(data[8 : 8 + length])
    if len(header) > MAX_TENSORS:
        raise ValueError(f"{len(header)} tensors, {MAX_TENSORS} are the most")
    return header


def client_to_bytes(client: ClientState) -> bytes:
    groups = {"local": client.local, "memory": client.memory, "tuned": client.tuned}
    return to_bytes(groups, {"version": client.version, "state_id": client.state_id})


class ClientNote(BaseModel):
    model_config = ConfigDict(strict=True)

    version: NonNegativeInt
    state_id: str = ""


def client_from_bytes(data: bytes) -> ClientState:
    groups, found = from_bytes(data, ("local", "memory", "tuned"))
    note = noted(ClientNote, found)
    return ClientState(groups["local"], groups["memory"], groups["tuned"], note.version, note.state_id)


def noted(kind: type[N], note: dict[str, Any]) -> N:
    """The note as an object of that kind."""
    try:
        return kind.model_validate(note)
    except ValidationError as error:
        raise UserError(f"a state is damaged, or not one of ours ({explain(error)})") from error
