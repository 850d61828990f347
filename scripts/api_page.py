"""The page of Python's side, from signatures and docstrings: every public name of `fedtailor`, each once."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import fedtailor

GROUPS = {
    "Running": ("run", "resume", "compare", "make_run", "Run", "Result", "Comparison"),
    "Following": ("Callback", "track"),
    "Using a model": ("load", "TunedModel", "Prediction", "export", "Exported"),
    "Methods, tuners, labelers": ("register", "Method", "Tuner", "Labeler"),
    "What a method is written with": (
        *("Model", "Params", "Batch", "Me", "Reply", "Server", "Each"),
        *("Scope", "GLOBAL", "LOCAL", "FIXED", "Cluster"),
    ),
    "Errors and version": ("UserError", "__version__"),
}
LONG = 30  # letters of a default that says nothing any more
OF_PYDANTIC = {"model_post_init", "model_config"}


class Raw(str):
    """Shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def api_page() -> str:
    lines = ["# Python", "", "All of these are names in `fedtailor`: `import fedtailor`.", ""]
    for title, names in GROUPS.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += [f"### `{name}`", "", *told(name, getattr(fedtailor, name)), ""]
    return "\n".join(lines)


def told(name: str, it: Any) -> Iterator[str]:
    if not (inspect.isclass(it) or inspect.isfunction(it)):
        yield f"`{name} = {it!r}`"
        return
    if inspect.isfunction(it) or is_dataclass(it):
        yield from ("```python", signature(name, it), "```", "")
    yield from prose(own_text(it, name))
    if inspect.isclass(it):
        yield from members(it)


def members(kind: type) -> Iterator[str]:
    """The class's own public methods, and what its settings mean."""
    fields = {key: field for key, field in getattr(kind, "model_fields", {}).items() if field.description}
    if fields:
        yield from ("| setting | what |", "|---|---|")
        yield from (f"| `{key}` | {field.description} |" for key, field in fields.items())
        yield ""
    silent = []
    for name, member in vars(kind).items():
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if name.startswith("_") or name in OF_PYDANTIC or not inspect.isfunction(function):
            continue
        shown = f"`{signature(name, function, wide=True)}`"
        if text := inspect.getdoc(function):
            yield from (f"**{shown}**", "", text.split("\n\n")[0].replace("\n", " "), "")
        else:
            silent.append(shown)
    if silent:
        yield from ("Also:", "", *(f"* {shown}" for shown in silent), "")


def own_text(it: Any, name: str) -> str:
    """A docstring that somebody wrote: not the one that a dataclass makes, and not that of another class."""
    text = inspect.getdoc(it) or ""
    return "" if not it.__doc__ or text.startswith(f"{name}(") else text


def signature(name: str, it: Any, wide: bool = False) -> str:
    """On one line if it fits."""
    found, of_class = inspect.signature(it), inspect.isclass(it)
    shown = [
        shown_parameter(parameter) for parameter in found.parameters.values() if parameter.name not in ("self", "cls")
    ]
    end = "" if of_class else f" -> {annotated(found.return_annotation)}"
    whole = str(found.replace(parameters=shown, return_annotation=inspect.Signature.empty))
    if wide or len(name + whole + end) < 90:
        return f"{name}{whole}{end}"
    parts = re.split(r", (?=[*/\w]+(?:: |,|$))", whole[1:-1])
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){end}"])


def shown_parameter(parameter: inspect.Parameter) -> inspect.Parameter:
    empty = inspect.Parameter.empty
    kind = empty if parameter.annotation is empty else Raw(annotated(parameter.annotation))
    dull = repr(parameter.default).startswith("<") or len(repr(parameter.default)) > LONG
    default = Raw("…") if dull else parameter.default
    return parameter.replace(annotation=kind, default=empty if parameter.default is empty else default)


def annotated(kind: Any) -> str:
    """As it is written in the source, without the modules that names come from."""
    text = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    return re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", text).replace("dict[str, Tensor]", "Params")


def prose(text: str | None) -> Iterator[str]:
    """Paragraphs; those that are code are shown as such."""
    for paragraph in (text or "").split("\n\n"):
        yield from (["```python", paragraph, "```"] if is_code(paragraph) else [paragraph])
        yield ""


def is_code(paragraph: str) -> bool:
    try:
        return any(isinstance(node, ast.Call) for node in ast.walk(ast.parse(paragraph)))
    except SyntaxError:
        return False
