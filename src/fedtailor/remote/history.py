"""What a site has done and got, from its own folder: runs, what left it in them, its budget, its models."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.errors import UserError
from ..use.model_file import NOTE, ModelFacts, read_facts
from . import messages
from .audit import read_lines
from .client import INVITATION, MODELS
from .policy import SitePolicy, settings_of
from .spending import Spending


@dataclass
class RunSeen:
    """One run, as far as this site knows it."""

    run: str  # its id
    name: str
    method: str = ""  # empty: the invitation is no longer here
    of: int | None = None  # rounds of the run
    first: str = ""  # when something left for it, and when last
    last: str = ""
    rounds: list[int] = field(default_factory=list)  # that this site took part in
    replies: int = 0
    bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # code → times
    model: Path | None = None
    scores: dict[str, Any] = field(default_factory=dict)  # on the site's own test pictures

    def add(self, line: Mapping[str, Any]) -> None:
        """A line of the log."""
        if (name := line.get("name")) and not self.run.startswith(name):  # by its id it is called for want of a name
            self.name = name
        self.first, self.last = self.first or line["at"], line["at"]
        self.replies, self.bytes = self.replies + 1, self.bytes + line.get("bytes", 0)
        if line.get("why"):
            self.refused[line["why"]] += 1
        elif line["what"] == "pass-reply" and line["round"] not in self.rounds:
            self.rounds.append(line["round"])

    def add_model(self, folder: Path, facts: ModelFacts) -> None:
        names = [name for name, n in facts.scores["pictures"].items() if n]
        self.model = folder
        self.scores = {
            "pictures": sum(facts.scores["pictures"].values()),
            **{model: facts.scores[model]["overall"] for model in MODELS},
            "per_class": {name: by_class(facts.scores, name) for name in names},
        }

    def row(self) -> dict[str, Any]:
        model = None if self.model is None else str(self.model)
        return {**vars(self), "rounds": sorted(self.rounds), "refused": dict(self.refused), "model": model}


def by_class(scores: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {
        "pictures": scores["pictures"][name],
        **{model: scores[model]["per_class"][name] for model in MODELS},
    }


def runs_of(home: Path) -> list[RunSeen]:
    """In the order in which they began."""
    seen: dict[str, RunSeen] = {}
    for line in read_lines(home / "state" / "audit"):
        if run := line.facts.get("run"):
            seen.setdefault(run, RunSeen(run, run[:8])).add(line.facts)
    for it in seen.values():
        add_invitation(it, home / "state" / it.run / INVITATION)
    for folder in sorted(path.parent for path in (home / "models").glob(f"*/{NOTE}")):
        begins = folder.name.rpartition("-")[2]
        for it in (it for it in seen.values() if it.run.startswith(begins)):
            it.add_model(folder, read_facts(folder))
    return list(seen.values())


def add_invitation(seen: RunSeen, file: Path) -> None:
    with suppress(OSError, UserError):  # it is gone, or of another version: the log says enough
        invitation, _ = messages.decode(file.read_bytes())
        if isinstance(invitation, messages.Invitation):
            run = settings_of(invitation)
            seen.method, seen.of = run.method.name, run.rounds + run.method.value.closing


def budget_of(home: Path, policy: SitePolicy) -> dict[str, Any]:
    """What it has released, across all runs, against what its policy allows."""
    spent, told = Spending(home / "state" / "spent.json"), {}
    for kind, limit in policy.limits.items():
        releases = spent.counts.released[kind]
        epsilon = math.inf if 0.0 in releases else spent.epsilon(kind, policy.delta)
        told[kind] = {
            "releases": sum(releases.values()),
            "without_noise": releases.get(0.0, 0),
            "epsilon": None if math.isinf(epsilon) else epsilon,  # None: no bound can be told
            "limit": limit or None,
        }
    orders = {"today": spent.orders_today(), "a_day": policy.orders_per_day or None}
    return {**told, "delta": policy.delta, "orders": orders}
