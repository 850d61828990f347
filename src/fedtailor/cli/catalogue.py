"""What there is: methods, tuners, labelers, datasets and so on, as data and as tables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..base.errors import unknown
from ..core import FIXED, LOCAL
from ..data import DATASETS
from ..data.partitions import PARTITIONS
from ..evaluation.diagnostics import DIAGNOSTICS
from ..methods import METHODS
from ..settings.engines import ENGINES
from ..settings.keys import SHORTER
from ..settings.run import GROUPS_OF_KEYS, PARTS, Run, dataset_names, find_method, make_run
from ..tuners import TUNERS, tuner_names

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
    for name in dataset_names():
        source = DATASETS.get(name)
        train, test = (source and source.sizes) or (None, None)
        tail = source.imbalance if source else 1.0
        long_tail = "its own" if tail is None else None if tail == 1 else f"IF {tail:g}"
        rows.append(
            {"name": name, "train": train, "test": test, "long tail": long_tail, "note": notes.get(name, "")}
        )  # fmt: skip
    return rows


def partitions() -> list[Facts]:
    return [
        {"name": name, "settings": {n: f.default for n, f in kind.model_fields.items()}, "idea": first_line(kind)}
        for name, kind in PARTITIONS.items()
    ]


def backbones() -> list[Facts]:
    ideas = {
        "bundled": "a small CLIP of our own, for first steps with the drawn dataset",
        "owner/name": "on the hub: openai/clip-vit-base-patch16 …; needs fedtailor[hub]",
        "PATH": "a Hugging Face CLIP folder: config.json, model.safetensors, tokenizer.json",
        "PATH.safetensors": "a state dict in OpenAI's layout, with tokenizer.json beside it",
    }
    return [{"name": name, "idea": idea} for name, idea in ideas.items()]


def part(name: str, nothing: str) -> Callable[[], list[Facts]]:
    """What there is of a part that any method may be combined with."""

    def rows() -> list[Facts]:
        none, known = PARTS[name]
        return [{"name": none, "settings": [], "idea": nothing}] + [
            {"name": found, "settings": list(kind.model_fields), "idea": (kind.__doc__ or idea_of(kind)).split("\n")[0]}
            for found, kind in known.items()
        ]

    return rows


def engines() -> list[Facts]:
    return [{"name": name, "idea": entry.idea} for name, entry in ENGINES.items()]


def diagnostics() -> list[Facts]:
    return [
        {"name": name, "needs": diagnostic.needs or None, "idea": first_line(diagnostic.measure)}
        for name, diagnostic in DIAGNOSTICS.items()
    ]


KINDS: dict[str, Callable[[], list[Facts]]] = {
    "methods": methods,
    "tuners": tuners,
    "datasets": datasets,
    "partitions": partitions,
    "backbones": backbones,
    "labelers": part("labels", "the data's own labels"),
    "rebalancers": part("rebalance", "gradients as they are"),
    "servers": part("server", "the round's own result, for most methods the clients' average"),
    "privacy": part("privacy", "updates as they are"),
    "engines": engines,
    "diagnostics": diagnostics,
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
    run = make_run(name)
    document = run.document()
    parts = tuner_names(run.tuner.name)
    kinds: list[type] = [entry.method, *(TUNERS[part] for part in parts)]
    groups: dict[str, list[Facts]] = {
        "method": list(settings(entry.method, "method.", document["method"], entry.method.short, without={"local"})),
        "tuner": [
            row
            for part in parts
            for row in settings(TUNERS[part], *(
                ("tuner.", document["tuner"]) if len(parts) == 1 else (f"tuner.{part}.", document["tuner"][part])
            ))
        ],
        "local": list(settings(type(run.local), "local.", document["local"])),
    }  # fmt: skip
    for part, (none, known) in PARTS.items():
        chosen = getattr(run, part).name
        allowed_words = " | ".join([none, *known])
        first = {"key": part, "symbol": "", "value": chosen, "allowed": allowed_words, "meaning": MEANING[part]}
        groups[part] = [first, *(settings(known[chosen], f"{part}.", document[part]) if chosen in known else ())]
        kinds += [known[chosen]] if chosen in known else []
    partition = PARTITIONS[run.data.partition.name]
    groups["run"] = list(settings(Run, "", document, without=GROUPS_OF_KEYS))
    groups["data"] = list(settings(type(run.data), "data.", document["data"], without={"partition"}))
    groups["data"] += settings(partition, "data.", document["data"]["partition"])
    groups["backbone"] = list(settings(type(run.backbone), "backbone.", document["backbone"]))
    return {
        **next(row for row in methods() if row["name"] == name),
        "class": f"{entry.method.__module__}.{entry.method.__name__}",
        "tuner": run.tuner.name,
        "text": "\n\n".join(inspect.getdoc(inspect.getmodule(kind)) or "" for kind in kinds),
        "presets": {preset: dict(values) for preset, values in entry.presets.items()},
        "settings": groups,
    }


def settings(
    kind: type[BaseModel],
    prefix: str,
    values: Mapping[str, Any],
    short: Mapping[str, str] | None = None,
    without: set[str] | None = None,
) -> Iterator[Facts]:
    """A row for each key of a settings class, under the shortest spelling that users may give it."""
    shorter = {f"{prefix}{full}": f"{prefix}{key}" for key, full in (short or {}).items()} | SHORTER
    for name, field in kind.model_fields.items():
        key, value = prefix + name, values.get(name)
        if name in (without or set()):
            continue
        if isinstance(value, Mapping):
            assert isinstance(field.annotation, type)
            nested = settings(field.annotation, f"{key}.", value)
            yield from ({**row, "key": shorter.get(row["key"], row["key"])} for row in nested)
            continue
        yield {
            "key": shorter.get(key, key),
            "symbol": field.title or "",
            "value": value,
            "allowed": allowed(field),
            "meaning": field.description or "",
        }


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
    parts: list[RenderableType] = [headline, "", Text(unwrapped(facts["text"])), ""]
    if facts["shares"]:
        parts += [Text("shares: " + cell(facts["shares"])), ""]
    headings = ("key", "symbol", "default", "allowed", "meaning")
    for group, rows_ in facts["settings"].items():
        if rows_:
            out = Table(*headings, title=group, title_justify="left", show_edge=False)
            for row in rows_:
                values = (row["key"], row["symbol"], shown(row["value"]), row["allowed"], row["meaning"])
                out.add_row(*map(Text, values))
            parts += [out, ""]
    for preset, values in facts["presets"].items():
        parts.append(Text(f"preset={preset}: " + " ".join(f"{SHORTER.get(k, k)}={v}" for k, v in values.items())))
    return Group(*parts)


def unwrapped(text: str) -> str:
    """A docstring's paragraphs and list items as one line each, to be wrapped as wide as the terminal is."""
    return re.sub(r"(?<!\n)\n(?!\n|- |Notation:|Departures)\s*", " ", text)


def shown(value: Any) -> str:
    return "" if value is None else repr(value) if value == "" else str(value)
