"""What there is: methods, tuners, labelers, datasets and so on, as data and as tables."""

import inspect
import re
from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..base.errors import unknown
from ..base.keys import flat
from ..core import FIXED, LOCAL
from ..data import DATASETS, FORMS
from ..data.partitions import PARTITIONS
from ..evaluation.diagnostics import DIAGNOSTICS
from ..methods import METHODS
from ..settings.engines import ENGINES
from ..settings.keys import SHORTER
from ..settings.run import PARTS, fields_of, find_method, kinds_of, make_run
from ..tuners import TUNERS

Facts = dict[str, Any]


def methods() -> list[Facts]:
    return [
        {
            "name": name,
            "paper": entry.paper,
            "year": entry.year,
            "family": entry.family,
            "tuners": list(entry.tuners) or ["any"],
            "shares": {pattern: str(scope) for pattern, scope in entry.method.share.items() if entry.method.trains},
            "presets": list(entry.presets),
            "idea": entry.idea,
        }
        for name, entry in METHODS.items()
    ]


def tuners() -> list[Facts]:
    return [
        {"name": name, "touches": sorted(kind().touches()), "settings": list(kind.model_fields), "idea": idea_of(kind)}
        for name, kind in TUNERS.items()
    ]


def datasets() -> list[Facts]:
    notes = {"folder:PATH": "a folder of images, a sub-folder a class", "csv:PATH": "a table: path, label, split, site"}
    rows: list[Facts] = []
    for name in (*DATASETS, *(f"{form}:PATH" for form in FORMS)):
        source = DATASETS.get(name)
        train, test = (source and source.sizes) or (None, None)
        tail = source.imbalance if source else 1.0
        long_tail = "its own" if tail is None else None if tail == 1 else f"IF {tail:g}"
        rows.append({"name": name, "train": train, "test": test, "long tail": long_tail, "note": notes.get(name, "")})
    return rows


def partitions() -> list[Facts]:
    return [
        {"name": name, "settings": {n: f.default for n, f in kind.model_fields.items()}, "idea": first_line(kind)}
        for name, kind in PARTITIONS.items()
    ]


def part(name: str, nothing: str) -> list[Facts]:
    """What there is of a part that any method may be combined with."""
    none, known = PARTS[name]
    return [{"name": none, "settings": [], "idea": nothing}] + [
        {"name": found, "settings": list(kind.model_fields), "idea": (kind.__doc__ or idea_of(kind)).split("\n")[0]}
        for found, kind in known.items()
    ]


BACKBONES = {
    "bundled": "a small CLIP of our own, for first steps with the drawn dataset",
    "owner/name": "on the hub: openai/clip-vit-base-patch16 …; needs fedtailor[hub]",
    "PATH": "a Hugging Face CLIP folder: config.json, model.safetensors, tokenizer.json",
    "PATH.safetensors": "a state dict in OpenAI's layout, with tokenizer.json beside it",
}
KINDS: dict[str, Callable[[], list[Facts]]] = {
    "methods": methods,
    "tuners": tuners,
    "datasets": datasets,
    "partitions": partitions,
    "backbones": lambda: [{"name": name, "idea": idea} for name, idea in BACKBONES.items()],
    "labelers": lambda: part("labels", "the data's own labels"),
    "rebalancers": lambda: part("rebalance", "gradients as they are"),
    "servers": lambda: part("server", "the round's own result, for most methods the clients' average"),
    "privacy": lambda: part("privacy", "updates as they are"),
    "engines": lambda: [{"name": name, "idea": entry.idea} for name, entry in ENGINES.items()],
    "diagnostics": lambda: [
        {"name": name, "needs": diagnostic.needs or None, "idea": first_line(diagnostic.measure)}
        for name, diagnostic in DIAGNOSTICS.items()
    ],
}


def rows(kind: str) -> list[Facts]:
    if kind not in KINDS:
        raise unknown("list", kind, KINDS)
    return KINDS[kind]()


def idea_of(kind: type) -> str:
    return first_line(inspect.getmodule(kind))


def first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0]


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
    stays = [name for name, scope in shares.items() if scope in {str(LOCAL), str(FIXED)}]
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


# --- one method -----------------------------------------------------------------------------------------------------

MEANING = {
    "labels": "where labels come from",
    "rebalance": "how gradients are reweighted by class",
    "server": "the server's optimiser",
    "privacy": "what is done to an update before it leaves",
}


def method(name: str) -> Facts:
    """Everything about a method; its settings by group, each with key, symbol, value and meaning."""
    name, entry = find_method(name)
    document = make_run(name).document()
    values, kinds = flat(document), kinds_of(document, entry)
    shorter = {f"method.{full}": f"method.{key}" for key, full in entry.method.short.items()} | SHORTER
    groups = {group: list[Facts]() for group in ("method", "tuner", "local", *PARTS, "run", "data", "backbone")}
    for part, (none, known) in PARTS.items():
        words = " | ".join([none, *known])
        groups[part].append(setting(part, "", document[part]["name"], words, MEANING[part]))
    del kinds["plan"]  # tells of sites, not of methods
    for group, kind in kinds.items():
        for key, field in fields_of(kind, group).items():
            short = shorter.get(key, key.replace("data.partition.", "data."))
            row = setting(short, field.title or "", values.get(key), allowed(field), field.description or "")
            groups[group.partition(".")[0] or "run"].append(row)
    told = [kind for group, kind in kinds.items() if group.partition(".")[0] in {"method", "tuner", *PARTS}]
    return {
        **next(row for row in methods() if row["name"] == name),
        "class": f"{entry.method.__module__}.{entry.method.__name__}",
        "tuner": document["tuner"]["name"],
        "text": "\n\n".join(inspect.getdoc(inspect.getmodule(kind)) or "" for kind in told),
        "presets": {preset: dict(values) for preset, values in entry.presets.items()},
        "settings": groups,
    }


def setting(key: str, symbol: str, value: Any, allowed: str, meaning: str) -> Facts:
    return {"key": key, "symbol": symbol, "value": value, "allowed": allowed, "meaning": meaning}


def allowed(field: FieldInfo) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [f"{signs[a]} {getattr(m, a)}" for m in field.metadata for a in signs if hasattr(m, a)]
    return ", ".join(bounds) or " | ".join(choices(field.annotation))


def choices(kind: Any) -> list[str]:
    """The words of a Literal, also within a union."""
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    return [word for part in get_args(kind) for word in choices(part)] if get_origin(kind) in (Union, UnionType) else []


def method_page(facts: Facts) -> RenderableType:
    headline = f"[bold]{facts['name']}[/]: {facts['idea']}" + (f" ({cited(facts)})" if facts["year"] else "")
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
