"""What there is: methods, tuners, labelers, datasets and so on, as data and as tables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..base.errors import unknown
from ..core.method import Method
from ..core.optim import LocalTraining
from ..core.types import FIXED, LOCAL
from ..data import DATASETS
from ..data.partitions import PARTITIONS
from ..evaluation.diagnostics import DIAGNOSTICS
from ..methods import METHODS
from ..settings.engines import ENGINES
from ..settings.run import GROUPED, PARTS, SHORTER, Backbone, Data, Run, dataset_names, make_run
from ..tuners import TUNERS, tuner_names

Facts = dict[str, Any]
UNIONS = (Union, UnionType)


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
        {
            "name": name,
            "touches": sorted(kind().touches()),
            "settings": list(kind.model_fields),
            "idea": first_line(inspect.getmodule(kind)),
        }
        for name, kind in TUNERS.items()
    ]


def datasets() -> list[Facts]:
    notes = {"folder:PATH": "a folder of images, a sub-folder a class", "csv:PATH": "a table: path, label, split, site"}
    rows: list[Facts] = []
    for name in dataset_names():
        source = DATASETS.get(name)
        sizes = source.sizes if source else None
        tail = source.imbalance if source else 1.0
        rows.append(
            {
                "name": name,
                "train": sizes[0] if sizes else None,
                "test": sizes[1] if sizes else None,
                "long tail": "its own" if tail is None else None if tail == 1 else f"IF {tail:g}",
                "note": notes.get(name, ""),
            }
        )
    return rows


def partitions() -> list[Facts]:
    return [
        {"name": name, "settings": {n: f.default for n, f in kind.model_fields.items()}, "idea": first_line(kind)}
        for name, kind in PARTITIONS.items()
    ]


def backbones() -> list[Facts]:
    return [
        {"name": "bundled", "idea": "a small CLIP of our own, for first steps with the drawn dataset"},
        {
            "name": "owner/name",
            "idea": "on the hub: openai/clip-vit-base-patch16 …; needs fedtailor[hub]",
        },
        {"name": "PATH", "idea": "a Hugging Face CLIP folder: config.json, model.safetensors, tokenizer.json"},
        {"name": "PATH.safetensors", "idea": "a state dict in OpenAI's layout, with tokenizer.json beside it"},
    ]


def part_rows(part: str, nothing: str) -> Callable[[], list[Facts]]:
    """What there is of a part that any method may be run with."""

    def rows() -> list[Facts]:
        plain, known = PARTS[part]
        return [{"name": plain, "settings": [], "idea": nothing}] + [
            {"name": name, "settings": list(kind.model_fields), "idea": (kind.__doc__ or idea_of(kind)).split("\n")[0]}
            for name, kind in known.items()
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
    "labelers": part_rows("labels", "the data's own labels"),
    "rebalancers": part_rows("rebalance", "gradients as they are"),
    "servers": part_rows("server", "the round's own result, for most methods the clients' average"),
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


def method(name: str) -> Facts:
    """Everything about a method; its settings by group, each with key, symbol, value and meaning."""
    if name not in METHODS:
        raise unknown("method", name, METHODS, "fedtailor list methods")
    entry, run = METHODS[name], make_run(name)
    groups: dict[str, list[Facts]] = {
        "method": settings(entry.method, "method.", run.method.options, without={"local"}),
        "tuner": [row for part in tuner_names(run.tuner.name) for row in tuner_settings(part, run)],
        "local": settings(LocalTraining, "local.", run.local.model_dump()),
        **{part: part_settings(part, run) for part in PARTS},
        "run": settings(Run, "", run.model_dump(), without=GROUPED),
        "data": settings(Data, "data.", run.data.model_dump(), without={"partition"})
        + settings(PARTITIONS[run.data.partition.name], "data.", run.data.partition.options),
        "backbone": settings(Backbone, "backbone.", run.backbone.model_dump()),
    }
    listed = next(row for row in methods() if row["name"] == name)
    return {
        **listed,
        "class": f"{entry.method.__module__}.{entry.method.__name__}",
        "tuner": run.tuner.name,
        "text": page_text(entry.method, run),
        "presets": {preset: dict(values) for preset, values in entry.presets.items()},
        "settings": groups,
    }


def page_text(method: type[Method], run: Run) -> str:
    """What its file says, and those of its tuner and of whatever else comes with it."""
    chosen = [(known, getattr(run, part).name) for part, (_, known) in PARTS.items()]
    kinds: list[type] = [method, *(TUNERS[part] for part in tuner_names(run.tuner.name))]
    kinds += [known[name] for known, name in chosen if name in known]
    return "\n\n".join(inspect.getdoc(inspect.getmodule(kind)) or "" for kind in kinds)


def tuner_settings(part: str, run: Run) -> list[Facts]:
    """Of a join, a part's options stand under its name."""
    joined = part != run.tuner.name
    values = run.tuner.options[part] if joined else run.tuner.options
    return settings(TUNERS[part], f"tuner.{part}." if joined else "tuner.", values)


