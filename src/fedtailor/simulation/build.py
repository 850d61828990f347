"""From settings to everything a run needs: data dealt out, CLIP loaded, images encoded."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..base.errors import UserError
from ..base.folders import user_path
from ..base.progress import ProgressFn
from ..client.data import ClientData
from ..client.features import CachedFeatures, FeatureStore, LiveFeatures, make_features
from ..client.job import Job
from ..clip.load import BUNDLED, Checkpoint, load
from ..core.model import PRECISIONS, Model
from ..core.types import OWN
from ..data import open_dataset
from ..data.dataset import UNKNOWN, Dataset, Images
from ..data.datasets import drawn
from ..data.federation import Federation, federate, hold_out, set_aside
from ..data.groups import Groups, find_groups
from ..data.known import known_alone, reveal
from ..data.pictures import BrokenPicture
from ..data.preprocess import Preprocess, preprocess
from ..data.reading import few_broken
from ..data.released import ReleasedDraws
from ..evaluation.testing import EvalSet, FeatureSubset
from ..labelers import LABELERS
from ..settings.run import Run

ONLY_DRAWN = (
    "the bundled CLIP knows drawn figures, not photographs: take backbone=openai/clip-vit-base-patch16, or, for "
    "photographs of 32 pixels in a clone, backbone=lab-vit"
)
NOTHING = CachedFeatures(np.empty((0, 0), np.float32))


class Change(NamedTuple):
    """Who came and who went between two rounds, by name."""

    joined: Sequence[str] = ()
    left: Sequence[str] = ()


@dataclass(frozen=True)
class Experiment:
    """Everything a run needs."""

    run: Run
    federation: Federation
    job: Job
    tests: EvalSet
    client_data: Mapping[int, ClientData]  # training samples; of the server's own under OWN, where it has some
    weights: str  # hash of the backbone
    transform: Preprocess
    aside: EvalSet | None = None  # held out of training, and no test pictures: to calibrate by
    triggered: EvalSet | None = None  # the test pictures with a backdoor's mark, in a simulation that has one
    changes: Mapping[int, Change] = field(default_factory=dict)  # before which round, from 1, some came or went

    @property
    def rounds(self) -> int:
        """All of them, closing rounds too."""
        return self.run.rounds + (self.job.method.closing if self.run.rounds else 0)

    @property
    def notes(self) -> tuple[str, ...]:
        """What numbers alone would not tell, for output, result.json and run.toml."""
        told = self.job.model.tuner.note(self.job.model.clip), self.job.method.lent, *self.federation.dataset.notes
        bad = ", ".join(map(self.federation.name_of, sorted(self.job.bad)))
        attacked = f"simulated attack ({self.run.attack.name}) by {len(self.job.bad)} of the clients: {bad}"
        return tuple(filter(None, (*told, attacked if bad else "")))

    @property
    def groups(self) -> Groups:
        return self.tests.groups

    def with_members(
        self, names: Sequence[str], gone: Collection[int], changes: Mapping[int, Change] | None = None
    ) -> Experiment:
        """The same with clients of these names, in the order of their numbers, some of whom take no part."""
        run = self.run.model_copy(update={"clients": len(names)})
        size = max(int(run.fraction * (len(names) - len(gone))), 1)
        job = replace(self.job, clients=len(names), gone=frozenset(gone), cohort=size)
        federation = replace(self.federation, names=tuple(names))
        return replace(self, run=run, job=job, federation=federation, changes=changes or {})


def deal(run: Run, progress: ProgressFn | None = None) -> tuple[Federation, Groups]:
    """Open the dataset and deal it out."""
    root = user_path(run.data.root) if run.data.root else None
    data, draws = run.data, None
    if data.draws == "released":
        draws = ReleasedDraws.seeded(run.seed, data.seed if (data.imbalance or 1) > 1 else run.seed)
    rng = draws.numpy if draws else None
    dataset = open_dataset(
        data.name, root, imbalance=data.imbalance, most=data.most, seed=data.seed, rng=rng,
        broken=data.broken, progress=progress,
    )  # fmt: skip
    dataset = with_clip_note(run, dataset)
    held = 0.0 if data.server == "test" else data.server
    federation = federate(dataset, data.partition.value, run.clients, run.seed, held, draws)
    if data.validation:
        federation = hold_out(federation, data.validation, run.seed)
    if data.calibrate:
        federation = set_aside(federation, data.calibrate, run.seed)
    federation = as_labelled(run, federation)
    return federation, find_groups(data.groups, federation.dataset.train.labels, len(dataset.classes))


def as_labelled(run: Run, federation: Federation) -> Federation:
    """With what the clients know of their labels."""
    if run.labels.value is not None:
        return reveal(federation, run.data.labelled, run.seed)
    return known_alone(reveal(federation, run.data.labelled, run.seed)) if run.data.labelled else federation


def with_clip_note(run: Run, dataset: Dataset) -> Dataset:
    """Says so where the bundled CLIP is to see anything but what it knows. A network from scratch needs no CLIP."""
    if run.backbone.name != BUNDLED or run.tuner.name == "resnet" or set(dataset.classes) <= set(drawn.CLASSES):
        return dataset
    return replace(dataset, notes=(*dataset.notes, ONLY_DRAWN))


def build(run: Run, progress: ProgressFn | None = None) -> Experiment:
    """An experiment from its settings alone."""
    if progress:
        progress("opening the data", 0, 1)
    federation, groups = deal(run, progress)
    if progress:
        progress("opening the data", 1, 1)
    return assemble(run, federation, groups, load(run.backbone.name), progress)


def assemble(
    run: Run,
    federation: Federation,
    groups: Groups,
    checkpoint: Checkpoint,
    progress: ProgressFn | None = None,
    cache: Path | None = None,
    alone: bool = True,  # False: others have pictures too, and this place may lack those to train or to test on
) -> Experiment:
    """An experiment from a federation and a CLIP that are there already."""
    dataset, method = federation.dataset, run.method.value
    check_labels(run, dataset, alone)
    device = find_device(run.backbone.device)
    check_precision(device, run.backbone.precision)
    template = run.data.template or dataset.template
    model = Model.of(
        checkpoint, run.tuner.value, dataset.classes, template, device, run.backbone.precision, method.reads,
        budget=run.memory.budget_gb * 1e9 / run.threads or math.inf,  # as many clients as threads may train at a time
    )  # fmt: skip
    model.check_room()
    own = dataset.test if run.data.server == "test" else federation.server
    job = Job(
        method, model, run.seed, run.labels.value, run.rebalance.value, run.rounds, run.clients,
        validates=own is not None, privacy=run.privacy.value, updates=run.plan.updates, attack=run.attack.value,
        cohort=run.cohort, secure=run.secure.value,
    )  # fmt: skip
    job.scopes  # noqa: B018  # an impossible tuner or share shows here, before anything is encoded
    size = checkpoint.clip.shape.image_size
    transform = preprocess(run.data.preprocess, dataset.paper, size, checkpoint.mean, checkpoint.std)

    def features(images: Images, training: bool, stage: str = "") -> FeatureStore:
        try:
            return make_features(model, checkpoint.digest, images, transform, training, cache, progress, stage)
        except BrokenPicture as error:
            raise few_broken(error, images) from error

    def plain_features(images: Images) -> FeatureStore | None:
        """CLIP's own, where the tuner enters the tower below its end: a second encoding, made once for all runs."""
        store = features(images, training=False, stage="features") if model.stage != "features" else None
        # What the cache has no room for goes on from the tuner's stage: to encode a picture twice saves nothing.
        return None if isinstance(store, LiveFeatures) else store

    # Validation pictures are encoded with the training set that they are of, unless that looks new in every epoch.
    held = None if transform.augment else federation.held
    pool = dataset.test.images if held is None else dataset.train.images
    encoded, plain_encoded = (features(pool, training=False), plain_features(pool)) if len(pool) else (NOTHING, None)
    if held is not None:
        encoded, plain_encoded = FeatureSubset(encoded, held), plain_encoded and FeatureSubset(plain_encoded, held)
    tests = EvalSet(
        encoded,
        np.empty(0, np.int64) if dataset.test.labels is None else dataset.test.labels,
        tuple(share.test for share in federation.shares),
        groups,
        plain_encoded,
    )
    aside = tests if federation.held is not None else None  # validation pictures are as good as any that were kept out
    if federation.aside:
        kept = np.concatenate(federation.aside)
        parts = np.split(np.arange(len(kept)), np.cumsum([len(part) for part in federation.aside])[:-1])
        seen = FeatureSubset(features(dataset.train.images, training=False), kept)
        aside = EvalSet(seen, np.asarray(dataset.train.labels)[kept], tuple(parts), groups)
    known = checkpoint.digest, transform, aside
    if not method.trains or not len(dataset.train):
        return Experiment(run, federation, job, tests, {}, *known)
    split = dataset.train
    if job.attack is not None:
        split = job.attack.poisoned(split, [federation.shares[k].train for k in sorted(job.bad)], model.classes)
    train = features(split.images, training=True)
    asks = (method.teacher or job.labeler is not None) and train.fixed
    plain = plain_features(split.images) if asks else None
    labels = split.labels if job.labeler is None else None  # no pass can reach true labels that are not given
    if job.labeler is not None and split.labels is not None and federation.known is not None:
        labels = np.where(federation.known, split.labels, UNKNOWN)
    shares = {k: share.train for k, share in enumerate(federation.shares)}
    if OWN in method.everyone(run.clients):  # not federated: one place has everyone's pictures
        shares = {OWN: np.concatenate(list(shares.values()))}
    data = {k: ClientData(train, indices, labels, model.classes, model.device, plain) for k, indices in shares.items()}
    if own is not None and OWN not in data:
        store = features(own.images, training=False)
        data[OWN] = ClientData(store, np.arange(len(own)), own.labels, model.classes, model.device)
    marked = job.attack.triggered(dataset.test.images) if job.attack is not None else None
    triggered = None if marked is None else replace(tests, features=features(marked, training=False), plain=None)
    return Experiment(run, federation, job, tests, data, *known, triggered)


