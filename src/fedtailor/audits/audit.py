"""A run's folder, attacked: `audit/` in it has what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ..base.documents import sealed
from ..base.errors import UserError, unknown
from ..base.files import make_folder, write_atomic
from ..base.progress import ProgressFn
from ..base.workers import torch_threads
from ..core.types import OWN
from ..data.dataset import UNKNOWN
from ..runs.execute import check_same
from ..runs.folder import RunFolder
from ..settings.run import Run
from ..simulation.build import Experiment, build
from . import AUDITS
from .base import Audit, CannotAttack, Finding, Plan
from .case import Case

FOLDER, FILE = "audit", "audit.json"
OnPlan = Callable[[Mapping[str, Plan], Mapping[str, str]], None]  # what will be done, and why what will not


def silent(*_: object) -> None:
    pass


@dataclass(frozen=True)
class Audited:
    document: dict[str, Any]  # what audit.json says
    findings: Mapping[str, Finding]
    folder: Path


def audit(
    folder: str | PathLike[str],
    names: Sequence[str] = (),
    *,
    client: int | str | None = None,
    start: str = "last",
    out: str | PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: ProgressFn = silent,
    on_plan: OnPlan = silent,
) -> Audited:
    """Attack a run by some attacks or by all, at one client or at all of them; as it was left, or with its first
    parameters (start="first"). Each attack takes those of the settings that it knows."""
    chosen, into = choose(names, settings or {}), Path(folder) / FOLDER if out is None else Path(out)
    if start not in ("first", "last"):
        raise unknown("start", start, ("first", "last"))
    store, run, noted = RunFolder.reopen(Path(folder))
    try:
        refuse(run)
        with torch_threads(run.threads):
            experiment = build(run, progress)
            check_same(folder, experiment, noted)
            case = open_case(store, experiment, client, start)
            findings, left_out = attack(case, chosen, bool(names), progress, on_plan)
    finally:
        store.close()
    document = {
        "run": str(folder),
        "method": run.method.name,
        "tuner": run.tuner.name,
        "privacy": run.privacy.name,
        "start": start,
        "clients": [case.name_of(k) for k in case.who],
        "settings": {name: chosen[name].model_dump() for name in findings},
        "attacks": {name: {"table": it.table, "told": it.told, "tries": it.tries} for name, it in findings.items()},
        "left_out": left_out,
    }
    write(into, document, findings)
    return Audited(document, findings, into)


def choose(names: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Audit]:
    for name in names:
        if name not in AUDITS:
            raise unknown("attack", name, AUDITS, "fedtailor audit --list")
    kinds = {name: AUDITS[name] for name in AUDITS if name in (names or AUDITS)}
    return {
        name: kind(**{key: value for key, value in settings.items() if key in kind.model_fields})
        for name, kind in kinds.items()
    }


def refuse(run: Run) -> None:
    """Runs that there is nothing to attack in."""
    method = run.method.value
    if not method.trains:
        raise UserError(f"{run.method.name} trains nothing, so nothing leaves a client; audit a run that trains")
    if OWN in method.everyone(run.clients):
        raise UserError(f"{run.method.name} has all pictures in one place, so there is no client to attack")
    if run.tuner.name == "resnet":
        raise UserError("these attacks go through CLIP's image tower, and tuner=resnet is a network of its own")


def open_case(store: RunFolder, experiment: Experiment, client: int | str | None, start: str) -> Case:
    federation, data = experiment.federation, experiment.client_data
    everyone = [k for k in data if k != OWN and len(data[k])]
    if not everyone:
        raise UserError(f"{store.folder}: the clients' pictures are not here; an audit needs a run whose data is")
    labels = federation.dataset.train.labels
    if labels is None or (labels == UNKNOWN).any():
        raise UserError("not all training pictures have labels, so there is no truth to hold guesses against")
    names = {federation.name_of(k): k for k in everyone}
    if client is not None and str(client) not in names:
        raise unknown("client", str(client), names)
    server, clients = store.saved() if start == "last" else (experiment.job.first_server(), {})
    who = everyone if client is None else [names[str(client)]]
    return Case(experiment, experiment.job.resumed(server), clients, tuple(who))


def attack(
    case: Case, chosen: Mapping[str, Audit], named: bool, progress: ProgressFn = silent, on_plan: OnPlan = silent
) -> tuple[dict[str, Finding], dict[str, str]]:
    """What each found, and why one found nothing to attack: an error if it was asked for by name."""
    plans, left_out, findings = dict[str, Plan](), dict[str, str](), dict[str, Finding]()
    for name, it in chosen.items():
        try:
            plans[name] = it.plan(case)
        except CannotAttack as error:
            if named:
                raise
            left_out[name] = str(error)
    on_plan(plans, left_out)
    for name in plans:
        findings[name] = chosen[name](case, progress)
    return findings, left_out


def write(folder: Path, document: Mapping[str, Any], findings: Mapping[str, Finding]) -> None:
    try:
        make_folder(folder)
        for finding in findings.values():
            for name, picture in finding.figures.items():
                write_atomic(folder / name, picture)
        write_atomic(folder / FILE, sealed(document))
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; choose another --out") from error
