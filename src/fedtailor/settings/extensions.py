"""Methods, tuners and labelers from outside this package: registered from Python, or named by an installed package's
entry points, which are looked at when a name is not known here, and for lists."""

import inspect
import re
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

from ..base.entry_points import found
from ..base.errors import UserError, shortened
from ..base.keys import flat
from ..core import Method, Tuner
from ..labelers import LABELERS
from ..labelers.base import Labeler
from ..methods import METHODS
from ..methods.recipe import Entry
from ..tuners import TUNERS

FAMILY = "from outside"
# By the word for it: its class, those that are known, and the group of entry points.
KINDS: dict[str, tuple[type, dict[str, Any], str]] = {
    "method": (Method, METHODS, "fedtailor.methods"),
    "tuner": (Tuner, TUNERS, "fedtailor.tuners"),
    "labeler": (Labeler, LABELERS, "fedtailor.labelers"),
}
OUTSIDE = re.compile(rf"({'|'.join(KINDS)}) (\S+) = (\S+)")
OURS = {word: frozenset(known) for word, (_, known, _) in KINDS.items()}
C = TypeVar("C", bound=type)


def register(
    kind: C,
    name: str = "",
    *,
    tuner: str = "text_prompt",
    tuners: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    idea: str = "",
) -> C:
    """Make a Method, Tuner or Labeler of your own known under a name, by default its class's in small letters.

    Of a method: the tuner that it comes with, the only ones it may have (none: any), and settings of its own, as in a
    recipe. Returns the class, so it may stand above one as a decorator.
    """
    word, name = word_for(kind), name or kind.__name__.lower()
    _, known, _ = KINDS[word]
    if not re.fullmatch(r"[a-z0-9_][a-z0-9_-]*", name):
        raise UserError(f"{name!r} is no name for a {word}: small letters, digits, - and _ are")
    if name in OURS[word]:
        raise UserError(f"there is a {word} {name!r} already; register {kind.__name__} under another name")
    if word != "method" and (tuners or settings or tuner != "text_prompt"):
        raise UserError(f"tuner, tuners and settings are of methods, and {kind.__name__} is a {word}")
    told = idea or (inspect.getdoc(kind) or "").split("\n")[0]
    own = flat(settings or {})
    known[name] = Entry(kind, tuner, told, "", None, FAMILY, tuple(tuners), own) if word == "method" else kind
    return kind


def word_for(kind: object) -> str:
    for word, (base, _, _) in KINDS.items():
        if isinstance(kind, type) and issubclass(kind, base):
            if inspect.isabstract(kind):
                raise UserError(f"{kind.__name__} lacks {', '.join(sorted(getattr(kind, '__abstractmethods__', ())))}")
            return word
    raise UserError(f"{kind!r} is no class of a method, tuner or labeler: derive it from fedtailor.Method, say")


def name_of(method: type[Method]) -> str:
    """The name of a method's class, which is registered if it is not."""
    if name := next((name for name, entry in METHODS.items() if entry.method is method), ""):
        return name
    return register(method).__name__.lower()


def look_for(word: str, name: str) -> bool:
    """Whether there is such a one, here or in another package."""
    _, known, group = KINDS[word]
    for point in found(group) if name not in known else ():
        if point.name == name:
            take(word, point)
    return name in known


def discover() -> None:
    """Everything that other packages bring. One that cannot be loaded is told of, and left out."""
    for word, (_, known, group) in KINDS.items():
        for point in found(group):
            if point.name not in known:
                try:
                    take(word, point)
                except UserError as error:
                    warnings.warn(str(error), stacklevel=2)


def take(word: str, point: EntryPoint) -> None:
    where = f"{word} {point.name!r} of {point.dist.name if point.dist else point.value}"
    try:
        thing = point.load()
    except Exception as error:  # whatever another package's import comes to
        raise UserError(f"the {where} cannot be loaded: {type(error).__name__}: {error}") from error
    kind = thing.method if isinstance(thing, Entry) else thing
    if word_for(kind) != word:
        raise UserError(f"the {where} is a {word_for(kind)}; its entry point is in the wrong group")
    register(kind, point.name)
    if isinstance(thing, Entry):  # with all that a recipe may say
        METHODS[point.name] = thing


def outside(method: str, tuner: str, labels: str) -> list[str]:
    """What of these is not ours, for a run.toml."""
    named = [("method", method), *(("tuner", part) for part in tuner.split("+")), ("labeler", labels)]
    ours = {word: {*OURS[word], "given"} for word in KINDS}
    return [f"{word} {name} = {place(KINDS[word][1][name])}" for word, name in named if name not in ours[word]]


def place(thing: Any) -> str:
    kind = thing.method if isinstance(thing, Entry) else thing
    return f"{kind.__module__}.{kind.__qualname__}"


def check_outside(where: object, lines: Sequence[str]) -> None:
    """That what a run had from outside is here again."""
    for line in lines if isinstance(lines, list | tuple) else [lines]:
        if not (found := OUTSIDE.fullmatch(str(line))):
            raise UserError(
                f"{where}: about.outside is a list of '{'|'.join(KINDS)} NAME = CLASS', got {shortened(line)}"
            )
        word, name, path = found.groups()
        if not look_for(word, name):
            kind = path.rpartition(".")[2]
            raise UserError(
                f"{where} is of the {word} {name!r}, which is {path} and no part of fedtailor: import that, call "
                f"fedtailor.register({kind}, {name!r}), then fedtailor.resume or run; or install a package that names "
                f"it in its entry points ({KINDS[word][2]})"
            )
