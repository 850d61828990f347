"""A run by its settings: dotted keys in, validated objects out, and one document that run.toml holds.

Later sources win: the defaults here, the method's recipe, its preset, what the user says. Every key is known and every
value checked before any work begins.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_origin

import tomli_w
import torch
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, field_validator
from pydantic.fields import FieldInfo

from ..attacks import ATTACKS
from ..attacks.base import Attack
from ..base.errors import UserError, unknown
from ..base.folders import user_path
from ..base.keys import flat
from ..clip.load import BUNDLED
from ..core import LocalTraining, Method, Rebalancer, Tuner
from ..data import FORMS, find_sites, find_source
from ..data.partitions import PARTITIONS
from ..data.partitions.base import Partition
from ..evaluation.diagnostics import DIAGNOSTICS, choose
from ..labelers import LABELERS
from ..labelers.base import Labeler
from ..methods import METHODS
from ..methods.recipe import Entry
from ..privacy import PRIVACY
from ..privacy.base import PrivacyStep
from ..rebalancers import REBALANCERS
from ..robust import ROBUST
from ..robust.base import Robust
from ..secure import SECURE
from ..secure.masked import Masked
from ..server_optimizers import AVERAGE, SERVER_OPTIMIZERS
from ..server_optimizers.base import ServerOptimizer
from ..tuners import TUNERS, tuner_names
from ..tuners.join import Join
from .extensions import check_outside, discover, look_for, name_of
from .keys import GIVEN, OPTIONS, SHORT, at, checked, full_keys, put, read_document, with_changes
from .together import check_together

# What any method may be combined with: the name that stands for nothing of the kind, and all others.
PARTS: dict[str, tuple[str, Mapping[str, type[BaseModel]]]] = {
    "labels": (GIVEN, LABELERS),
    "rebalance": ("none", REBALANCERS),
    "server": (AVERAGE, SERVER_OPTIMIZERS),
    "privacy": ("none", PRIVACY),
    "robust": ("none", ROBUST),
    "attack": ("none", ATTACKS),
    "secure": ("none", SECURE),
}

# Keys by which pictures are dealt out to clients: with one of them, sites are not the clients.
DEALT = {f"{group}.{key}" for group in ("data", "data.partition") for key in PARTITIONS["dirichlet"].model_fields}
FEW = 10  # clients: then all take part in each round, unless a fraction is given

T = TypeVar("T")


@dataclass(frozen=True)
class Chosen(Generic[T]):
    """Something by name, as the object that it stands for."""

    name: str
    value: T

    @property
    def options(self) -> dict[str, Any]:
        """Its settings; of joined tuners, a group of them for each."""
        if isinstance(self.value, Join):
            return {name: part.model_dump() for name, part in zip(self.name.split("+"), self.value.parts, strict=True)}
        return self.value.model_dump(exclude={"local"}, exclude_none=True) if isinstance(self.value, BaseModel) else {}


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Data(Strict):
    name: str = Field("drawn-lt", description="fedtailor list datasets, or folder:PATH, csv:PATH")
    root: str = Field("", description="where the files are; empty: $FEDTAILOR_DATA, or a cache folder")
    imbalance: float | None = Field(None, ge=1, allow_inf_nan=False, title="IF", description="largest ÷ smallest class")
    most: int = Field(0, ge=0, description="training pictures that a class keeps at most; 0: all")
    seed: int = Field(1, ge=0, description="of the draw that thins a long tail; not the run's seed")
    template: str = Field("", description="the zero-shot sentence, with {} for the name; empty: the dataset's own")
    preprocess: Literal["clip", "paper"] = Field("clip", description="paper: as CAPT's and FedPuReL's codes do")
    server: Annotated[float, Field(ge=0, lt=1)] | Literal["test"] = Field(
        0.0,
        description="part of the training set that the server validates on; test: the test set (a leak, for parity)",
    )
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="part of the clients' training pictures that stands in for the test set; to tune by",
    )
    calibrate: float = Field(
        0.0, ge=0, lt=1, description="part of the clients' training pictures kept out, to calibrate the tuned model by"
    )
    labelled: float | None = Field(
        None,
        gt=0,
        le=1,
        description="part of each class whose labels are known, to a labeler, or to labels=given, which leaves out the "
        "others (1: those that nobody has labelled); none: all with labels=given, or where pictures without one are "
        "among them",
    )
    draws: Literal["own", "released"] = Field(
        "own", description="released: tail and clients by the generators and the order of draws of the released codes"
    )
    broken: Literal["error", "skip"] = Field(
        "error", description="pictures that cannot be read: end the run, or read all first and go on without these"
    )
    groups: str = Field("capt", description="which classes are head, mid and tail: capt, fedpurel or fedloge")
    partition: InstanceOf[Chosen[Partition]]


class Backbone(Strict):
    name: str = Field(
        BUNDLED, description="bundled, lab-vit, lab-rn, a hub id owner/name, a folder, or a .safetensors file"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="of the frozen towers; trainables are fp32")


class Memory(Strict):
    budget_gb: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="of activations in training; more is computed again; 0: no limit"
    )


class RoundPolicy(Strict):
    """What a round does about clients that are late, gone or wrong. Clients in this process never are."""

    deadline: float = Field(3600.0, gt=0, allow_inf_nan=False, description="seconds a pass; who is later is left out")
    quorum: float = Field(1.0, gt=0, le=1, description="part of the clients that must answer, or the round is repeated")
    grace: float = Field(
        60.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds for which the absent are waited for after a quorum",
    )
    oversample: float = Field(0.0, ge=0, le=10, description="so much more are asked (0.5: half more); the first count")
    away: float = Field(
        86400.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds offline until a client is no longer drawn; 0: any",
    )
    tries: int = Field(3, ge=1, description="of a round that lacks its quorum, before the run stops")
    lost: Literal["stop", "anew"] = Field("stop", description="a client has lost its state: stop, or let it begin anew")
    updates: Literal["fp32", "fp16", "int8"] = Field("fp32", description="what clients send up, in how many bits")
    longest: float = Field(
        100.0, ge=0, allow_inf_nan=False, description="× a round's median update or statistic: no longer one; 0: any"
    )
    heaviest: float = Field(
        100.0, ge=0, allow_inf_nan=False, description="× a round's median weight: nobody counts for more; 0: no bound"
    )
    limit: float = Field(256.0, gt=0, allow_inf_nan=False, description="MB; a longer answer is not taken")


class Run(Strict):
    """Everything that decides a run's numbers."""

    rounds: int = Field(40, ge=1, title="T", description="communication rounds")
    clients: int = Field(20, ge=1, title="K")
    fraction: float = Field(
        0.4, gt=0, le=1, description=f"of the clients that take part in a round; of {FEW} or fewer all"
    )
    seed: int = Field(0, ge=0)
    engine: str = Field("local", description="how passes reach the clients")
    threads: int = Field(0, ge=0, le=4096, description="of the processor; 0: torch's choice. It decides the last bits")
    every: int = Field(10, ge=1, description="test after every so many rounds, and after the last")
    record: tuple[str, ...] = Field((), description=f"each round: some of {', '.join(DIAGNOSTICS)}; or all")
    method: InstanceOf[Chosen[Method]]
    local: LocalTraining
    tuner: InstanceOf[Chosen[Tuner]]
    labels: InstanceOf[Chosen[Labeler | None]]
    rebalance: InstanceOf[Chosen[Rebalancer | None]]
    server: InstanceOf[Chosen[ServerOptimizer | None]]
    privacy: InstanceOf[Chosen[PrivacyStep | None]]
    robust: InstanceOf[Chosen[Robust | None]]
    attack: InstanceOf[Chosen[Attack | None]]
    secure: InstanceOf[Chosen[Masked | None]]
    data: Data
    backbone: Backbone
    memory: Memory
    plan: RoundPolicy

    @field_validator("record", mode="before")
    @classmethod
    def listed(cls, given: Any) -> Any:
        """`angle,drift`, with or without brackets, is a list too."""
        if not isinstance(given, str | list | tuple):
            raise ValueError("names with commas between them, as in record=angle,drift")
        return re.findall(r"[^\s,\[\]\"']+", given) if isinstance(given, str) else given

    @property
    def cohort(self) -> int:
        """How many clients a round has."""
        return max(int(self.fraction * self.clients), 1)

    def document(self) -> dict[str, Any]:
        """All settings as nested groups of plain values; `make_run(settings=flat(document))` gives the run again."""
        return {name: plain(getattr(self, name)) for name in type(self).model_fields}

    def to_toml(self) -> str:
        return tomli_w.dumps(self.document())


