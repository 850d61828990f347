"""`fedtailor list` and `fedtailor show`: what there is, and how it looks on a terminal. Without torch.

The facts are those of facts.py, which needs torch. So they are kept in a file, whose name is a hash of all that they
depend on: another version or an edited method has another file, and is never told of by an old one.
"""

import hashlib
import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..base.entry_points import files, state_of_others
from ..base.errors import unknown
from ..base.folders import cache_folder
from ..base.version import __version__

Facts = dict[str, Any]

# Each has a function of that name in facts.py.
KINDS = (
    "methods", "tuners", "labelers", "rebalancers", "servers", "privacy", "robust", "attacks", "secure",
    "datasets", "partitions", "backbones", "engines", "diagnostics",
)  # fmt: skip
STAYS = {"local", "fixed"}  # scopes of what never leaves a client
PACKAGE = Path(__file__).parents[1]


def rows(kind: str) -> list[Facts]:
    """A list."""
    if kind not in KINDS:
        raise unknown("list", kind, KINDS)
    found: list[Facts] = everything()["lists"][kind]
    return found


def method(name: str) -> Facts:
    """All about a method."""
    pages = everything()["methods"]
    if name not in pages:
        raise unknown("method", name, pages, "fedtailor list methods")
    found: Facts = pages[name]
    return found


# --- the facts, kept ------------------------------------------------------------------------------------------------


def everything() -> Facts:
    """Every list and every method's page, as JSON can hold them."""
    if "fedtailor.methods" in sys.modules:  # nothing to be saved, and whoever loaded it may have added a method
        return dict(json.loads(computed()))
    return kept(cache_folder() / "lists")


def kept(folder: Path) -> Facts:
    """From the folder's file for the package as it is now; if there is none, computed and written."""
    path = folder / f"{state_of_package()}.json"
    with suppress(OSError, ValueError, LookupError, TypeError):  # not there, or damaged
        found: Facts = json.loads(path.read_bytes())
        if tuple(found["lists"]) == KINDS and found["methods"]:
            return found
    text = computed()
    with suppress(OSError):  # a full disk, or a folder of somebody else's
        keep(path, text)
    return dict(json.loads(text))


def computed() -> str:
    from ..settings.extensions import discover
    from . import facts

    discover()
    lists = {kind: getattr(facts, kind)() for kind in KINDS}
    return json.dumps({"lists": lists, "methods": {row["name"]: facts.method(row["name"]) for row in lists["methods"]}})


def state_of_package() -> str:
    """A hash of versions and of every file's name, size and time: files are looked at, not read. Of packages that bring
    methods, too."""
    parts = [__version__, sys.version, *files(PACKAGE), *state_of_others()]
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def keep(path: Path, text: str) -> None:
    """In place of what earlier states of the package said."""
    from ..base.files import write_atomic

    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob("[0-9a-f]" * 64 + ".json*"):
        old.unlink(missing_ok=True)
    write_atomic(path, text.encode())


# --- on a terminal --------------------------------------------------------------------------------------------------


def table(rows: list[Facts]) -> Table:
    """The rows for a terminal; methods by family, with a second line for paper, tuners and what is shared."""
    out = Table(show_edge=False)
    if "family" in rows[0]:
        out.add_column("name", no_wrap=True)
        out.add_column("idea; paper; tuners; what is shared", ratio=1)
        for family in dict.fromkeys(row["family"] for row in rows):
            out.add_section()
            out.add_row("", Text(family, style="bold italic"))
            for row in (row for row in rows if row["family"] == family):
                facts = [cited(row), f"tuner {cell(row['tuners'])}", f"shares {shared(row['shares'])}"]
                out.add_row(row["name"], Text.assemble(row["idea"], "\n", ("; ".join(filter(None, facts)), "dim")))
        return out
    for heading in rows[0]:
        out.add_column(heading, no_wrap=heading == "name", ratio=1 if heading in {"idea", "note"} else None)
    for row in rows:
        out.add_row(*(Text(cell(value)) for value in row.values()))  # Text: [hub] is no markup
    return out


def shared(shares: dict[str, str]) -> str:
    """What leaves a client, in words."""
    stays = [name for name, scope in shares.items() if scope in STAYS]
    leaves = [name for name in shares if name not in stays]
    if leaves == ["*"]:
        return "all but " + ", ".join(stays) if stays else "all"
    return ", ".join(leaves) or "nothing"


def cited(row: Facts) -> str:
    return f"{row['paper']} {row['year']}" if row["year"] else ""


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def method_page(facts: Facts) -> RenderableType:
    from ..settings.keys import SHORTER

    told = f": {facts['idea']}" + (f" ({cited(facts)})" if facts["year"] else "")
    headline = Text.assemble((facts["name"], "bold"), told)
    # Paragraphs and list items as one line each, to be wrapped as wide as the terminal is.
    text = re.sub(r"(?<!\n)\n(?!\n|- |Notation:|Departures)\s*", " ", facts["text"])
    parts: list[RenderableType] = [headline, "", Text(text), ""]
    if facts["shares"]:
        parts += [Text("shares: " + cell(facts["shares"])), ""]
    headings = ("key", "symbol", "default", "allowed", "meaning")
    for group, rows in facts["settings"].items():
        if rows:
            out = Table(*headings, title=group, title_justify="left", show_edge=False)
            for row in rows:
                default = "" if row["value"] is None else str(row["value"]) or "''"
                out.add_row(*map(Text, {**row, "value": default}.values()))
            parts += [out, ""]
    for preset, values in facts["presets"].items():
        parts.append(Text(f"preset={preset}: " + " ".join(f"{SHORTER.get(k, k)}={v}" for k, v in values.items())))
    return Group(*parts)
