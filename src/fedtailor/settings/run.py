"""A run by its settings: dotted keys in, one fully resolved document out, which run.toml holds and which runs it again.

Later sources win: the defaults here, the method's own settings, its preset, what the user says. Every key is known and
every value checked before any work begins.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ..base.errors import UserError, unknown
from ..clip.load import BUNDLED
from ..core.method import Method
from ..core.model import Tuner
from ..core.optim import LocalTraining
from ..core.types import OWN
from ..data import DATASETS, FORMS, find_source
from ..data.groups import GROUPS
from ..data.partitions import PARTITIONS
from ..data.partitions.base import Partition
from ..evaluation.diagnostics import DIAGNOSTICS, choose
from ..labelers import LABELERS
from ..labelers.base import Labeler
from ..methods import METHODS, Entry
from ..rebalancers import REBALANCERS
from ..rebalancers.base import Rebalancer
from ..server_optimizers import AVERAGE, SERVER_OPTIMIZERS
from ..server_optimizers.base import ServerOptimizer
from ..tuners import TUNERS, make_tuner, tuner_names
from .engines import ENGINES
from .round_policy import RoundPolicy

M = TypeVar("M", bound=BaseModel)

GIVEN = "given"  # labels as the data has them
NONE = "none"  # no rebalancing

# What any method may be run with: the name that stands for nothing of the kind, and all others.
PARTS: dict[str, tuple[str, Mapping[str, type[BaseModel]]]] = {
    "labels": (GIVEN, LABELERS),
    "rebalance": (NONE, REBALANCERS),
    "server": (AVERAGE, SERVER_OPTIMIZERS),
}
DEFAULT_METHOD = "capt"

# Short spellings, on the command line and in Python.
SHORT = {
    "epochs": "local.epochs",
    "batch": "local.batch",
    "lr": "local.lr",
    "data": "data.name",
    "data.partition": "data.partition.name",
    "tuner": "tuner.name",
    "backbone": "backbone.name",
    "method": "method.name",
    **{part: f"{part}.name" for part in PARTS},
}


SHORTER = {full: key for key, full in SHORT.items()}


# What a name brings along: it goes when a run.toml is run under another name.
OPTIONS = {
    "method.name": "method.",
    "tuner.name": "tuner.",
    "data.partition.name": "data.partition.",
    "data.name": "data.imbalance",
    **{f"{part}.name": f"{part}." for part in PARTS},
}


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Choice(BaseModel):
    """Something by name, with options that its own class checks."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Data(Strict):
    name: str = Field("drawn-lt", description="fedtailor list datasets, or folder:PATH, csv:PATH")
    root: str = Field("", description="where the files are; empty: $FEDTAILOR_DATA, or a cache folder")
    imbalance: float | None = Field(None, ge=1, allow_inf_nan=False, title="IF", description="largest ÷ smallest class")
    seed: int = Field(1, ge=0, description="of the draw that thins a long tail; not the run's seed")
    template: str = Field("", description="the zero-shot sentence, with {} for the name; empty: the dataset's own")
    preprocess: Literal["clip", "paper"] = Field("clip", description="paper: as CAPT's and FedPuReL's codes do")
    server: Annotated[float, Field(ge=0, lt=1)] | Literal["test"] = Field(
        0.0,
        description="part of the training set that the server holds to validate on; test: the test set (a leak, for "
        "parity with released codes only)",
    )
    groups: str = Field("capt", description="which classes are head, mid and tail: capt, fedpurel or fedloge")
    partition: Choice = Choice(name="dirichlet")


class Backbone(Strict):
    name: str = Field(BUNDLED, description="bundled, a hub id owner/name, a folder, or a .safetensors file")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="of the frozen towers; trainables are fp32")


