"""What `fedtailor doctor` looks at: what is there, what is missing, what to do about it."""

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.table import Table
from rich.text import Text

from ..base.errors import UserError
from ..base.version import __version__
from ..clip.feature_cache import budget, default_folder
from ..clip.load import load
from ..data import DATASETS, default_root
from ..report.tables import size
from ..simulation.build import find_device

EXTRAS = {"huggingface_hub": "hub", "flwr": "flower"}


@dataclass(frozen=True)
class Finding:
    what: str
    found: str
    verdict: str = "good"  # or "bad", or "note": good to know


def examine() -> list[Finding]:
    return [
        Finding("fedtailor", f"{__version__}, Python {platform.python_version()}, torch {torch.__version__}"),
        Finding("device", f"{find_device('auto')}, {torch.get_num_threads()} threads"),
        bundled(),
        *extras(),
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


def bundled() -> Finding:
    return tried("bundled CLIP", lambda: f"loads, weights {load('bundled').digest[:12]}", "bad")


def extras() -> list[Finding]:
    found = []
    for module, extra in EXTRAS.items():
        try:
            found.append(Finding(f"extra {extra}", f"{module} {version(module)}"))
        except PackageNotFoundError:
            found.append(Finding(f"extra {extra}", f"not installed (pip install 'fedtailor[{extra}]')", "note"))
    return found


def folder(what: str, path: Path) -> Finding:
    if not path.exists():
        return Finding(what, f"{path}, not made yet", "note")
    files = [f for f in path.iterdir() if f.is_file()]  # only the top level: a data folder may hold a million files
    return Finding(what, f"{path}, {len(files)} files, {size(sum(f.stat().st_size for f in files))}")


def cache() -> Finding:
    kept = folder("feature cache", default_folder())
    try:
        return replace(kept, found=f"{kept.found}; at most {budget() / 1e9:g} GB (FEDTAILOR_CACHE_GB)")
    except UserError as error:
        return Finding(kept.what, str(error), "bad")


def dataset(name: str) -> Finding:
    def count() -> str:
        found = DATASETS[name].load(default_root())
        return f"{len(found.train)} training and {len(found.test)} test images"

    return tried(f"data {name}", count, "note")


def table(findings: list[Finding]) -> Table:
    signs = {"good": "[green]✓[/]", "note": "[yellow]·[/]", "bad": "[red]✗[/]"}
    out = Table(show_header=False, show_edge=False)
    for finding in findings:
        out.add_row(signs[finding.verdict], finding.what, Text(finding.found))
    return out
