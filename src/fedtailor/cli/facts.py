"""What there is, as data: a function for each list of `fedtailor list`, and one for a method's page.

All of it needs torch, since methods and tuners do; catalogue.py keeps what is said here from one command to the next.
"""

import inspect
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from ..base.keys import flat
from ..data import DATASETS, FORMS
from ..data.partitions import PARTITIONS
from ..evaluation.diagnostics import DIAGNOSTICS
from ..methods import METHODS
from ..settings.engines import ENGINES
from ..settings.keys import SHORTER
from ..settings.run import PARTS, Run, fields_of, find_method, kinds_of, make_run
from ..tuners import TUNERS
from .catalogue import Facts

BACKBONES = {
    "bundled": "a small CLIP of our own, for first steps with the drawn dataset",
    "owner/name": "on the hub: openai/clip-vit-base-patch16 …; needs fedtailor[hub]",
    "PATH": "a Hugging Face CLIP folder: config.json, model.safetensors, tokenizer.json",
    "PATH.safetensors": "a state dict in OpenAI's layout, with tokenizer.json beside it",
}
MEANING = {
    "labels": "where labels come from",
    "rebalance": "how gradients are reweighted by class",
    "server": "the server's optimiser",
    "privacy": "what is done to an update before it leaves",
    "robust": "what is done to a round's replies before they are averaged",
    "attack": "what bad clients of a simulation do",
    "secure": "how replies are added up before the server sees them",
}


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
    notes = {
        "folder:PATH": "your own images, sub-folders for classes, sites, train and test",
        "csv:PATH": "a table: path, label, split, site, group",
    }
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


def backbones() -> list[Facts]:
    return [{"name": name, "idea": idea} for name, idea in BACKBONES.items()]


def labelers() -> list[Facts]:
    return part("labels", "the data's own labels")


def rebalancers() -> list[Facts]:
    return part("rebalance", "gradients as they are")


def servers() -> list[Facts]:
    return part("server", "the round's own result, for most methods the clients' average")


def privacy() -> list[Facts]:
    return part("privacy", "updates as they are")


def robust() -> list[Facts]:
    return part("robust", "replies as they are")


def attacks() -> list[Facts]:
    return part("attack", "all clients are honest")


def secure() -> list[Facts]:
    return part("secure", "the server sees each reply")


def engines() -> list[Facts]:
    return [{"name": name, "idea": entry.idea} for name, entry in ENGINES.items()]


def diagnostics() -> list[Facts]:
    return [
        {"name": name, "needs": diagnostic.needs or None, "idea": first_line(diagnostic.measure)}
        for name, diagnostic in DIAGNOSTICS.items()
    ]


def part(name: str, nothing: str) -> list[Facts]:
    """What there is of a part that any method may be combined with."""
    none, known = PARTS[name]
    return [{"name": none, "settings": [], "idea": nothing}] + [
        {"name": found, "settings": list(kind.model_fields), "idea": (kind.__doc__ or idea_of(kind)).split("\n")[0]}
        for found, kind in known.items()
    ]


def idea_of(kind: type) -> str:
    """Ours have a module each; others may have many in one."""
    return first_line(inspect.getmodule(kind) if kind.__module__.startswith("fedtailor.") else kind)


def texts_of(kind: type) -> list[str]:
    ours, module = kind.__module__.startswith("fedtailor."), inspect.getmodule(kind)
    return [(inspect.getdoc(module) or "") if module else "", "" if ours else inspect.getdoc(kind) or ""]


def first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0]


# --- one method -----------------------------------------------------------------------------------------------------


def method(name: str) -> Facts:
    """Everything about a method; its settings by group, each with key, symbol, value and meaning."""
    name, entry = find_method(name)
    document = make_run(name).document()
    values, kinds = flat(document), kinds_of(document, entry)
    values["threads"] = Run.model_fields["threads"].default  # in the document it is this machine's number
    shorter = {f"method.{full}": f"method.{key}" for key, full in entry.method.short.items()} | SHORTER
    named = ("method", "tuner", "local", *PARTS, "run", "data", "backbone", "memory")
    groups = {group: list[Facts]() for group in named}
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
        "text": "\n\n".join(filter(None, dict.fromkeys(text for kind in told for text in texts_of(kind)))),
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