def check_labels(run: Run, dataset: Dataset, alone: bool) -> None:
    if len(dataset.classes) < 2:
        raise UserError(f"{dataset.name} has one class, {dataset.classes[0]!r}, and a model tells two or more apart")
    if (alone and not len(dataset.test)) or (len(dataset.test) and dataset.test.labels is None):
        raise UserError(f"{dataset.name} has no labelled test images, so nothing could be measured")
    if not run.method.value.trains or run.labels.value is not None:
        return
    known = ", ".join(f"labels={name}" for name in LABELERS)
    if dataset.train.labels is None and len(dataset.train):
        raise UserError(
            f"{dataset.name} has no training labels, and labels=given takes them from the data; try {known}"
        )
    if dataset.train.partly and not run.data.labelled:
        without = int((np.asarray(dataset.train.labels) == UNKNOWN).sum())
        raise UserError(
            f"{without} of the {len(dataset.train)} training pictures of {dataset.name} have no label, and "
            f"labels=given takes them from the data; label them, leave them out by data.labelled=1, or choose what "
            f"labels them: {known}"
        )


def find_device(name: str) -> str:
    if name != "auto":
        try:
            torch.zeros(1, device=name).item()  # "meta", say, is a device that computes nothing
        except (RuntimeError, AssertionError) as error:
            raise UserError(f"backbone.device={name}: {str(error).splitlines()[0]}") from error
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_precision(device: str, precision: str) -> None:
    """torch only warns, and goes on in fp32, where a device lacks a precision; here that ends the run."""
    dtype, kind = PRECISIONS[precision], torch.device(device).type
    if dtype is None:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with torch.autocast(kind, dtype):
                got = (torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)).dtype
    except (RuntimeError, UserWarning) as error:
        raise UserError(f"backbone.precision={precision}: {error}; fp32 always works") from error
    if got != dtype:
        raise UserError(f"backbone.precision={precision} is not available on {device}; fp32 always works")
