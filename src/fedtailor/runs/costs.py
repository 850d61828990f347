"""How long runs will take on this machine, and how much memory: one small round and one small test of each kind, timed.

A run's time is taken to be: pictures trained on × a picture's share of a step, what a client costs besides, test
pictures and models, and every picture once through the towers where nothing is cached yet. Clients are taken to have
equal parts. What is measured on a few pictures is good to about a factor of three.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ..base.documents import read_json, sealed
from ..base.files import write_atomic
from ..base.rng import numpy_generator
from ..base.workers import torch_threads
from ..clip.load import Checkpoint, load
from ..core.types import Server
from ..data import open_dataset
from ..data.dataset import Dataset
from ..data.federation import Federation
from ..data.groups import find_groups
from ..data.partitions.base import Share
from ..evaluation.testing import score_shared
from ..settings.run import Chosen, Run
from ..simulation.build import Experiment, assemble
from ..simulation.engine import make_engine
from ..simulation.loop import peak_rss_mb, run_round
from .callback import ComparisonCallback

TESTED = 64  # test pictures that are timed
UNCERTAIN = 3.0  # it takes between a third and three times as long


@dataclass(frozen=True)
class Cost:
    """Seconds, and MB."""

    train: float  # a picture, in one epoch
    client: float  # a client's round, besides its pictures
    test: float  # a test picture
    model: float  # a tested model, besides its pictures
    encode: float  # a picture, up to the stage where the tuner enters, the first time
    stage: str
    memory: float


@dataclass(frozen=True)
class Estimate:
    runs: int
    seconds: float
    memory_mb: float  # of all jobs together
    jobs: int


def estimate(runs: Sequence[Run], kept: Path, jobs: int, callback: ComparisonCallback) -> Estimate:
    """For runs that are all to be made. Costs that were measured before are read from the file `kept`."""
    known = read_json(kept, "remove it, and they are measured again", dict[str, Cost]) if kept.is_file() else {}
    kinds = {kind(run): run for run in runs}
    for done, (name, run) in enumerate(kinds.items()):
        callback.on_progress("timing a small round of each", done, len(kinds))
        if name not in known:
            known[name] = asdict(measure(run))
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(kept, sealed(known))
    callback.on_progress("timing a small round of each", len(kinds), len(kinds))
    costs = {name: Cost(**known[name]) for name in kinds}
    encoded = {(run.data.name, run.data.imbalance, run.backbone.name, costs[kind(run)].stage): run for run in runs}
    seconds = sum(seconds_of(run, costs[kind(run)]) for run in runs) / jobs
    seconds += sum(costs[kind(run)].encode * sum(sizes(run)) for run in encoded.values())
    memory = max((cost.memory for cost in costs.values()), default=0.0)
    return Estimate(len(runs), seconds, memory * min(jobs, max(len(runs), 1)), jobs)


def kind(run: Run) -> str:
    """Runs of one kind cost the same for a picture."""
    parts = (run.method.name, run.tuner.name, run.labels.name, run.rebalance.name, run.data.name, run.backbone.name)
    return " ".join(map(str, (*parts, run.backbone.device, run.local.batch, run.threads)))


def seconds_of(run: Run, cost: Cost) -> float:
    pictures, tests = sizes(run)
    method, part = run.method.value, max(int(run.fraction * run.clients), 1) / run.clients
    epochs = run.rounds * part * run.local.epochs + method.closing * getattr(method, "T_p", 1)  # FedPuReL's close
    visits = run.clients * (run.rounds * part + method.closing)
    tested = max(-(-run.rounds // run.every), 1) + method.closing
    testing = tested * (2 * tests * cost.test + (run.clients + 1) * cost.model)  # global and personal
    return epochs * pictures * cost.train + visits * cost.client + testing


def sizes(run: Run) -> tuple[int, int]:
    dataset = opened(run.data.name, run.data.root, run.data.imbalance, run.data.most, run.data.seed)
    return len(dataset.train), len(dataset.test)


@cache
def opened(name: str, root: str, imbalance: float | None, most: int, seed: int) -> Dataset:
    return open_dataset(name, Path(root) if root else None, imbalance=imbalance, most=most, seed=seed)


@cache
def loaded(backbone: str) -> Checkpoint:
    return load(backbone)


def measure(run: Run) -> Cost:
    """One client with one batch and with two, for one epoch, and a few test pictures."""
    batch, part = run.local.batch, TESTED // 4
    with torch_threads(run.threads), tempfile.TemporaryDirectory() as folder:
        cached = Path(folder)
        for n in (4, 5):  # the first of a process is slower than those that follow
            little, _ = timed(partial(assemble_few, run, few(run, n, 4), n, 4, cached))
        pictures = few(run, 2 * batch, TESTED)
        more, experiment = timed(partial(assemble_few, run, pictures, batch, part, cached))
        encode = max(more - little, 0.0) / max(len(pictures.train) + len(pictures.test) - 9, 1)
        train = client = 0.0
        if run.method.value.trains:
            first, whole = a_round(experiment), a_round(assemble_few(run, pictures, 2 * batch, part, cached))
            train = max(whole - first, whole / 8) / batch  # a share of it even where the clock says none
            client = max(first - batch * train, 0.0)
        job, server, tests = experiment.job, experiment.job.first_server(), experiment.tests
        some, every = (timed(partial(score_shared, job, server, t))[0] for t in (tests.of_client(0), tests))
        test = max(every - some, every / 8) / max(len(pictures.test) - part, 1)
        return Cost(train, client, test, max(some - part * test, 0.0), encode, job.model.stage, peak_rss_mb())


def few(run: Run, pictures: int, tests: int) -> Dataset:
    """Some pictures of its dataset."""
    whole = opened(run.data.name, run.data.root, run.data.imbalance, run.data.most, run.data.seed)
    rng = numpy_generator(0, "costs", pictures)
    train, test = (rng.permutation(len(split))[:n] for split, n in ((whole.train, pictures), (whole.test, tests)))
    return replace(whole, train=whole.train.subset(train), test=whole.test.subset(test))


def assemble_few(run: Run, pictures: Dataset, train: int, test: int, folder: Path) -> Experiment:
    """The run with one client, which has so many of these pictures, for one round of one epoch; nothing is recorded."""
    local = run.local.model_copy(update={"epochs": 1, "drop_last": False})
    method = Chosen(run.method.name, run.method.value.model_copy(update={"local": local}))
    less: dict[str, Any] = {"clients": 1, "fraction": 1.0, "rounds": min(run.rounds, 1), "record": ()}
    less["data"] = run.data.model_copy(update={"server": 0.0})
    alone = run.model_copy(update={**less, "local": local, "method": method})
    share = Share(np.arange(min(train, len(pictures.train))), np.arange(min(test, len(pictures.test))))
    groups = find_groups(run.data.groups, pictures.train.labels, len(pictures.classes))
    return assemble(alone, Federation(pictures, (share,)), groups, loaded(run.backbone.name), cache=folder)


def a_round(experiment: Experiment) -> float:
    """Its seconds, the shorter of two."""

    def go() -> Server:
        return run_round(experiment, experiment.job.first_server(), make_engine(experiment))[0]

    return min(timed(go)[0] for _ in range(2))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found
