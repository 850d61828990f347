"""Keys and values as users write them: spellings, words of a command line, TOML documents; and what is wrong."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from ..base.documents import STRAY, content, from_toml
from ..base.errors import UserError, explain, shortened, unknown
from ..base.keys import flat

T = TypeVar("T")
LARGEST = 1e38  # of a number, as in single precision
GIVEN = "given"  # labels as the data has them
# What any method may be combined with.
PARTS = ("labels", "rebalance", "server", "privacy", "robust", "attack", "secure")

# Short spellings, on the command line and in Python. A method may have more of its own (Method.short).
SHORT = {
    "epochs": "local.epochs",
    "batch": "local.batch",
    "lr": "local.lr",
    "calibrate": "data.calibrate",
    **{group: f"{group}.name" for group in ("data", "data.partition", "tuner", "backbone", "method", *PARTS)},
}
SHORTER = {full: key for key, full in SHORT.items()}

# The options that belong to a name: they are dropped when a run.toml is run again under another name.
OPTIONS = {f"{group}.name": f"{group}." for group in ("method", "tuner", "data.partition", *PARTS)}
OPTIONS["data.name"] = "data.imbalance"


def full_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {SHORT.get(key, key): value for key, value in settings.items()}


def put(document: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in a nested document."""
    *path, last = key.split(".")
    for part in path:
        document = document.setdefault(part, {})
        if not isinstance(document, dict):
            raise UserError(f"{key}: {part} is a value, not a group of keys")
    if isinstance(document.get(last), dict):
        raise UserError(f"{key} is given as a value and as a group of keys")
    document[last] = value


def at(document: Mapping[str, Any], key: str) -> Any:
    """What stands under a dotted key; if nothing, an empty group."""
    return reduce(lambda group, part: group.get(part, {}), key.split("."), document)


def parse(words: Iterable[str]) -> dict[str, Any]:
    """`key=value` words; a value is read as TOML where it is TOML (0.1, true, [1, 2]), else as plain text."""
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"{shortened(word)} is not key=value; write for example rounds=20 or data.alpha=0.1")
        full = SHORT.get(key, key)
        if full in settings:
            raise UserError(f"{key} is given twice")
        settings[full] = parse_value(text)
    return settings


def parse_value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, or more digits or brackets than are ever meant
        return text
    return value if isinstance(value, bool | int | float | str | list) else text  # {} is a template, not a table


def read_document(path: Path) -> dict[str, Any]:
    """What a run.toml holds."""
    try:
        document = from_toml(content(path))
    except ValueError as error:
        raise UserError(f"{path} is not a readable run.toml: {error}") from error
    if not isinstance(document.get("method"), dict) or "name" not in document["method"]:
        raise UserError(f"{path} is not a run.toml: it names no method")
    if not isinstance(document.get("about", {}), dict):
        raise UserError(f"{path} is not a run.toml: about is a group, got {shortened(document['about'])}")
    return document


def with_changes(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A document as dotted keys, with some changed. With another tuner, say, the options of the old one go too."""
    written, given = flat(document), full_keys(changes)
    for name, group in OPTIONS.items():
        if given.get(name, written.get(name)) != written.get(name):
            written = {key: value for key, value in written.items() if key == name or not key.startswith(group)}
    return {**written, **given}


def checked(kind: type[T], values: Any, where: str) -> T:
    """An object of that class; an error names the key under `where` that is wrong, and what was got."""
    try:
        made = TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        problem = error.errors()[0]
        key = (where + ".".join(written(problem["loc"], values))).rstrip(".")
        if problem["type"] == "extra_forbidden" and issubclass(kind, BaseModel):
            raise unknown("key", key, [where + field for field in kind.model_fields]) from error
        several = isinstance(values, Mapping) and not problem["loc"]  # keys that do not go together
        raise UserError(explain(error, got=not several, key=key)) from error
    check_plain(values, where)
    for key, value in flat(values).items() if isinstance(values, Mapping) else ():
        # Python takes True for 1; a user who writes true does not mean 1.
        if isinstance(value, bool) and not isinstance(reduce(getattr, key.split("."), made), bool):
            raise UserError(f"{where}{key}: a number is due, got {str(value).lower()}")
    return made


def check_plain(value: Any, where: str) -> None:
    """That single precision can hold a number, and a file a text, wherever in a value they are."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            check_plain(each, f"{where}{key}.")
    elif isinstance(value, list | tuple):
        for each in value:
            check_plain(each, where)
    elif isinstance(value, float) and not abs(value) <= LARGEST:
        raise UserError(f"{where.rstrip('.')}: input should be a finite number, of at most {LARGEST:g}, got {value}")
    elif isinstance(value, int) and not abs(value) < 1 << 63:
        raise UserError(f"{where.rstrip('.')}: input should be a number of at most 63 bits, got {shortened(value)}")
    elif isinstance(value, str) and STRAY.search(value):
        raise UserError(f"{where.rstrip('.')}: input should be text in UTF-8, got {shortened(value)}; rename it")


def written(place: Sequence[int | str], values: Any) -> list[str]:
    """The keys of a place as the user wrote them; pydantic adds the kind of value that it tried last."""
    found: list[str] = []
    for part in place:
        if isinstance(values, Mapping) and part in values:
            values = values[part]
        elif found and not isinstance(part, int):
            break
        found.append(str(part))
    return found
