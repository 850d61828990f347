"""Documents on a disk, where anything may have become of them: JSON and TOML, read with a check of all that is there.

A document that only we write holds a checksum of itself, so that no changed digit is taken for a result.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from .errors import UserError, explain

MOST = 1 << 28  # bytes of a document; a longer one is none of ours
CHECKSUM = "checksum"
STRAY = re.compile("[\ud800-\udfff]")  # where Python puts bytes of a file's name that are no UTF-8
Document = dict[str, Any]


def content(path: Path) -> bytes:
    """Of a file; what the system says against it is a ValueError, as all that is wrong with a document."""
    try:
        if path.stat().st_size > MOST:
            raise ValueError(f"it has more than {MOST >> 20} MB")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error


def from_json(data: bytes | str) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def from_toml(data: bytes) -> Document:
    try:
        return tomllib.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_object(data: bytes | str) -> Document:
    """One JSON object, as it was written if it says so itself."""
    document = from_json(data)
    if not isinstance(document, dict):
        raise ValueError(f"it holds a JSON {type(document).__name__}; an object is needed")
    if CHECKSUM in document and document.pop(CHECKSUM) != checksum(document):
        raise ValueError("it is not as it was written")
    return document


def json_lines(data: bytes) -> list[Document]:
    return [json_object(line) for line in data.splitlines()]


def checksum(document: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(document))  # as it comes back
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def sealed(document: Mapping[str, Any]) -> bytes:
    """As JSON, with its checksum."""
    whole = {**document, CHECKSUM: checksum(document)}
    return (json.dumps(whole, indent=1) + "\n").encode()


def read_json(path: Path, todo: str = "", kind: Any = Document) -> Document:
    """One that is of that kind, too."""
    try:
        document = json_object(content(path))
        TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        raise UserError(f"{path} is damaged ({explain(error)})" + (todo and f"; {todo}")) from error
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error})" + (todo and f"; {todo}")) from error
    return document
