"""Run folders read for a page. Nothing in a folder changes, and no torch is needed unless runs are to be compared."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..base.documents import read_json
from ..base.files import is_locked
from ..base.progress import ProgressFn
from ..report.page.facts import Answered, Page, PageRun
from ..settings.keys import read_document
from .predictions import Answers, read_predictions
from .records import nearest, read_run, run_folders
from .result_file import RESULT, read_result

TABLE = "table.json"  # of a comparison


def read_page(paths: Sequence[Path], pictures: bool = False, progress: ProgressFn | None = None) -> Page:
    """Of run folders, and of folders that have some inside, each once. A comparison's folder has its own table; other
    runs are compared here if they can be. `pictures`: with the worst cases of each."""
    folders = list(dict.fromkeys(folder.resolve() for path in paths for folder in run_folders(path)))
    within = nearest(Path(os.path.commonpath(folders))) if len(folders) > 1 else Path()
    runs = [read_page_run(nearest(folder), within) for folder in folders]
    if pictures:
        from .worst import worst_cases  # here: it takes torch

        finished = [run for run in runs if run.result is not None]
        worst = {run.record.folder: worst_cases(run.record.folder, progress) for run in finished}
        runs = [replace(run, worst=worst.get(run.record.folder)) for run in runs]
    if len(paths) == 1 and (table := paths[0] / TABLE).is_file():
        compared = read_json(table, "compare again, and it is made anew")
        return Page(runs, compared, f"Comparison {nearest(paths[0].resolve())}")
    finished = [run for run in runs if run.result is not None]
    if len(runs) == 1 or len(finished) < 2:
        return Page(runs)
    from .finished import compare_finished  # here: it takes torch

    left = [str(run.record.folder) for run in runs if run.result is None]
    notes = [f"Not in the comparison, since they are not finished: {', '.join(left)}"] if left else []
    compared = compare_finished([run.record.folder for run in finished]).summary
    return Page(runs, compared, notes=notes)


def read_page_run(folder: Path, within: Path = Path()) -> PageRun:
    record, about = read_run(folder), read_document(folder / "run.toml").get("about", {})
    result = read_result(folder) if (folder / RESULT).is_file() else None
    said = read_predictions(folder) if result is not None else None
    answered = counted(said, int(record.settings["clients"])) if said is not None else None
    return PageRun(record, about, result, answered, result is None and is_running(folder), within=within)


def is_running(folder: Path) -> bool:
    """A folder that no run has locked yet is not touched."""
    return (folder / ".lock").is_file() and is_locked(folder)


def counted(said: Answers, clients: int) -> Answered:
    C, label = len(said.group), said.label
    pairs = {"global": (label[: len(said.shared)], said.shared), "personal": (label[said.picture], said.personal)}
    confusion = {
        part: np.bincount(true * C + guess, minlength=C * C).reshape(C, C)
        for part, (true, guess) in pairs.items()
        if len(true)
    }
    tested = np.bincount(said.owner, minlength=clients)
    shared: list[float | None] = []
    if len(said.shared):
        right = said.shared[said.picture] == label[said.picture]
        hits = np.bincount(said.owner[right], minlength=clients)
        shared = [100 * int(hit) / int(n) if n else None for hit, n in zip(hits, tested, strict=True)]
    return Answered(confusion, tested, shared)
