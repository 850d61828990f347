"""A proposal as a TOML file for `fedtailor run`, with a word on every line that one may want to change."""

from __future__ import annotations

import shlex
import textwrap
from typing import Any

import tomli_w

from ..base.keys import flat
from ..data.check import in_words
from ..data.survey import Survey
from ..settings.run import FEW
from .proposal import Proposal

WIDTH = 110
COMMENT = 30  # column

# What a practitioner may want to change, in the order of the file, and what it does.
WORDS = {
    "rounds": "more may be better, and take longer; a finished run goes on with --resume RUN rounds=N",
    "every": "test after every so many rounds, and after the last",
    "seed": "another number, another shuffle",
    "clients": "who trains: sites, where folders or a table name some; else as many as pictures are dealt out to",
    "fraction": f"part of the clients that take part in a round; of {FEW} or fewer all",
    "method.name": "fedtailor list methods",
    "labels.name": "given: as the data has them; fedtailor list labelers",
    "tuner.name": "what is trained of CLIP (fedtailor list tuners); with another method leave it out",
    "local.lr": "the learning rate: the first thing to try others of; with another method leave it out",
    "local.epochs": "passes through a client's pictures in a round",
    "local.batch": "pictures in a step",
    "data.name": "folder:PATH or csv:PATH",
    "data.template": "the sentence that CLIP begins with; say what your pictures are: 'an X-ray of {}.'",
    "data.labelled": "1: pictures without a label are left out; with labels.name = 'copl' take this line out",
    "data.calibrate": "part of the training pictures kept out, so that predict --unsure can tell; 0: none",
    "data.broken": "pictures that cannot be read: skip goes on without them, error ends the run",
    "data.partition.name": "site: a site is a client; iid: dealt out at random; fedtailor list partitions",
    "backbone.name": "a hub id, a folder, or a .safetensors file",
    "backbone.device": "auto, cpu, cuda or mps",
    "privacy.name": "what is done to an update before it leaves a site; fedtailor list privacy",
}
OTHERS = {
    "method": "Others: promptfl, one learned context, is the simplest; capt, prompts for long tails, is slow on a CPU; "
    "fedpurel with tuner adapter trains each site's own part at the end.",
}


def to_toml(proposal: Proposal, command: str) -> str:
    """`command` runs the file."""
    values = flat(proposal.run.document())
    shown = [key for key in WORDS if values.get(key) is not None and (key != "fraction" or values["clients"] > FEW)]
    keys = [*shown, *(key for key in proposal.said if key not in shown and key in values)]
    groups: dict[str, list[str]] = {"": []}
    for key in keys:
        group, _, name = key.rpartition(".")
        groups.setdefault(group, []).append(line(name, values[key], WORDS.get(key, "as you said")))
    why = {choice.what: choice.why for choice in proposal.choices}
    parts = [head(proposal, command), "\n".join(groups.pop(""))]
    for group, lines in groups.items():
        said = [f"{why[group][0].upper()}{why[group][1:]}."] if group in why else []
        said += [OTHERS[group]] if group in OTHERS else []
        parts.append("\n".join([f"[{group}]", *(comment(text) for text in said), *lines]))
    return "\n\n".join(parts) + "\n"


def head(proposal: Proposal, command: str) -> str:
    lines = [
        "# What fedtailor start proposes. Change what you like; what is not here has its default (fedtailor show "
        f"{proposal.run.method.name}).",
        f"#     {command}",
        f"#     {command} rounds=5         with a change for once",
        *(comment(text) for text in found(proposal.survey)),
    ]
    return "\n".join(lines)


def found(survey: Survey) -> list[str]:
    """What was seen, a sentence each."""
    dataset, counts, sites = survey.dataset, survey.counts, survey.sites
    names = ", ".join(dataset.classes[:6]) + (", …" if len(dataset.classes) > 6 else "")
    lacking = "" if counts is None else f", {survey.unlabelled} of them without a label,"
    labels = ", without labels," if counts is None else lacking if survey.unlabelled else ""
    lines = [
        f"Found: {len(dataset.train)} pictures to train on{labels} and {len(dataset.test)} to test on, of "
        f"{len(dataset.classes)} classes ({names})."
    ]
    if sites:
        lines.append(f"Sites: {', '.join(f'{name} ({n})' for name, n in sites.items())}.")
    if counts is not None and survey.imbalance is not None:
        tail = "a long tail" if survey.tail else "no long tail"
        each = f"{counts.min()} to {counts.max()}" if survey.imbalance > 1 else f"{counts.max()}"
        lines.append(f"Classes have {each}{' labelled' if survey.unlabelled else ''} training pictures: {tail}.")
    if survey.checked and survey.checked.sides:
        lines.append(f"The pictures' shorter sides have {in_words(survey.checked.sides)}.")
    gathered, checked = survey.gathered, survey.checked
    notes = [*(gathered.notes if gathered else ()), *dataset.notes[1 if sites else 0 :]]  # the first tells of sites
    lines += [f"{note[0].upper()}{note[1:]}." for note in notes]
    for title, wrong in (("Likely wrong", True), ("Worth knowing", False)):
        if some := [f"{it.what} ({it.count})" for it in (checked.findings if checked else []) if it.wrong is wrong]:
            more = shlex.join(["fedtailor", "data", "check", survey.name])
            lines.append(f"{title}: {'; '.join(some)}. More: {more}")
    return lines


def comment(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def line(name: str, value: Any, words: str) -> str:
    written = tomli_w.dumps({name: value}).strip()
    return f"{written:<{COMMENT - 2}}  # {words}"
