"""What a run needs at each place of a deployment: the server's experiment, and a site's session."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ..base.errors import UserError
from ..clip.load import BUNDLED, LAB, download, load
from ..data import for_server, for_site
from ..data.dataset import Dataset
from ..data.federation import Federation
from ..data.groups import Groups
from ..data.partitions.base import Share
from ..remote.client import Session
from ..remote.messages import Invitation
from ..remote.policy import SitePolicy, backbone_of
from ..remote.refusal import Refused
from ..runs.model_folder import save_site_model
from ..settings.run import Run
from ..simulation.build import Experiment, as_labelled, assemble, with_clip_note


def server_experiment(run: Run) -> Experiment:
    """The server's: class names, and test pictures if it has some. It has nothing to train on."""
    if run.data.server:
        raise UserError(f"data.server={run.data.server}: in a deployment the server holds no part of the training set")
    if run.data.validation:
        raise UserError(f"data.validation={run.data.validation}: in a deployment each site says what it tests on")
    if run.data.labelled not in (None, 1):
        raise UserError(
            f"data.labelled={run.data.labelled}: in a deployment sites know which pictures have a label; 1 leaves out "
            "the others"
        )
    if run.data.calibrate:
        raise UserError(
            f"data.calibrate={run.data.calibrate}: in a deployment the server sees no pictures of the sites"
        )
    dataset = for_server(
        run.data.name, Path(run.data.root).expanduser() if run.data.root else None, broken=run.data.broken
    )
    dataset = with_clip_note(run, dataset)
    nothing = replace(dataset, train=dataset.train.subset(np.empty(0, np.int64)))
    groups = Groups.nowhere(len(dataset.classes))  # only the sites know how many pictures a class has
    return assemble(run, in_one_place(nothing), groups, load(run.backbone.name), alone=False)


def site_session(
    invitation: Invitation, run: Run, policy: SitePolicy, data: str, backbone: str = "", device: str = ""
) -> Session:
    """A site's: its own pictures under the federation's class names, and the CLIP that the server has."""
    name = backbone or own_backbone(invitation, policy)
    own_data = {"name": data, "template": invitation.template}
    own_clip = {"name": name, **({"device": device} if device else {})}
    run = run.model_copy(
        update={"data": run.data.model_copy(update=own_data), "backbone": run.backbone.model_copy(update=own_clip)}
    )
    try:
        dataset = for_site(data, None, invitation.classes, run.data.broken)
    except UserError as error:
        raise Refused("pictures", str(error)) from error
    dataset = policy.fit(replace(dataset, template=invitation.template, paper=invitation.paper))
    if run.method.value.trains and not len(dataset.train):
        raise Refused("pictures", f"{data} has no pictures to train on")
    checkpoint = load(name)
    if checkpoint.digest != invitation.weights:
        raise Refused(
            "weights",
            f"the CLIP {name} here has the hash {checkpoint.digest[:12]}, the server's has "
            f"{invitation.weights[:12]}; give this client the same weights with --backbone",
        )
    groups = Groups.of_known(invitation.groups, len(invitation.classes))
    federation = as_labelled(run, in_one_place(dataset))
    made = assemble(run, federation, groups, checkpoint, alone=False)
    return Session(
        invitation.client, made.job, made.client_data[0], made.tests, federation.truths(0), run.threads,
        partial(save_site_model, made),
    )  # fmt: skip


def own_backbone(invitation: Invitation, policy: SitePolicy) -> str:
    """Of what a server may name: a CLIP that comes with fedtailor, or one of the hub at a commit that the policy names.
    Anything else, a path above all, is not looked for, whether it is there or not."""
    name = backbone_of(invitation)
    if name in (BUNDLED, *LAB):
        return name
    if name in policy.hub:
        return str(download(name, policy.hub[name]))
    raise Refused("backbone", f"the server's CLIP is {name!r}; start this client with --backbone PATH of the same")


def in_one_place(dataset: Dataset) -> Federation:
    return Federation(dataset, (Share(np.arange(len(dataset.train)), np.arange(len(dataset.test))),))
