"""What leaves a client, attacked: tuners beside each other, without privacy, with clients hidden, with pictures hidden.

Each tuner is trained for some rounds; then clients are asked once more, with the same parameters, in three ways. The
pictures that are looked for are the same ones throughout. `pictures.png` beside the rows has them side by side.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from fedtailor.audits.audit import attack
from fedtailor.audits.base import Audit
from fedtailor.audits.case import Case
from fedtailor.audits.drawing import side_by_side
from fedtailor.audits.features import Features
from fedtailor.audits.labels import Labels
from fedtailor.audits.membership import OWN, SENT, Membership
from fedtailor.audits.pictures import Pictures, summary
from fedtailor.base.workers import torch_threads
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import build
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import rounds

from .options import Options
from .rows import Row
from .show import note


class Subject(NamedTuple):
    method: str
    settings: dict[str, Any]


TUNERS = ("head", "adapter", "lora", "visual_prompt", "text_prompt")
FEDAVG = {tuner: Subject("fedavg", {"tuner": tuner}) for tuner in TUNERS}
SUBJECTS = {**FEDAVG, "capt": Subject("capt", {"method.mask": "sample"}), "fedpurel": Subject("fedpurel", {})}
HIDDEN = {
    "nothing": {},
    "clients": {"privacy.clip": 0.01, "privacy.noise": 5.37},  # ε = 8 against the server, as in docs/privacy.md
    "pictures": {"privacy.unit": "picture", "privacy.clip": 5, "privacy.noise": 1.39},  # ε = 8 there
}
COMMON: dict[str, Any] = {"lr": 0.01, "every": 1000, "threads": 1}
CLIENTS = 3  # that are asked


class Small(NamedTuple):
    rounds: int
    steps: int
    tries: int


def run(options: Options) -> list[Row]:
    size = Small(1, 2, 1) if options.quick else Small(10, 150, 2)
    cases = options.cases or (("text_prompt",) if options.quick else SUBJECTS)
    subjects = {name: subject for name, subject in SUBJECTS.items() if name in cases}
    rows, found = list[Row](), dict[str, list[Tensor]]()
    with torch_threads(options.threads):
        for name, subject in subjects.items():
            case = trained(subject, size)
            for what, privacy in HIDDEN.items():
                if subject.method == "fedpurel" and what == "pictures":  # refused: it projects gradients of batches
                    continue
                note(f"attacks: {name}, {what} hidden")
                asked = private(case, subject, privacy)
                more, originals, guesses = attacked(asked, size)
                rows.append(Row("attacks", name, f"{what} hidden", more=more))
                found.setdefault("original", []).extend(originals if name == next(iter(subjects)) else [])
                found.setdefault(name, []).extend(guesses)
            rows.append(Row("attacks", name, "four pictures in the step", more=looked(case, size, 1, 4)[0]))
    heads = [head for what in HIDDEN for head in (f"{what} hidden", *[""] * (size.tries - 1))]
    columns = [[row[i] for row in found.values() if i < len(row)] for i in range(len(found["original"]))]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.with_name("pictures.png").write_bytes(side_by_side(list(found), columns, heads))
    return rows


def trained(subject: Subject, size: Small) -> Case:
    made = make_run(subject.method, {**COMMON, **subject.settings, "rounds": size.rounds})
    experiment = build(made)
    engine, server = make_engine(experiment), experiment.job.first_server()
    for finished in rounds(experiment, engine, server):
        server = finished.server
    return Case(experiment, server, engine.clients, tuple(range(CLIENTS)))


def private(case: Case, subject: Subject, privacy: dict[str, Any]) -> Case:
    """The same run, whose clients hide something from here on."""
    hidden = {"privacy": "gaussian", "privacy.generator": "seeded", **privacy} if privacy else {}
    made = make_run(subject.method, {**COMMON, **subject.settings, **hidden})
    job = replace(case.job, privacy=made.privacy.value)
    return replace(case, experiment=replace(case.experiment, job=job))


def attacked(case: Case, size: Small) -> tuple[dict[str, Any], list[Tensor], list[Tensor]]:
    more, originals, guesses = looked(case, size, size.tries, 1)
    others: dict[str, Audit] = {"features": Features(tries=size.tries), "labels": Labels(), "membership": Membership()}
    findings, _ = attack(case, others, named=False)
    more["features"] = findings["features"].table[0]["cosine"] if "features" in findings else ""
    labels = {row["guess"]: row for row in findings["labels"].table}
    for key, guess in (("classes", "from the update"), ("counts", "from counts"), ("as in all", "as in all pictures")):
        more[key] = labels[guess]["off by"] if guess in labels else ""
    more["top class"] = labels["from the update"]["most frequent class right"]
    auc = {(row["model"], row["by"]): row["auc"] for row in findings["membership"].tries}
    for key, whose in (("AUC, sent", SENT), ("AUC, own", OWN)):
        more[key] = max((value for (model, _), value in auc.items() if model == whose), default="")
    return more, originals, guesses


def looked(case: Case, size: Small, tries: int, pictures: int) -> tuple[dict[str, Any], list[Tensor], list[Tensor]]:
    """For the pictures of one step."""
    how, rows = Pictures(steps=size.steps, tries=tries, pictures=pictures), list[dict[str, Any]]()
    originals, guesses = list[Tensor](), list[Tensor]()
    for search, guess, match in how.searches(case, lambda what, done, total: None):
        rows += [{**row, "match": match} for row in search.judged(guess)]
        originals += [column[0] for column in search.beside(guess)]
        guesses += list(guess)
    recovered, other, start = summary(rows)
    first, compared = sum(not row["nearer"] for row in rows if row["others"]), sum(bool(row["others"]) for row in rows)
    more = {
        "agreement": sum(row["agreement"] for row in rows) / len(rows),
        "match": sum(row["match"] for row in rows) / len(rows),
        "dB": recovered["psnr"],
        "start dB": start["psnr"],
    }
    more |= {"SSIM": recovered["ssim"], "cosine": recovered["cosine"], "another's": other["cosine"]}
    return {**more, "found again": f"{first} of {compared}"}, originals, guesses
