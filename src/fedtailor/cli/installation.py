"""What `fedtailor doctor` looks at: what is there, what is missing, what to do about it."""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch
from rich.table import Table
from rich.text import Text

from ..base.errors import UserError
from ..base.sizes import size
from ..base.version import __version__
from ..clip.feature_cache import budget, default_folder
from ..clip.load import load
from ..data import DATASETS, default_root
from ..simulation.build import find_device


@dataclass(frozen=True)
class Finding:
    what: str
    found: str
    verdict: str = "good"  # or "bad", or "note": good to know


def examine() -> list[Finding]:
    return [
        Finding("fedtailor", f"{__version__}, Python {platform.python_version()}, torch {torch.__version__}"),
        Finding("device", find_device("auto")),
        threads(),
        tried("bundled CLIP", lambda: f"loads, weights {load('bundled').digest[:12]}", "bad"),
        extra("hub", "huggingface_hub"),
        extra("flower", "flwr"),
        extra("export", "onnxruntime"),
        extra("tensorboard", "tensorboard"),
        extra("wandb", "wandb"),
        extra("mlflow", "mlflow-skinny"),
        Finding("torchvision", f"{'installed' if find_spec('torchvision') else 'not installed'}; not needed here"),
        cache(),
        Finding("data folder", str(default_root())),
        # Each dataset is opened once: its long-tailed version is made from the same files.
        *(dataset(name) for name in DATASETS if not name.endswith("-lt") or name.removesuffix("-lt") not in DATASETS),
    ]


def tried(what: str, look: Callable[[], str], verdict: str) -> Finding:
    """What is found; that verdict, if it tells of an error."""
    try:
        return Finding(what, look())
    except UserError as error:
        return Finding(what, str(error), verdict)


def extra(name: str, module: str) -> Finding:
    try:
        return Finding(f"extra {name}", f"{module} {version(module)}")
    except PackageNotFoundError:
        return Finding(f"extra {name}", f"not installed (pip install 'fedtailor[{name}]')", "note")


def threads() -> Finding:
    """How many, what says so, and whether they sleep while they wait for each other."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    said = [f"{name}={os.environ[name]}" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ]
    by = f" ({', '.join(said)})" if said else ""
    found, policy = f"{torch.get_num_threads()} on {cores} cores{by}", os.environ.get("OMP_WAIT_POLICY", "")
    if policy.strip().upper() == "PASSIVE":  # as fedtailor sets it before torch is loaded
        return Finding("threads", f"{found}; they sleep while they wait (OMP_WAIT_POLICY=PASSIVE)")
    costs = "they spin while they wait, which beside another busy process takes many times the CPU"
    return Finding("threads", f"{found}; OMP_WAIT_POLICY={policy}: {costs}; unset it, or set it to PASSIVE", "note")


def cache() -> Finding:
    what, folder = "feature cache", default_folder()
    try:
        most = f"at most {budget() / 1e9:g} GB (FEDTAILOR_CACHE_GB)"
    except UserError as error:
        return Finding(what, str(error), "bad")
    if not folder.exists():
        return Finding(what, f"{folder}, not made yet; {most}", "note")
    sizes = [path.stat().st_size for path in folder.iterdir() if path.is_file()]
    return Finding(what, f"{folder}, {len(sizes)} files, {size(sum(sizes))}; {most}")


def dataset(name: str) -> Finding:
    def count() -> str:
        found = DATASETS[name].load(default_root())
        return f"{len(found.train)} training and {len(found.test)} test images"

    return tried(f"data {name}", count, "note")


def table(findings: list[Finding]) -> Table:
    signs = {"good": Text("✓", "green"), "note": Text("·", "yellow"), "bad": Text("✗", "red")}
    out = Table(show_header=False, show_edge=False)
    for finding in findings:
        out.add_row(signs[finding.verdict], finding.what, Text(finding.found))
    return out
