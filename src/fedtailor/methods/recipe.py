"""A method's entry in METHODS, and its recipe: settings and presets, in recipes/NAME.toml.

A recipe has a table `about` (paper, year, family, and the tuners that the method may have, where it may not have any),
a table `default`, and one for each preset, of the command line's keys. `use` takes in tables of recipes/shared.toml;
`with.TUNER` holds what counts with that tuner only; a preset that says `method.name` stands for another method.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from ..base.keys import flat
from ..core import Method

Settings = Mapping[str, Any]  # dotted keys, as on the command line
RELEASED = "as released"  # the family of what released codes do otherwise


@dataclass(frozen=True)
class Entry:
    method: type[Method]
    tuner: str
    idea: str
    paper: str = ""
    year: int | None = None  # None: no paper's
    family: str = "other"
    tuners: tuple[str, ...] = ()  # the only ones it may have; none: any
    settings: Settings = field(default_factory=dict)
    presets: Mapping[str, Settings] = field(default_factory=dict)
    when: Mapping[tuple[str, str], Settings] = field(default_factory=dict)  # by preset (or "") and tuner


def read_entry(name: str, method: type[Method], tuner: str, idea: str) -> Entry:
    """With what the method's recipe says, if it has one."""
    recipe, tables, when = dict(read(name)), dict[str, Settings](), dict[tuple[str, str], Settings]()
    about = {"tuners": (), **recipe.pop("about", {})}
    about["tuners"] = tuple(about["tuners"])
    for preset, table in recipe.items():
        key = "" if preset == "default" else preset
        when |= {(key, other): resolved(own) for other, own in table.get("with", {}).items()}
        tables[key] = resolved(table)
    return Entry(method, tuner, idea, **about, settings=tables.pop("", {}), presets=tables, when=when)


@cache
def read(name: str) -> Settings:
    path = resources.files("fedtailor") / "recipes" / f"{name}.toml"
    return tomllib.loads(path.read_text()) if path.is_file() else {}


def resolved(table: Mapping[str, Any]) -> dict[str, Any]:
    """With the shared tables that it uses; the table's own settings win."""
    used = {key: value for name in table.get("use", ()) for key, value in resolved(read("shared")[name]).items()}
    return used | flat({key: value for key, value in table.items() if key not in ("use", "with")})