class Run(Strict):
    """Everything that decides a run's numbers."""

    rounds: int = Field(40, ge=0, title="T", description="communication rounds")
    clients: int = Field(20, ge=1, title="K")
    fraction: float = Field(0.4, gt=0, le=1, description="of the clients that take part in a round")
    seed: int = Field(0, ge=0)
    engine: str = Field("local", description="how passes reach the clients")
    threads: int = Field(0, ge=0, description="of the processor; 0: torch's choice. It decides the last bits")
    every: int = Field(5, ge=1, description="test after every so many rounds, and after the last")
    record: tuple[str, ...] = Field((), description=f"each round: some of {', '.join(DIAGNOSTICS)}; or all")
    method: Choice
    local: LocalTraining = LocalTraining()
    tuner: Choice
    labels: Choice = Choice(name=GIVEN)
    rebalance: Choice = Choice(name=NONE)
    server: Choice = Choice(name=AVERAGE)
    data: Data = Data()
    backbone: Backbone = Backbone()
    plan: RoundPolicy = RoundPolicy()

    @field_validator("record", mode="before")
    @classmethod
    def listed(cls, given: Any) -> Any:
        """`angle,drift`, with or without brackets, is a list too."""
        if not isinstance(given, str | list | tuple):
            raise ValueError("names with commas between them, as in record=angle,drift")
        return re.findall(r"[^\s,\[\]\"']+", given) if isinstance(given, str) else given

    def make_method(self) -> Method:
        return METHODS[self.method.name].method(local=self.local, **self.method.options)

    def make_labeler(self) -> Labeler | None:
        return None if self.labels.name == GIVEN else LABELERS[self.labels.name](**self.labels.options)

    def make_rebalancer(self) -> Rebalancer | None:
        return None if self.rebalance.name == NONE else REBALANCERS[self.rebalance.name](**self.rebalance.options)

    def make_server_optimizer(self) -> ServerOptimizer | None:
        return None if self.server.name == AVERAGE else SERVER_OPTIMIZERS[self.server.name](**self.server.options)

    def make_tuner(self) -> Tuner:
        return make_tuner(self.tuner.name, self.tuner.options)

    def make_partition(self) -> Partition:
        return PARTITIONS[self.data.partition.name](**self.data.partition.options)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(exclude_none=True))


GROUPED = {"method", "local", "tuner", "data", "backbone", "plan", *PARTS}  # keys that stand before a dot


def make_run(method: str | None = None, settings: Mapping[str, Any] | None = None, preset: str | None = None) -> Run:
    """A resolved run. `settings` are dotted keys, long or short, as the command line takes them."""
    given = {SHORT.get(key, key): value for key, value in (settings or {}).items()}
    preset = given.pop("preset", preset)
    if method and given.get("method.name", method) != method:
        raise UserError(f"the method is given twice, as {method!r} and as {given['method.name']!r}")
    name = str(given.pop("method.name", method or DEFAULT_METHOD))
    if name not in METHODS:
        raise unknown("method", name, METHODS, "fedtailor list methods")
    entry = METHODS[name]
    partition = str(given.pop("data.partition.name", Data().partition.name))
    layers: list[Mapping[str, Any]] = [
        {"method.name": name, "tuner.name": entry.tuner, "data.partition.name": partition},
        entry.settings,
    ]
    if preset is not None:
        if str(preset) not in entry.presets:
            raise unknown(f"preset of {name}", str(preset), entry.presets, f"fedtailor show {name}")
        layers.append(entry.presets[str(preset)])
    chosen = given.get("tuner.name", entry.tuner)
    if chosen != entry.tuner:  # another tuner: what is set for the method's own does not fit it
        own = [key for layer in layers for key in layer if key.startswith("tuner.") and key != "tuner.name"]
        layers = [{key: value for key, value in layer.items() if key not in own} for layer in layers]
    for when in ("", preset):  # what holds for this tuner with any preset, then with this one
        layers += [values for (of, tuner), values in entry.when.items() if (of, tuner) == (when, chosen)]
    layers.append({partition_key(key, partition): value for key, value in given.items()})
    document: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            group, _, rest = key.partition(".")
            nested = entry.method.short.get(rest) if group == "method" else None
            put(document, f"method.{nested}" if nested else key, value)
    return resolved(document, entry)


def partition_key(key: str, partition: str) -> str:
    """`data.alpha` means the partition's alpha."""
    head, _, rest = key.partition("data.")
    ours = not head and rest not in Data.model_fields and partition in PARTITIONS
    return f"data.partition.{rest}" if ours and rest in PARTITIONS[partition].model_fields else key


