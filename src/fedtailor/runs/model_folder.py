"""What a finished run has tuned, in a folder that stands alone (use/model_file.py says what is in it): the run's own,
and that of each remote site."""

import hashlib
import platform
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save

from ..base.documents import sealed
from ..base.files import make_folder, move_folder, write_atomic
from ..base.version import __version__
from ..client.job import ClientState
from ..core.method import Method
from ..core.types import Params, Server
from ..evaluation.calibration import calibrate_personal, calibrate_shared
from ..evaluation.testing import (
    mean_local,
    personal_theta,
    score_client,
    score_shared,
    score_zero_shot,
    shared_logits,
    shared_theta,
)
from ..report.model_card import card
from ..settings.run import Run, plain
from ..simulation.build import Experiment
from ..use.model_file import (
    CARD,
    NOTE,
    SHARED,
    BackboneFacts,
    Calibrations,
    ClientFacts,
    ModelFacts,
    Preprocessing,
)

ELSEWHERE = "clients were in other processes, and what they keep never left them: only the shared model is here"
OTHERS_ELSEWHERE = "this is one site's folder: the other sites' own models never left them"
NONE_SHARED = "clients of this method share no model, each has only its own"
HELD = {
    "calibrate": "fitted to {n} training pictures that were kept out of training (calibrate={part:g})",
    "validation": "fitted to {n} training pictures that were kept out of training, and that the scores are of too "
    "(data.validation={part:g})",
}
UNCALIBRATED = (
    "not calibrated: no training pictures were kept out (calibrate=0.1 would), so that probabilities are as training "
    "left them"
)
AT_A_SITE = "not calibrated: a site keeps no pictures out of training"
BY_CLIENTS = "not calibrated: clients were in other processes, and so were all pictures that were kept out of training"
OWN_NAME = "own"  # what a site's folder calls the site's own model


def save_site_model(experiment: Experiment, to: Path, server: Server, client: ClientState) -> dict[str, Any]:
    """One site's, whose experiment has a single client, number 0. Returns how it does on the site's own test pictures,
    beside CLIP as it is."""
    job, tests, federation = experiment.job, experiment.tests, experiment.federation
    found = {
        "zero_shot": score_zero_shot(job, tests)[0],
        "global": score_shared(job, server, tests),
        "personal": score_client(job, server, 0, client, tests),
    }
    scores = {name: score.row(federation.class_names) for name, score in found.items()}
    counts = np.bincount(tests.labels, minlength=len(federation.class_names))
    scores["pictures"] = dict(zip(federation.class_names, counts.tolist(), strict=True))
    here = replace(experiment, federation=replace(federation, names=(OWN_NAME,)))
    save_model(to, here, server, {0: client}, scores, site=True)
    return scores