GROUPS_OF_KEYS = (LocalTraining, Data, Backbone, Memory, RoundPolicy)  # and whatever is Chosen


def plain(value: Any) -> Any:
    if isinstance(value, Chosen):
        return {"name": value.name, **value.options}
    if isinstance(value, BaseModel):
        return {name: plain(v) for name in type(value).model_fields if (v := getattr(value, name)) is not None}
    return list(value) if isinstance(value, tuple) else value


def make_run(
    method: str | type[Method] | None = None, settings: Mapping[str, Any] | None = None, preset: str | None = None
) -> Run:
    """A run. `settings` are dotted keys, long or short, as the command line takes them."""
    given, method = full_keys(settings or {}), name_of(method) if isinstance(method, type) else method
    preset = given.pop("preset", preset)
    if method and given.get("method.name", method) != method:
        raise UserError(f"the method is given twice, as {method!r} and as {given['method.name']!r}")
    name, entry = find_method(given.pop("method.name", method or "capt"))
    if preset is not None:
        if str(preset) not in entry.presets:
            raise unknown(f"preset of {name}", str(preset), entry.presets, f"fedtailor show {name}")
        if other := entry.presets[str(preset)].get("method.name"):
            name, entry = find_method(other)
            preset = None
    sites = own_sites(given)
    partition = str(given.pop("data.partition.name", "site" if sites else "dirichlet"))
    chosen = str(given.get("tuner.name", entry.tuner))
    layers = [entry.settings, entry.presets.get(str(preset), {})]
    if chosen != entry.tuner:  # what a recipe sets for the method's own tuner does not fit another
        layers = [{k: v for k, v in layer.items() if not k.startswith("tuner.")} for layer in layers]
    layers += [entry.when.get((of, chosen), {}) for of in ("", str(preset or "default"))]
    layers += [{"clients": sites}] if sites else []  # whatever a recipe says: its federation is another one
    first = {"method.name": name, "tuner.name": entry.tuner, "data.partition.name": partition}
    last = {long_key(key, entry.method, partition): value for key, value in given.items()}
    document: dict[str, Any] = {}
    for layer in (first, *layers, last):
        for key, value in layer.items():
            put(document, key, value)
    clients = document.get("clients", Run.model_fields["clients"].default)
    if "fraction" not in document and isinstance(clients, int) and 1 <= clients <= FEW:
        document["fraction"] = 1.0
    return resolve(document, name, entry)