def put(document: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        document = document.setdefault(part, {})
        if not isinstance(document, dict):
            raise UserError(f"{key}: {part} is a value, not a group of keys")
    if isinstance(document.get(last), dict):
        raise UserError(f"{key} is given as a value and as a group of keys")
    document[last] = value


def resolved(document: dict[str, Any], entry: Entry) -> Run:
    """Check every name and value, and write out every default."""
    check_keys(document, entry)
    run = checked(Run, document, "")
    name = run.method.name
    for kind, value, known in (
        ("engine", run.engine, ENGINES),
        *((part, getattr(run, part).name, [plain, *known]) for part, (plain, known) in PARTS.items()),
        ("groups", run.data.groups, GROUPS),
        ("partition", run.data.partition.name, PARTITIONS),
    ):
        if value not in known:
            raise unknown(kind, value, known)
    source = find_source(run.data.name)
    if entry.tuners and run.tuner.name not in entry.tuners:
        raise UserError(
            f"{name} is a fixed combination with tuner {' or '.join(entry.tuners)}, got {run.tuner.name!r}; "
            "for another tuner take fedavg or fedprox"
        )
    if entry.method.trains and run.tuner.name == "none":
        raise UserError("tuner=none leaves nothing to train; choose a tuner, or take the method zeroshot")
    template = run.data.template
    if template and ("{}" not in template or re.sub("[^{}]", "", template) != "{}"):
        raise UserError(f"data.template must hold one {{}} for the class name, got {template!r}")
    if entry.method.trains and run.rounds == 0:
        raise UserError("rounds must be 1 or more, got 0; for an untrained CLIP take the method zeroshot")
    if ENGINES[run.engine].remote and OWN in entry.method.everyone(1):
        raise UserError(f"{name} gathers everyone's pictures in one place, which engine={run.engine} cannot do")
    if ENGINES[run.engine].remote and run.record:
        raise UserError(f"record looks into clients, which engine={run.engine} keeps to themselves; take engine=local")
    method = checked(entry.method, {**run.method.options, "local": run.local}, "method.")
    tuner = checked_tuner(run.tuner.name, run.tuner.options)
    partition = checked(PARTITIONS[run.data.partition.name], run.data.partition.options, "data.partition.")
    imbalance = run.data.imbalance if run.data.imbalance is not None else source.imbalance
    return run.model_copy(
        update={
            "rounds": run.rounds if entry.method.trains else 0,
            "threads": run.threads or torch.get_num_threads(),
            "record": choose(run.record, method, given=run.labels.name == GIVEN),
            "method": Choice(name=name, **method.model_dump(exclude={"local"})),
            "tuner": Choice(name=run.tuner.name, **tuner),
            **{part: checked_part(part, getattr(run, part)) for part in PARTS},
            "backbone": run.backbone.model_copy(update={"name": absolute_backbone(run.backbone.name)}),
            "data": run.data.model_copy(
                update={
                    "name": absolute_data(run.data.name),
                    "root": str(Path(run.data.root).expanduser().absolute()) if run.data.root else "",
                    "imbalance": imbalance,
                    "partition": Choice(name=run.data.partition.name, **partition.model_dump(exclude_none=True)),
                }
            ),
        }
    )


# A run is resumed from wherever its user happens to be, so paths are kept whole.


def absolute_data(name: str) -> str:
    form, colon, path = name.partition(":")
    return f"{form}:{Path(path).expanduser().absolute()}" if colon and form in FORMS else name


def absolute_backbone(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.absolute()) if name != BUNDLED and path.exists() else name


def checked_tuner(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A tuner's options with all defaults; of a join, a group of them for each part."""
    parts = tuner_names(name)
    if len(parts) == 1:
        return checked(TUNERS[name], options, "tuner.").model_dump()
    return {part: checked(TUNERS[part], options.get(part, {}), f"tuner.{part}.").model_dump() for part in parts}


def checked_part(part: str, choice: Choice) -> Choice:
    """With all its options' defaults."""
    plain, known = PARTS[part]
    if choice.name == plain:
        return Choice(name=plain)
    return Choice(name=choice.name, **checked(known[choice.name], choice.options, f"{part}.").model_dump())


def checked(kind: type[M], values: Mapping[str, Any], where: str) -> M:
    try:
        made = kind.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        key = (where + ".".join(written(problem["loc"], values))).rstrip(".")
        if problem["type"] == "extra_forbidden":
            raise unknown("key", key, [where + field for field in kind.model_fields]) from error
        told = problem["msg"].removeprefix("Value error, ")
        got = f", got {problem['input']!r}" if problem["loc"] else ""  # else it is about several keys at once
        raise UserError(f"{key}: {told[0].lower()}{told[1:]}{got}") from error
    read = flat(made.model_dump())
    for key, value in flat(values).items():  # Python takes True for 1; a user who writes true does not mean 1
        if isinstance(value, bool) and not isinstance(read.get(key, value), bool):
            raise UserError(f"{where}{key}: a number is due, got {str(value).lower()}")
    return made


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


# --- which keys there are -------------------------------------------------------------------------------------------


def check_keys(document: Mapping[str, Any], entry: Entry) -> None:
    """An unknown key ends the run before it begins, with the nearest that exists, at any depth."""
    known = set(known_keys(document, entry))
    groups = {key.rsplit(".", 1)[0] for key in known if "." in key}
    short = [key for key, full in SHORT.items() if full in known and key != "method"]
    short += [key.replace("data.partition.", "data.") for key in known if key.startswith("data.partition.")]
    for key in flat(document):
        if key not in known and key not in groups:
            raise unknown("key", key, [*known, *short], f"fedtailor show {document['method']['name']}")


def known_keys(document: Mapping[str, Any], entry: Entry) -> Iterable[str]:
    for name in Run.model_fields:
        if name not in GROUPED:
            yield name
    for group, kind in (("local", LocalTraining), ("data", Data), ("backbone", Backbone), ("plan", RoundPolicy)):
        yield from (f"{group}.{name}" for name in kind.model_fields if name != "partition")
    yield "method.name"
    yield from (f"method.{name}" for name in entry.method.model_fields if name != "local")
    yield from (f"method.{name}" for short in entry.method.short.items() for name in short)
    yield "tuner.name"
    tuner = document["tuner"]["name"]
    parts = tuner_names(str(tuner))
    for part in parts:
        prefix = "tuner" if len(parts) == 1 else f"tuner.{part}"
        yield from (f"{prefix}.{name}" for name in TUNERS[part].model_fields)
    for part, (plain, known) in PARTS.items():
        yield f"{part}.name"
        chosen = document.get(part, {}).get("name", plain)
        if chosen in known:
            yield from (f"{part}.{name}" for name in known[chosen].model_fields)
    yield "data.partition.name"
    partition = document.get("data", {}).get("partition", {}).get("name", Data().partition.name)
    if partition not in PARTITIONS:
        raise unknown("partition", str(partition), PARTITIONS, "fedtailor list partitions")
    yield from (f"data.partition.{name}" for name in PARTITIONS[partition].model_fields)


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested groups as dotted keys."""
    out: dict[str, Any] = {}
    for name, value in document.items():
        out |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return out


# --- text in --------------------------------------------------------------------------------------------------------


def parse(words: Iterable[str]) -> dict[str, Any]:
    """`key=value` words; a value is read as TOML where it is TOML (0.1, true, [1, 2]), else as plain text."""
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"{word!r} is not key=value; write for example rounds=20 or data.alpha=0.1")
        full = SHORT.get(key, key)
        if full in settings:
            raise UserError(f"{key} is given twice")
        settings[full] = parse_value(text)
    return settings


def parse_value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str | list) else text  # {} is a template, not a table


def read_document(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} is not a readable run.toml: {error}") from error
    if not isinstance(document.get("method"), dict) or "name" not in document["method"]:
        raise UserError(f"{path} is not a run.toml: it names no method")
    return document


def read_toml(path: Path, settings: Mapping[str, Any] | None = None) -> Run:
    """The run of a run.toml, with other settings where they are given."""
    document = read_document(path)
    document.pop("about", None)
    written, given = flat(document), {SHORT.get(key, key): value for key, value in (settings or {}).items()}
    for name, group in OPTIONS.items():  # another tuner, say: the options of the one that is written don't fit it
        if given.get(name, written.get(name)) != written.get(name):
            written = {key: value for key, value in written.items() if key == name or not key.startswith(group)}
    return make_run(settings={**written, **given})


def dataset_names() -> list[str]:
    return [*DATASETS, *(f"{form}:PATH" for form in FORMS)]