def save_model(
    to: Path,
    experiment: Experiment,
    server: Server,
    clients: Mapping[int, ClientState] | None,  # None: they are elsewhere
    scores: Mapping[str, Any],
    site: bool = False,  # whether this is one site's, and the other clients are elsewhere
) -> None:
    """Write a model folder, whole or not at all; not at all where clients share nothing, and are elsewhere."""
    job = experiment.job
    sizes = {k: len(data) for k, data in experiment.client_data.items()}
    lent = mean_local(clients, sizes) if clients is not None and job.method.lent and not site else None
    has_shared = shared_logits(job, server, lent) is not None
    if not has_shared and clients is None:
        return
    part = to.with_name(f"{to.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a run that was killed here
    make_folder(part / "clients")
    shared = shared_theta(job, server, lent)
    files = {SHARED: write(part / SHARED, shared)}
    known = () if clients is None else tuple(keep_clients(part, experiment, server, clients, shared, files))
    own = {k for k, client in enumerate(known) if client.own}
    fitted = Calibrations(why=AT_A_SITE) if site else calibrations(experiment, server, clients, lent, own)
    run, transform = experiment.run, experiment.transform
    facts = ModelFacts(
        versions={"fedtailor": __version__, "torch": torch.__version__, "python": platform.python_version()},
        classes=experiment.federation.dataset.classes,
        template=run.data.template or experiment.federation.dataset.template,
        method=plain(run.method),
        tuner=plain(run.tuner),
        local=plain(run.local),
        seed=run.seed,
        rounds=run.rounds,
        backbone=BackboneFacts(name=run.backbone.name, digest=experiment.weights, precision=run.backbone.precision),
        preprocessing=Preprocessing(
            size=transform.size, mean=transform.mean, std=transform.std, resize=transform.resize
        ),
        groups={name: tuple(members.tolist()) for name, members in experiment.groups.items()},
        has_shared=has_shared,
        without=lacking(has_shared, clients is not None, site),
        site=site,
        clients=known,
        calibration=fitted,
        trained_on=trained_on(experiment, clients is not None, site),
        scores=dict(scores),
        notes=experiment.notes,
        files=files,
    )
    write_atomic(part / CARD, card(facts).encode())
    write_atomic(part / NOTE, sealed(facts.model_dump(mode="json")))
    shutil.rmtree(to, ignore_errors=True)  # of before the run was resumed
    move_folder(part, to)


def lacking(has_shared: bool, here: bool, site: bool) -> str:
    """What a folder does not have, and why."""
    if not has_shared:
        return NONE_SHARED
    return OTHERS_ELSEWHERE if site else "" if here else ELSEWHERE


def keep_clients(
    part: Path,
    experiment: Experiment,
    server: Server,
    clients: Mapping[int, ClientState],
    shared: Params,
    files: dict[str, str],  # hashes of what is written are added
) -> Iterator[ClientFacts]:
    """Each client's model: what it has otherwise than the shared one, in a file."""
    two = type(experiment.job.method).predict_shared is not Method.predict_shared
    for k, name in enumerate(client_names(experiment)):
        own, predict = own_parameters(experiment, server, k, clients.get(k, ClientState()), shared)
        file = f"clients/{k}.safetensors" if own else ""
        if own:
            files[file] = write(part / file, own)
        data = experiment.client_data.get(k)
        pictures = None if data is None else len(data)
        differs = bool(own) or (two and predict == "predict")
        yield ClientFacts(name=name, own=differs, predict=predict, file=file, pictures=pictures)


def write(path: Path, params: Params) -> str:
    """Its hash."""
    data = save({name: value.contiguous() for name, value in params.items()})
    write_atomic(path, data)
    return hashlib.sha256(data).hexdigest()


def own_parameters(
    experiment: Experiment, server: Server, k: int, client: ClientState, shared: Params
) -> tuple[Params, Literal["predict", "predict_shared"]]:
    """What a client's model has otherwise than the shared one, and by which of the method's two it predicts: as the
    run's tests have it (testing.personal_theta, step.own_predict)."""
    theta = personal_theta(experiment.job, server, k, client)
    own = {name: value for name, value in theta.items() if not torch.equal(value, shared[name])}
    return own, "predict_shared" if experiment.job.personal and not client.local else "predict"


def client_names(experiment: Experiment) -> tuple[str, ...]:
    return experiment.federation.names or tuple(f"client {k}" for k in range(experiment.run.clients))


def calibrations(
    experiment: Experiment,
    server: Server,
    clients: Mapping[int, ClientState] | None,
    lent: Params | None,
    own: Collection[int],  # clients with a model of their own
) -> Calibrations:
    job, held, data = experiment.job, experiment.aside, experiment.run.data
    if held is None or clients is None:
        return Calibrations(why=UNCALIBRATED if clients is not None else BY_CLIENTS)
    key = "calibrate" if data.calibrate else "validation"
    return Calibrations(
        why=HELD[key].format(n=len(held.labels), part=getattr(data, key)),
        shared=calibrate_shared(job, server, held, lent),
        personal=calibrate_personal(job, server, clients, held, own),
    )


def trained_on(experiment: Experiment, here: bool, site: bool = False) -> str:
    """In words."""
    run, dataset = experiment.run, experiment.federation.dataset
    classes, name = len(dataset.classes), data_name(run)
    if not run.method.value.trains:
        return f"nothing: CLIP as it is, with the {classes} class names of {name}"
    labels = "labels given" if experiment.job.labeler is None else f"no labels, pseudo-labels by {run.labels.name}"
    if site:
        others = "those of the run's other sites, which only they know"
        return f"{len(dataset.train)} pictures of this site and {others}, of {classes} classes; {labels}"
    if not here and not len(dataset.train):
        return f"pictures of {run.clients} sites that only they know, of {classes} classes; {labels}"
    count = int(experiment.federation.sizes.sum())
    options = ", ".join(f"{key}={value}" for key, value in run.data.partition.options.items())
    dealt = f"partition {run.data.partition.name}" + (f" ({options})" if options else "")
    return f"{name}: {count} pictures of {classes} classes at {run.clients} clients, {dealt}; {labels}"


def data_name(run: Run) -> str:
    """Without the path, which is nobody's business."""
    form, colon, path = run.data.name.partition(":")
    return f"{form}:{Path(path).name}" if colon else form


def scores_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    names = ("zero_shot", "global", "zero_shot_personal", "personal", "worst_client", "balanced", "pseudo_labels")
    return {name: summary[name] for name in names}