def own_sites(given: Mapping[str, Any]) -> int:
    """How many sites a user's own pictures come from, if these are to be the clients: unless another partition is
    chosen, or a key of another."""
    if given.get("data.partition.name", "site") != "site" or DEALT & given.keys():
        return 0
    if {"data.partition.name", "clients"} <= given.keys():
        return 0  # nothing is left to find out
    sites = find_sites(str(given.get("data.name", "")))
    return sites if sites > 1 else 0


def find_method(name: Any) -> tuple[str, Entry]:
    if not look_for("method", str(name)):
        discover()
        raise unknown("method", str(name), METHODS, "fedtailor list methods")
    return str(name), METHODS[str(name)]


def long_key(key: str, method: type[Method], partition: str) -> str:
    """As run.toml has it: a method has short forms of its own, and `data.alpha` means the partition's alpha."""
    own = {f"method.{short}": f"method.{full}" for short, full in method.short.items()}
    if key in own:
        return own[key]
    head, _, rest = key.partition("data.")
    ours = not head and rest not in Data.model_fields and partition in PARTITIONS
    return f"data.partition.{rest}" if ours and rest in PARTITIONS[partition].model_fields else key


def resolve(document: dict[str, Any], name: str, entry: Entry) -> Run:
    """Check every name and value, and make the objects that they stand for."""
    kinds = check_keys(document, name, entry)

    def make(group: str, **more: Any) -> Any:
        given = at(document, group)
        if isinstance(given, Mapping):
            given = {key: value for key, value in given.items() if key in kinds[group].model_fields} | more
        return checked(kinds[group], given, f"{group}.")

    def chosen(group: str, none: str = "") -> Chosen[Any]:
        return Chosen(str(at(document, group).get("name", none)), make(group) if group in kinds else None)

    if not entry.method.trains and document.get("rounds") == 0:
        del document["rounds"]  # as the run.toml of such a method has it
    local = make("local")
    source = find_source(checked(str, document["data"].get("name", "drawn-lt"), "data.name"))
    data = {"imbalance": source.imbalance, **document["data"]}
    document["data"] = {key: value for key, value in data.items() if value is not None}
    tuner = str(document["tuner"]["name"])
    parts = tuple(make(f"tuner.{part}") for part in tuner.split("+")) if "+" in tuner else ()
    made = {
        "local": local,
        "method": Chosen(name, make("method", local=local)),
        "tuner": Chosen(tuner, Join(parts=parts) if parts else make("tuner")),
        **{part: chosen(part, none) for part, (none, _) in PARTS.items()},
        "data": make("data", partition=chosen("data.partition")),
        "backbone": make("backbone"),
        "memory": make("memory"),
        "plan": make("plan"),
    }
    run = checked(Run, {**document, **made}, "")
    check_together(run, name, entry)
    # A run is resumed from wherever its user happens to be, so paths are kept whole.
    path = user_path(run.backbone.name)
    backbone = str(path.absolute()) if run.backbone.name != BUNDLED and path.exists() else run.backbone.name
    root = str(user_path(run.data.root).absolute()) if run.data.root else ""
    resolved = {
        "rounds": run.rounds if entry.method.trains else 0,
        "threads": run.threads or torch.get_num_threads(),
        "record": choose(run.record, run.method.value, given=run.labels.name == GIVEN),
        "backbone": run.backbone.model_copy(update={"name": backbone}),
        "data": run.data.model_copy(update={"name": absolute_data(run.data.name), "root": root}),
    }
    return run.model_copy(update=resolved)


