"""A run for pictures that were looked at: which method, labeler, tuner, CLIP and privacy, and why.

Reasons rest on what was found and on what was measured: docs/results.md, docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ..base.errors import UserError
from ..clip.load import BUNDLED, LAB
from ..data.survey import Survey
from ..settings.keys import GIVEN, full_keys
from ..settings.run import DEALT, Run, long_key, make_run
from ..simulation.build import find_device

PHOTOGRAPHS = "openai/clip-vit-base-patch16"
HUB = "pip install -c constraints.txt -e '.[hub]'"
SAID = "as you said"
ENOUGH = 300  # labelled training pictures, of which a tenth can be spared to calibrate by
LABELLED = 10  # pictures a class, the fewest that were tried (docs/results.md, labels on some pictures)


@dataclass(frozen=True)
class Machine:
    """What decides how long a run takes, and whether it can begin."""

    device: str
    hub: bool  # whether what fetches from the hub is installed
    here: bool  # whether the CLIP for photographs has been fetched already


def this_machine() -> Machine:
    hub = find_spec("huggingface_hub") is not None
    return Machine(find_device("auto"), hub, hub and fetched(PHOTOGRAPHS))


def fetched(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "model.safetensors"), str)


@dataclass(frozen=True)
class Choice:
    what: str  # method, labels, tuner, backbone or privacy
    value: str
    why: str  # one sentence


@dataclass(frozen=True)
class Proposal:
    survey: Survey
    run: Run
    choices: tuple[Choice, ...]
    said: tuple[str, ...] = ()  # the user's own settings, by their keys in the run's document
    lacking: str = ""  # the command that has to come before it


def propose(found: Survey, machine: Machine, said: Mapping[str, Any] | None = None) -> Proposal:
    """What the user has said is taken as it is."""
    given = full_keys(said or {})
    if "data.name" in given:
        raise UserError("data= is given beside what was looked at; give folders alone, or take fedtailor run")
    if "preset" in given:
        raise UserError("preset= sets more than the file would show; take fedtailor run METHOD preset=…")
    backbone, why_backbone = backbone_for(found, machine)
    small = given.get("backbone.name", backbone) in (BUNDLED, *LAB)
    method, why_method = method_for(found, quick=small or machine.device != "cpu")
    labels, why_labels = labels_for(found, given.get("method.name", method))
    settings = {"method.name": method, "data.name": found.name, "backbone.name": backbone, **habits(found), **given}
    settings.setdefault("data.template", found.dataset.template)  # which is written down, so that it can be changed
    if found.unlabelled:
        settings.setdefault("labels.name", labels)
        if labels == GIVEN == settings["labels.name"]:
            settings.setdefault("data.labelled", 1.0)
    if DEALT & given.keys():  # another way to deal pictures out
        proposed = {"clients", "data.partition.name"} - given.keys()
        settings = {key: value for key, value in settings.items() if key not in proposed}
    run = make_run(settings=settings)
    chosen = {
        "method": (run.method.name, why_method),
        "labels": (run.labels.name, why_labels if run.labels.name == labels else comes_with(run)),
        "tuner": (run.tuner.name, tuner_why(run)),
        "backbone": (run.backbone.name, why_backbone),
        "privacy": (run.privacy.name, privacy_why(run)),
    }
    choices = (Choice(it, value, SAID if f"{it}.name" in given else why) for it, (value, why) in chosen.items())
    fetch = HUB if run.backbone.name == PHOTOGRAPHS and not machine.hub else ""
    return Proposal(found, run, tuple(choices), said_keys(run, given), fetch)


def said_keys(run: Run, given: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(long_key(key, type(run.method.value), run.data.partition.name) for key in given)


def habits(found: Survey) -> dict[str, Any]:
    """What else a first run on one's own pictures has otherwise than the default run."""
    if not found.gathered:
        return {}
    made: dict[str, Any] = {"rounds": 20}  # as many as in docs/results.md
    made |= {"clients": max(len(found.sites), 1), "data.partition.name": "site" if found.sites else "iid"}
    if len(found.dataset.train) - found.unlabelled >= ENOUGH:
        made["data.calibrate"] = 0.1
    if found.unreadable:
        made["data.broken"] = "skip"
    return made


def method_for(found: Survey, quick: bool) -> tuple[str, str]:
    """`quick`: the towers may run in training, since CLIP is small or there is a GPU."""
    if not found.gathered:
        return "capt", "the default run, as fedtailor run alone would do it: prompts for long tails"
    if found.counts is None:
        if not quick:
            return "promptfl", (
                "no labels: one context for all sentences, learned from pseudo-labels; FedCoPL gained more in our lab "
                "(docs/results.md), but takes 13 CPU seconds for 32 pictures on ViT-B/16, and this 0.4"
            )
        return "fedcopl", (
            "no labels: made for that, and in our lab the clients' own models gained 13 points on zero-shot CLIP "
            "(docs/results.md); its one model for all is worth little, so ask the clients' own"
        )
    if len(found.sites) < 2:
        return "tailor", (
            "one place only, so nothing is federated: a row for each class is trained, which begins as its sentence, "
            "on features that are computed once"
        )
    rare = (
        "; rare classes may lose, and fedpurel with tuner=adapter was better for these at clients" if found.tail else ""
    )
    return "tailor", (
        "the best of our lab overall, for all sites together and for each alone, and quick, since features are "
        "computed once; it is our own, and was designed on those very pictures, so expect less (docs/results.md)"
        f"{rare}"
    )


def labels_for(found: Survey, method: str) -> tuple[str, str]:
    train = found.dataset.train
    if not found.unlabelled:
        return GIVEN, f"all {len(train)} training pictures have a label"
    facts = f"{found.unlabelled} of {len(train)} training pictures have no label"
    labelled = len(train) - found.unlabelled
    if method == "tailor" and found.labelled_everywhere and labelled >= LABELLED * len(found.dataset.classes):
        return GIVEN, (
            f"{facts} and are left out (data.labelled=1): in our lab tailor did better with the labelled ones alone, "
            "even a hundredth of all, than with CoPL's labels beside them (docs/results.md)"
        )
    if found.counts is not None:
        return "copl", (f"{facts}; CoPL labels those of them that CLIP is sure of, and the others keep their own")
    return "copl", (
        "no training picture has a label; CoPL labels those that CLIP is sure of, 38 to 44% of them in our lab, 82 to "
        "89% of these rightly (docs/results.md)"
    )


def tuner_why(run: Run) -> str:
    if run.tuner.name == "head":
        return "a row for each class; neither of CLIP's towers runs in training"
    return comes_with(run)


def comes_with(run: Run) -> str:
    return f"what {run.method.name} comes with (fedtailor show {run.method.name})"


def backbone_for(found: Survey, machine: Machine) -> tuple[str, str]:
    if found.figures:
        return BUNDLED, "the classes are those of the drawn figures, which the bundled CLIP knows"
    need = "is here already" if machine.here else "is downloaded once, by the first run"
    if not machine.hub:
        need = f"needs {HUB}, and is downloaded once"
    return PHOTOGRAPHS, (
        f"the bundled CLIP knows drawn figures only, and this one photographs; it {need}; a folder of this machine "
        "will do as well (backbone=PATH)"
    )


def privacy_why(run: Run) -> str:
    if run.clients == 1:
        return "there is one place, and nothing leaves it"
    learned = "pictures never leave a site, what was learned from them does in every round it takes part in"
    if run.privacy.value is not None:
        return f"{learned}, clipped and blurred"
    return f"{learned}, as it is; privacy=gaussian would blur it, which among few sites costs most of what is gained"
