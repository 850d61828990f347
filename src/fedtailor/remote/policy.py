"""What a site lets a server ask of it: `policy.toml`, the site's own, checked at its start and never sent by a server.

`Permission` asks it: once for each message, before anything is loaded, trained or answered.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from ..base.errors import UserError, shortened, unknown
from ..base.keys import flat
from ..client.job import Job
from ..clip.load import BUNDLED
from ..core.types import Reply
from ..data.dataset import UNKNOWN, Dataset, Split, histogram
from ..labelers import LABELERS
from ..methods import METHODS
from ..privacy.base import PrivacyStep
from ..privacy.gaussian import Gaussian
from ..privacy.ledger import KINDS, kinds_of, may_release, of_releases
from ..secure.masked import FEWEST
from ..settings.extensions import look_for
from ..settings.keys import GIVEN, checked
from ..settings.run import Run, make_run
from ..tuners import TUNERS
from .limits import check_limits
from .messages import AnyPassRequest, EvaluateRequest, Invitation, ModelRequest, Request
from .refusal import RefusalCode, Refused
from .spending import Spending

WORDS: dict[str, tuple[str, Mapping[str, object]]] = {
    "methods": ("method", METHODS),
    "tuners": ("tuner", TUNERS),
    "labelers": ("labeler", LABELERS),
}
ANY: Literal["any"] = "any"
Names = Annotated[tuple[str, ...], Field(strict=False)] | Literal["any"]
Most = Annotated[int, Field(ge=0)]  # 0: no bound

# Those whose replies hold parameters, and at most counts beside them. Others tell more of single pictures: CReFF sends
# gradients of each class, RUCR sums of features of each class, what released codes do (…-released) momenta.
METHODS_BY_DEFAULT = (
    "capt", "fedavg", "fedcopl", "fedotp", "fedpgp", "fedprox", "fedpurel", "fedtpg", "kgcoop", "local", "maple",
    "pfedprompt", "promptfl", "promptfolio", "promptprox", "scaffold", "tailor",
)  # fmt: skip
# Prompts, which stand beside the pictures. The others have a layer that pictures, or their features, go through (head,
# adapter, meta_prompt, lora, resnet): its update is a weighted sum of what went in, and by choosing parameters a server
# chooses the weights, until the sum has one term.
TUNERS_BY_DEFAULT = ("class_prompt", "coupled", "prompt_generator", "text_prompt", "visual_prompt")


class SitePolicy(BaseModel):
    """One site's; `flower/templates/client/policy.toml` says what each key is for, with these defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    methods: Names = METHODS_BY_DEFAULT
    tuners: Names = TUNERS_BY_DEFAULT
    labelers: Names = ("copl", "cpl", "fpl", "zeroshot")
    tests: bool = True
    models: bool = True

    pictures: Most = 5
    pictures_per_class: Most = 1

    rounds: Most = 500
    orders_per_run: Most = 5000
    orders_per_day: Most = 5000
    minutes: Most = 120

    threads: Most = 0
    megabytes_in: Annotated[int, Field(ge=1)] = 256
    megabytes_out: Annotated[int, Field(ge=1)] = 256

    privacy: Literal["none", "gaussian"] = "none"
    noise: Annotated[float, Field(ge=0)] = 0.0
    counts_noise: Annotated[float, Field(ge=0)] = 0.0
    epsilon: Annotated[float, Field(ge=0)] = 0.0
    counts_epsilon: Annotated[float, Field(ge=0)] = 0.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    secure: Literal["none", "required"] = "none"
    together: Annotated[int, Field(ge=FEWEST)] = FEWEST
    peers: Annotated[tuple[str, ...], Field(strict=False)] = ()

    weights: Names = ANY
    hub: dict[str, str] = {}

    @field_validator("methods", "tuners", "labelers")
    @classmethod
    def known(cls, names: Names, info: ValidationInfo) -> Names:
        key = str(info.field_name)
        word, there = WORDS[key]
        for name in () if names == ANY else names:
            if not look_for(word, name):
                raise unknown(word, name, there, f"fedtailor list {key}")
        return names

    @field_validator("weights")
    @classmethod
    def hashes(cls, names: Names) -> Names:
        for name in () if names == ANY else names:
            if not re.fullmatch(r"[0-9a-f]{12,64}", name):
                raise ValueError('hashes of weights, or at least their first 12 digits, or "any"')
        return names

    @field_validator("hub")
    @classmethod
    def pinned(cls, hub: Mapping[str, str]) -> Mapping[str, str]:
        for name, revision in hub.items():
            if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) or not re.fullmatch(r"[0-9a-f]{40}", revision):
                raise ValueError('"owner/name" = "the 40 hexadecimal digits of a commit"')
        return hub

    @field_validator("peers")
    @classmethod
    def in_openssh(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        for key in keys:
            public_key(key)
        return keys

    @model_validator(mode="after")
    def counted(self) -> Self:
        asked = [name for name in ("noise", "counts_noise", "epsilon", "counts_epsilon") if getattr(self, name)]
        if asked and self.privacy == "none":
            raise ValueError(f'{asked[0]} is of privacy = "gaussian"')
        return self

    @property
    def limits(self) -> dict[str, float]:
        return {"updates": self.epsilon, "counts": self.counts_epsilon}

    @property
    def least(self) -> dict[str, float]:
        return {"updates": self.noise, "counts": self.counts_noise}

    def fit(self, dataset: Dataset) -> Dataset:
        """The site's pictures without those of rare classes, which are then neither trained nor tested on."""
        train, test = (
            without_rare(it, len(dataset.classes), self.pictures_per_class) for it in (dataset.train, dataset.test)
        )
        if len(train) < self.pictures:
            left = f", {len(dataset.train)} with those of rare classes" if len(train) < len(dataset.train) else ""
            raise Refused("policy-pictures", f"{len(train)} pictures to train on{left}; pictures={self.pictures}")
        return replace(dataset, train=train, test=test)


# What a simulation's clients are asked is asked by whoever asks it of them.
ANYTHING = SitePolicy(
    methods=ANY, tuners=ANY, labelers=ANY, pictures=0, pictures_per_class=0, rounds=0, orders_per_run=0,
    orders_per_day=0, minutes=0, megabytes_in=4096, megabytes_out=4096,
)  # fmt: skip


def read_policy(path: Path) -> SitePolicy:
    try:
        policy = checked(SitePolicy, tomllib.loads(path.read_text(encoding="utf-8")), "")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable policy: {error}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if any(policy.limits.values()):
        of_releases(1.0, 1, policy.delta)  # what counts must be installed
    return policy


def public_key(line: str) -> EllipticCurvePublicKey:
    """A line of a `client.pub`."""
    try:
        key = load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError(f"the line in a site's client.pub, ecdsa-sha2-nistp384 …; got {shortened(line)}")
    return key


def without_rare(split: Split, classes: int, least: int) -> Split:
    if split.labels is None:
        return split
    many = histogram(split.labels, classes) >= least
    return split.subset(np.flatnonzero((split.labels == UNKNOWN) | many[split.labels]))


def settings_of(invitation: Invitation) -> Run:
    """A run's settings as a site carries them out: pictures and CLIP are its own, whatever the server says of them."""
    given = flat(tomllib.loads(invitation.settings))
    own = {"data.name": "drawn", "data.root": "", "data.template": invitation.template, "backbone.name": BUNDLED}
    run = make_run(settings={**given, **own})
    check_limits(run.document())
    if run.attack.value is not None:
        raise UserError(f"attack={run.attack.name} is for simulations")
    return run


def backbone_of(invitation: Invitation) -> str:
    """What the server calls its CLIP. Only a name: no path of a server's is ever looked for here."""
    return str(flat(tomllib.loads(invitation.settings)).get("backbone.name", BUNDLED))


def noise_of(step: PrivacyStep | None, cohort: int) -> dict[str, float]:
    """How much noise is in each reply of a single client, by kind and in units of the longest update: of what a server
    cannot take away again. With pictures as the unit no update is bounded, and a client as a whole is not hidden."""
    if not isinstance(step, Gaussian) or step.generator != "secret" or step.unit != "client":
        return dict.fromkeys(KINDS, 0.0)
    share = 1.0 if step.against == "server" else 1 / math.sqrt(cohort)
    return {"updates": step.noise * share, "counts": step.counts_noise * share}


@dataclass
class Permission:
    policy: SitePolicy
    spent: Spending
    seen: dict[tuple[str, str], set[str]] = field(default_factory=dict)  # run and pass → kinds that it has released

    def to_join(self, invitation: Invitation) -> Run:
        """The run's settings, if this site may take part in it."""
        try:
            run = settings_of(invitation)
        except (UserError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise Refused("settings", f"the run's settings: {error}") from error
        policy = self.policy
        self.allow("policy-method", "methods", [run.method.name])
        self.allow("policy-tuner", "tuners", run.tuner.name.split("+"))
        self.allow("policy-labeler", "labelers", [run.labels.name] if run.labels.name != GIVEN else [])
        if policy.weights != ANY and not any(invitation.weights.startswith(known) for known in policy.weights):
            raise Refused("weights", f"CLIP with the hash {invitation.weights[:64]}; weights={list(policy.weights)}")
        if policy.rounds and run.rounds > policy.rounds:
            raise Refused("policy-rounds", f"{run.rounds} rounds; rounds={policy.rounds}")
        if policy.secure == "required" and run.secure.value is None:
            raise Refused("policy-secure", 'secure=none; secure = "required"')
        self.enough_noise(run)
        self.count(invitation.run)
        cores = os.cpu_count() or 1
        return run.model_copy(update={"threads": min(run.threads, policy.threads or cores, cores)})

    def to_do(self, request: Request, job: Job) -> None:
        """A pass or a test of a run that this site takes part in, or the model that it has come to."""
        if isinstance(request, EvaluateRequest) and not self.policy.tests:
            raise Refused("policy-tests", "a test; tests=false")
        if isinstance(request, ModelRequest) and not self.policy.models:
            raise Refused("policy-models", "a model to keep; models=false")
        if isinstance(request, AnyPassRequest):
            if request.round >= (rounds := job.rounds + job.method.closing):
                raise Refused("beyond", f"round {request.round + 1} of a run of {rounds}")
            try:
                job.find_pass(request.pass_name)
            except UserError as error:
                raise Refused("beyond", str(error)) from error
            forms = job.statistics(request.pass_name)
            self.affords(self.seen.get((request.run, request.pass_name), may_release(forms)), job)
        self.count(request.run)

    def released(self, request: AnyPassRequest, reply: Reply, job: Job) -> None:
        """To be counted before the reply leaves."""
        kinds = kinds_of(reply, job.statistics(request.pass_name))
        self.seen[request.run, request.pass_name] = kinds
        self.affords(kinds, job)
        self.spent.release(kinds, noise_of(job.privacy, job.cohort))

    def allow(self, why: RefusalCode, key: str, names: Iterable[str]) -> None:
        allowed = getattr(self.policy, key)
        if strangers := [name for name in names if allowed != ANY and name not in allowed]:
            raise Refused(why, f"{key} of this site's policy are {', '.join(allowed)}; this run has {strangers[0]!r}")

    def enough_noise(self, run: Run) -> None:
        if self.policy.privacy == "none":
            return
        for kind, noise in noise_of(run.privacy.value, run.cohort).items():
            if (least := self.policy.least[kind]) > noise or not noise:
                told = f"{noise:g} × the longest update is the noise in this site's own {kind}"
                raise Refused("policy-privacy", f"privacy={run.privacy.name}: {told}; {least:g} is asked for")

    def affords(self, kinds: Iterable[str], job: Job) -> None:
        """Whether these may be released once more."""
        noise, delta = noise_of(job.privacy, job.cohort), self.policy.delta
        for kind in sorted(kinds):
            if limit := self.policy.limits[kind]:
                now, then = self.spent.epsilon(kind, delta), self.spent.epsilon(kind, delta, noise[kind])
                if then > limit:
                    raise Refused("policy-budget", f"{kind}: ε is {now:.3g}, would be {then:.3g}; {limit:g} is allowed")

    def count(self, run: str) -> None:
        """One order more."""
        of_run, today, policy = self.spent.orders_of(run), self.spent.orders_today(), self.policy
        for key, done, most in (
            ("orders_per_run", of_run, policy.orders_per_run),
            ("orders_per_day", today, policy.orders_per_day),
        ):
            if most and done >= most:
                raise Refused("policy-orders", f"{done} orders; {key}={most}")
        self.spent.order(run)