def absolute_data(name: str) -> str:
    form, colon, path = name.partition(":")
    return f"{form}:{user_path(path).absolute()}" if colon and form in FORMS else name


def read_toml(path: Path, settings: Mapping[str, Any] | None = None) -> Run:
    """The run of a run.toml, with other settings where they are given."""
    document = read_document(path)
    about = document.pop("about", {})
    if str(about.get("version", "")).startswith("0.1."):
        raise UserError(f"{path} is of fedtailor 0.1, some of whose keys are gone; write its settings anew")
    check_outside(path, about.get("outside", ()))
    return make_run(settings=with_changes(document, settings or {}))


# --- which keys there are -------------------------------------------------------------------------------------------

ONLY_RELEASED = {f"method.{key}" for key in ("carry", "against", "tau", "draws", "sequential", "schedule")}


def check_keys(document: Mapping[str, Any], name: str, entry: Entry) -> dict[str, type[BaseModel]]:
    """An unknown key ends the run before it begins, with the nearest that exists, at any depth."""
    kinds = kinds_of(document, entry)
    known = {*OPTIONS, *(key for group, kind in kinds.items() for key in fields_of(kind, group))}
    groups = {key.rsplit(".", 1)[0] for key in known if "." in key}
    short = [key for key, full in SHORT.items() if full in known and key != "method"]
    short += [key.replace("data.partition.", "data.") for key in known if key.startswith("data.partition.")]
    short += [f"method.{key}" for key in entry.method.short]
    for key in flat(document):
        if key in ONLY_RELEASED - known:
            raise UserError(f"{key}: only what released codes do has it; take preset=released, or fedavg-released")
        if key not in known and key not in groups:
            raise unknown("key", key, [*known, *short], f"fedtailor show {name}")
    return kinds


def kinds_of(document: Mapping[str, Any], entry: Entry) -> dict[str, type[BaseModel]]:
    """The class that each group of keys belongs to."""
    for part in str(document["tuner"]["name"]).split("+"):
        look_for("tuner", part)
    tuners = tuner_names(str(document["tuner"]["name"]))
    kinds: dict[str, type[BaseModel]] = {"": Run, "method": entry.method, "local": LocalTraining}
    kinds |= {"tuner" if len(tuners) == 1 else f"tuner.{name}": TUNERS[name] for name in tuners}
    for part, (none, known) in PARTS.items():
        chosen = str(document.get(part, {}).get("name", none))
        if part == "labels" and chosen != none:
            look_for("labeler", chosen)
        if chosen in known:
            kinds[part] = known[chosen]
        elif chosen != none:
            raise unknown(part, chosen, [none, *known])
    partition = str(document["data"]["partition"]["name"])
    if partition not in PARTITIONS:
        raise unknown("partition", partition, PARTITIONS, "fedtailor list partitions")
    return kinds | {
        "data": Data,
        "data.partition": PARTITIONS[partition],
        "backbone": Backbone,
        "memory": Memory,
        "plan": RoundPolicy,
    }


def keys_of(run: Run) -> set[str]:
    """Every key that such a run has."""
    kinds, short = kinds_of(run.document(), METHODS[run.method.name]), run.method.value.short
    return {
        *OPTIONS,
        *(f"method.{key}" for key in short),
        *(key for group, kind in kinds.items() for key in fields_of(kind, group)),
    }


def fields_of(kind: type[BaseModel], group: str) -> dict[str, FieldInfo]:
    """The keys of a class, nested ones too, without those that are groups of their own."""
    found: dict[str, FieldInfo] = {}
    for name, field in kind.model_fields.items():
        key, its = f"{group}.{name}".removeprefix("."), field.annotation
        if isinstance(its, type) and issubclass(its, BaseModel) and its not in GROUPS_OF_KEYS:
            found |= fields_of(its, key)
        elif get_origin(its) is not Chosen and its not in GROUPS_OF_KEYS:
            found[key] = field
    return found