MEANING = {
    "labels": "where labels come from",
    "rebalance": "how gradients are reweighted by class",
    "server": "the server's optimiser",
}


def part_settings(part: str, run: Run) -> list[Facts]:
    (plain, known), choice = PARTS[part], getattr(run, part)
    words = " | ".join([plain, *known])
    first = {"key": part, "symbol": "", "value": choice.name, "allowed": words, "meaning": MEANING[part]}
    return [first, *(settings(known[choice.name], f"{part}.", choice.options) if choice.name in known else [])]


def settings(
    kind: type[BaseModel], prefix: str, values: dict[str, Any], without: set[str] | None = None
) -> list[Facts]:
    return [
        {
            "key": SHORTER.get(prefix + name, prefix + name),
            "symbol": field.title or "",
            "value": values.get(name),
            "allowed": allowed(field),
            "meaning": field.description or "",
        }
        for name, field in kind.model_fields.items()
        if name not in (without or set())
    ]


def allowed(field: FieldInfo) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [f"{signs[a]} {getattr(m, a)}" for m in field.metadata for a in signs if hasattr(m, a)]
    return ", ".join(bounds) or " | ".join(choices(field.annotation))


def choices(kind: Any) -> list[str]:
    """The words of a Literal, also within a union."""
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    return [word for part in get_args(kind) for word in choices(part)] if get_origin(kind) in UNIONS else []


def method_page(facts: Facts) -> RenderableType:
    parts: list[RenderableType] = [
        f"[bold]{facts['name']}[/]: {facts['idea']}" + (f" ({cited(facts)})" if facts["year"] else ""),
        "",
    ]
    parts += [Text(unwrapped(facts["text"])), ""]
    if facts["shares"]:
        parts += [Text("shares: " + cell(facts["shares"])), ""]
    for group, rows_ in facts["settings"].items():
        if not rows_:
            continue
        headings = ("key", "symbol", "default", "allowed", "meaning")
        out = Table(*headings, title=group, title_justify="left", show_edge=False)
        for row in rows_:
            out.add_row(*map(Text, (row["key"], row["symbol"], shown(row["value"]), row["allowed"], row["meaning"])))
        parts += [out, ""]
    for preset, values in facts["presets"].items():
        parts.append(Text(f"preset={preset}: " + " ".join(f"{SHORTER.get(k, k)}={v}" for k, v in values.items())))
    return Group(*parts)


def unwrapped(text: str) -> str:
    """A docstring's paragraphs and list items as one line each, to be wrapped as wide as the terminal is."""
    return re.sub(r"(?<!\n)\n(?!\n|- |Notation:|Departures)\s*", " ", text)


def shown(value: Any) -> str:
    return "" if value is None else repr(value) if value == "" else str(value)
