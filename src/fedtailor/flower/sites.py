"""What a run needs at each place of a deployment: the server's setup, and a site's room."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..base.errors import UserError
from ..clip.load import BUNDLED, load
from ..data.dataset import Dataset
from ..data.deployed import for_server, for_site
from ..data.federation import Federation
from ..data.groups import Groups
from ..data.partitions.base import Share
from ..remote.client import Session
from ..remote.messages import Invitation
from ..settings.run import Run, flat, make_run
from ..simulation.build import Experiment, assemble


def server_experiment(run: Run) -> Experiment:
    """The server's: class names, and test pictures if it has some. It has nothing to train on."""
    if run.data.server:
        raise UserError(f"data.server={run.data.server}: in a deployment the server holds no part of the training set")
    root = Path(run.data.root).expanduser() if run.data.root else None
    dataset = for_server(run.data.name, root)
    nothing = replace(dataset, train=dataset.train.subset(np.empty(0, np.int64)))
    groups = Groups.of_unlabelled(len(dataset.classes))  # how many pictures there are of a class, only sites know
    return assemble(run, whole(nothing), groups, load(run.backbone.name), alone=False)


def site_session(charter: Invitation, data: str, backbone: str = "", device: str = "") -> Session:
    """A site's: its own pictures under the federation's class names, and the CLIP that the server has."""
    run = site_run(charter, data, backbone, device)
    dataset = for_site(data, None, charter.classes)
    dataset = replace(dataset, template=charter.template, paper=charter.paper)
    if run.make_method().trains and not len(dataset.train):
        raise UserError(f"{data} has no pictures to train on")
    checkpoint = load(run.backbone.name)
    if checkpoint.digest != charter.weights:
        raise UserError(
            f"the CLIP {run.backbone.name} here has the hash {checkpoint.digest[:12]}, the server's has "
            f"{charter.weights[:12]}; give this client the same weights with --backbone"
        )
    experiment = assemble(run, whole(dataset), groups(charter), checkpoint, alone=False)
    return Session(
        charter.client, experiment.job, experiment.client_data[0], experiment.tests, dataset.train.labels, run.threads
    )


def site_run(charter: Invitation, data: str, backbone: str, device: str) -> Run:
    """The server's settings, but for what is this place's own business."""
    given = flat(tomllib.loads(charter.settings))
    theirs = given["backbone.name"]
    if not backbone and theirs != BUNDLED and Path(theirs).is_absolute():
        raise UserError("the server's CLIP is a file of its own; start this client with --backbone PATH of the same")
    own = {"data.name": data, "data.root": "", "data.template": charter.template, "backbone.name": backbone or theirs}
    return make_run(settings={**given, **own, **({"backbone.device": device} if device else {})})


def groups(charter: Invitation) -> Groups:
    known = {name: np.array(charter.groups[name], np.int64) for name in ("head", "mid", "tail")}
    rest = set(range(len(charter.classes))) - {int(c) for members in known.values() for c in members}
    return Groups(**known, unknown=np.array(sorted(rest), np.int64))


def whole(dataset: Dataset) -> Federation:
    """All of it in one place."""
    return Federation(dataset, (Share(np.arange(len(dataset.train)), np.arange(len(dataset.test))),))
