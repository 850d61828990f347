"""From settings to everything a run needs: data dealt out, CLIP loaded, images encoded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from .clip.cache import Watch
from .clip.load import Checkpoint, load
from .clip.preprocess import preprocess
from .config import Run
from .core import OWN
from .data import open_dataset
from .data.federation import Federation, federate
from .data.groups import GROUPS, Groups
from .data.samples import CachedPool, LivePool, Pool, Shelf, make_pool
from .data.sets import Images, Indices, histogram
from .engines import ELSEWHERE, ENGINES
from .engines.base import Engine
from .errors import UserError
from .evaluate import Tests
from .labelers import LABELERS
from .model import PRECISIONS, Model
from .servers import ServerStep
from .visit import Client, Job

NOTHING = CachedPool(np.empty((0, 0), np.float32))


@dataclass(frozen=True)
class Setup:
    run: Run
    federation: Federation
    groups: Groups
    job: Job
    tests: Tests
    train_pool: Pool | None  # None where nothing is trained
    weights: str  # hash of the backbone
    plain_pool: Pool | None = None  # CLIP's own features of the training pictures, where something asks for them
    server_shelf: Shelf | None = None  # what the server validates on
    server_step: ServerStep | None = None  # None: a round's own result
    connect: Callable[[Setup, dict[int, Client] | None, Path | None], Engine] | None = None  # to clients elsewhere

    @property
    def rounds(self) -> int:
        """With the closing ones."""
        return self.run.rounds + (self.job.method.closing if self.run.rounds else 0)

    @cached_property
    def shelves(self) -> dict[int, Shelf]:
        """Each client's training samples; true labels only where labels are given."""
        if self.train_pool is None:
            return {}
        labels = self.federation.dataset.train.labels if self.job.labeler is None else None
        C, device = self.job.model.classes, self.job.model.device
        shelves = {
            k: Shelf(self.train_pool, share.train, labels, C, device, self.plain_pool)
            for k, share in enumerate(self.federation.shares)
        }
        if self.job.method.pooled:
            return {OWN: Shelf(self.train_pool, everything(self.federation), labels, C, device, self.plain_pool)}
        return shelves if self.server_shelf is None else {**shelves, OWN: self.server_shelf}

    def engine(self, clients: dict[int, Client] | None = None, folder: Path | None = None) -> Engine:
        """Clients that are elsewhere keep their states under the folder, or where nobody finds them again."""
        if self.connect is not None:
            return self.connect(self, clients, folder)
        if self.run.engine in ENGINES:
            return ENGINES[self.run.engine](self.job, self.shelves, clients)
        module, _ = ELSEWHERE[self.run.engine]
        made: Engine = import_module(module).engine(self, clients, folder)
        return made


def everything(federation: Federation) -> Indices:
    """All clients' training pictures, one client's behind the other's."""
    return np.concatenate([share.train for share in federation.shares])


def deal(run: Run) -> tuple[Federation, Groups]:
    """Open the dataset and deal it out."""
    root = Path(run.data.root).expanduser() if run.data.root else None
    dataset = open_dataset(run.data.name, root, imbalance=run.data.imbalance, seed=run.data.seed)
    held = 0.0 if run.data.server == "test" else run.data.server
    federation = federate(dataset, run.make_partition(), run.clients, run.seed, held)
    C = len(dataset.classes)
    labels = federation.dataset.train.labels
    return federation, Groups.of_unlabelled(C) if labels is None else GROUPS[run.data.groups](histogram(labels, C))


def prepare(run: Run, watch: Watch | None = None) -> Setup:
    """Everything a run needs, from its settings alone."""
    if watch:
        watch("opening the data", 0, 1)
    federation, groups = deal(run)
    if watch:
        watch("opening the data", 1, 1)
    return assemble(run, federation, groups, load(run.backbone.name), watch)


def assemble(
    run: Run,
    federation: Federation,
    groups: Groups,
    checkpoint: Checkpoint,
    watch: Watch | None = None,
    cache: Path | None = None,
    alone: bool = True,  # False: others have pictures too, and this place may lack those to train or to test on
) -> Setup:
    """The same from a federation and a CLIP that are there already."""
    dataset, method = federation.dataset, run.make_method()
    if (alone and not len(dataset.test)) or (len(dataset.test) and dataset.test.labels is None):
        raise UserError(f"{dataset.name} has no labelled test images, so nothing could be measured")
    labeler = run.make_labeler()
    if method.trains and labeler is None and dataset.train.labels is None and len(dataset.train):
        known = ", ".join(f"labels={name}" for name in LABELERS)
        raise UserError(
            f"{dataset.name} has no training labels, and labels=given takes them from the data; try {known}"
        )
    template = run.data.template or dataset.template
    device = find_device(run.backbone.device)
    check_precision(device, run.backbone.precision)
    model = Model.of(
        checkpoint, run.make_tuner(), dataset.classes, template, device, run.backbone.precision, method.reads
    )
    own = dataset.test if run.data.server == "test" else federation.server
    job = Job(
        method,
        model,
        run.seed,
        labeler,
        run.make_rebalancer(),
        run.rounds,
        run.clients,
        validates=own is not None,
        updates=run.plan.updates,
    )
    job.scopes  # noqa: B018  # an impossible tuner or share shows here, before anything is encoded
    size = checkpoint.clip.shape.image_size
    transform = preprocess(run.data.preprocess, dataset.normal, size, checkpoint.mean, checkpoint.std)

    def pool(images: Images, training: bool, stage: str = "") -> Pool:
        return make_pool(model, checkpoint.digest, images, transform, training, cache, watch, stage)

    tests = Tests(
        pool(dataset.test.images, training=False) if len(dataset.test) else NOTHING,
        np.empty(0, np.int64) if dataset.test.labels is None else dataset.test.labels,
        tuple(share.test for share in federation.shares),
        groups,
    )
    if not method.trains or not len(dataset.train):
        return Setup(run, federation, groups, job, tests, None, checkpoint.digest, server_step=run.make_server_step())
    train = pool(dataset.train.images, training=True)
    # Where the tuner enters the tower below its end, CLIP's own features are a second encoding, made once.
    asks = (method.teacher or labeler is not None) and model.stage != "features" and train.fixed
    plain = pool(dataset.train.images, training=True, stage="features") if asks else None
    if isinstance(plain, LivePool):
        plain = None  # CLIP goes on from the tuner's stage: to encode every picture twice saves nothing
    shelf = None
    if own is not None:
        shelf = Shelf(pool(own.images, training=False), np.arange(len(own)), own.labels, model.classes, model.device)
    step = run.make_server_step()
    return Setup(run, federation, groups, job, tests, train, checkpoint.digest, plain, shelf, step)


def find_device(name: str) -> str:
    if name != "auto":
        try:
            torch.empty(0, device=name)
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
