"""Settings that are each right, and do not go together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..base.errors import UserError, shortened, unknown
from ..core import OWN, Cluster
from ..data.groups import GROUPS
from ..methods.recipe import Entry
from ..methods.released.relay import CarriedMomentum
from ..privacy.gaussian import Gaussian
from ..secure.masked import FEWEST
from .engines import ENGINES

if TYPE_CHECKING:
    from .run import Run


def check_together(run: Run, name: str, entry: Entry) -> None:
    """What no single setting can tell."""
    for kind, value, known in (("engine", run.engine, ENGINES), ("groups", run.data.groups, GROUPS)):
        if value not in known:
            raise unknown(kind, value, known)
    check_tuner(run, name, entry)
    template = run.data.template
    if template and ("{}" not in template or re.sub("[^{}]", "", template) != "{}"):
        raise UserError(f"data.template must hold one {{}} for the class name, got {shortened(template)}")
    if ENGINES[run.engine].remote:
        check_remote(run, name, entry)
    if issubclass(entry.method, CarriedMomentum) and run.robust.value is not None:
        raise UserError(f"clients of {name} train one after the other, so robust={run.robust.name} has none to compare")
    if isinstance(run.privacy.value, Gaussian):
        check_privacy(run, run.privacy.value, name, entry)
    if run.secure.value is not None:
        check_secure(run, name, entry)


def check_tuner(run: Run, name: str, entry: Entry) -> None:
    if entry.tuners and run.tuner.name not in entry.tuners:
        raise UserError(
            f"{name} is a fixed combination with tuner {' or '.join(entry.tuners)}, got {shortened(run.tuner.name)}; "
            "for another tuner take fedavg or fedprox"
        )
    if entry.method.trains and run.tuner.name == "none":
        raise UserError("tuner=none leaves nothing to train; choose a tuner, or take the method zeroshot")


def check_remote(run: Run, name: str, entry: Entry) -> None:
    """Clients elsewhere, who keep their pictures."""
    if OWN in entry.method.everyone(1):
        raise UserError(f"{name} gathers everyone's pictures in one place, which engine={run.engine} cannot do")
    if run.attack.value is not None:
        raise UserError(f"attack={run.attack.name} is for simulations in this process; take engine=local")
    if run.data.calibrate:
        raise UserError(f"calibrate looks at clients' pictures, which engine={run.engine} keeps to themselves")
    if run.record:
        raise UserError(f"record looks into clients, which engine={run.engine} keeps to themselves; take engine=local")


def check_privacy(run: Run, privacy: Gaussian, name: str, entry: Entry) -> None:
    if privacy.unit == "picture":
        check_pictures(run, privacy, name)
    parts = any(isinstance(scope, Cluster) for scope in entry.method.share.values())
    if privacy.against == "others" and (parts or run.robust.value is not None):
        whose = f"{name} averages in clusters" if parts else f"robust={run.robust.name} leaves some of it out"
        raise UserError(
            f"privacy.against=others counts on the noise of a whole cohort, and {whose}; take against=server"
        )


def check_pictures(run: Run, privacy: Gaussian, name: str) -> None:
    """Single pictures can be hidden where nothing is done to several at once."""
    labeler, apart = run.labels.value, "privacy.unit=picture clips the gradient of each picture by itself, and"
    if privacy.against == "others":
        raise UserError("privacy.unit=picture hides pictures from the server too; take privacy.against=server")
    if run.method.value.trains and (mixing := run.method.value.mixing):
        raise UserError(f"{apart} {name} {mixing}")
    if labeler is not None and (not labeler.by_picture or labeler.refresh):
        which = f"labels={run.labels.name}" + (" with labels.refresh" if labeler.by_picture else "")
        raise UserError(f"{apart} {which} labels one picture by others; take labels=zeroshot labels.refresh=0")
    if run.rebalance.value is not None:
        raise UserError(f"{apart} rebalance={run.rebalance.name} weighs it by all that were seen before")


def check_secure(run: Run, name: str, entry: Entry) -> None:
    """Sums of replies: whatever looks at one reply by itself cannot be."""
    labeler, secure = run.labels.value, f"secure={run.secure.name}"
    alone = f"with {secure} the server sees no reply by itself, and"
    if not ENGINES[run.engine].remote:
        raise UserError(f"{secure} keeps replies from a server, of which engine={run.engine} has none; take flower")
    if run.method.value.trains and (singly := run.method.value.singly):
        raise UserError(f"{alone} {name} {singly}")
    if labeler is not None and labeler.singly:
        raise UserError(f"{alone} labels={run.labels.name} {labeler.singly}")
    if run.robust.value is not None:
        raise UserError(f"{alone} robust={run.robust.name} compares them with each other")
    if run.plan.updates != "fp32":
        raise UserError(f"{secure} sends whole numbers of 64 bits; take plan.updates=fp32")
    if run.plan.oversample:
        raise UserError(f"{secure} waits for all who have said that they take part; take plan.oversample=0")
    if run.cohort < FEWEST:
        raise UserError(f"{secure} hides a client among {FEWEST} or more in each round; here it has {run.cohort}")
