"""What was said of each test picture in a run's last test: predictions.safetensors in its folder.

The file stands for itself: labels, the classes' groups and the clients' parts are in it, so that two runs can be
compared picture by picture wherever their folders are. Remote clients keep such things to themselves: then there is
none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..base.documents import json_object
from ..base.errors import UserError
from ..base.files import write_atomic
from ..data.dataset import Indices
from ..data.groups import Groups

if TYPE_CHECKING:  # it needs torch, and to read predictions takes none
    from ..evaluation.testing import EvalSet, Said

FILE, DIGEST = "predictions.safetensors", "digest"
GROUPS = ("head", "mid", "tail", "unknown")


@dataclass(frozen=True, eq=False)
class Answers:
    label: Indices  # (N,) of every test picture
    group: Indices  # (C,) of every class, as a place in GROUPS
    shared: Indices  # (N,) said by the server's model; empty where there is none
    personal: Indices  # (M,) said by clients' own models
    picture: Indices  # (M,) of which picture
    owner: Indices  # (M,) by whose model

    @property
    def groups(self) -> Groups:
        return Groups(**{name: np.flatnonzero(self.group == i) for i, name in enumerate(GROUPS)})

    def same_pictures(self, other: Answers) -> bool:
        """Whether both are about the same pictures at the same clients."""
        return all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("label", "group", "picture", "owner")
        )


def save_predictions(folder: Path, tests: EvalSet, said: Said) -> None:
    group = np.zeros(tests.groups.classes, np.int64)
    for i, name in enumerate(GROUPS):
        group[getattr(tests.groups, name)] = i
    answers = Answers(tests.labels, group, said.shared, said.personal, *tests.dealt)
    arrays = {field.name: getattr(answers, field.name) for field in fields(Answers)}
    # In as few bytes as the numbers take.
    small = {name: values.astype(np.min_scalar_type(values.max(initial=0))) for name, values in arrays.items()}
    write_atomic(folder / FILE, save(small, metadata={DIGEST: digest(small)}))


def read_predictions(folder: Path) -> Answers | None:
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        data = path.read_bytes()
        small = load(data)
        noted = json_object(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
        if noted.get(DIGEST, digest(small)) != digest(small):
            raise ValueError("it is not as it was written")
        return Answers(**{name: values.astype(np.int64) for name, values in small.items()})
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); remove it to compare without it") from error


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    total = hashlib.sha256()
    for name, values in sorted(arrays.items()):
        total.update(repr((name, values.dtype.str, values.shape)).encode() + values.tobytes())
    return total.hexdigest()
