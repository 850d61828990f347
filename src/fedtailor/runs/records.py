"""Records of finished and unfinished runs, read from their folders for figures. Nothing in a folder changes."""

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from ..base.errors import UserError
from ..base.keys import flat
from ..report.figures.record import RunRecord, Texts
from ..settings.keys import read_document


def read_runs(paths: Iterable[Path]) -> list[RunRecord]:
    """Of run folders, and of folders that have some inside, as a comparison has; each once."""
    folders = dict.fromkeys(folder.resolve() for path in paths for folder in run_folders(path))
    shown = {folder: nearest(folder) for folder in folders}
    return [read_run(shown[folder]) for folder in folders]


def run_folders(path: Path) -> list[Path]:
    """This one, or all that are in it but for those that settings were only chosen by."""
    if (path / "run.toml").is_file():
        return [path]
    if found := sorted(it.parent for it in path.rglob("run.toml") if "tune" not in it.relative_to(path).parts):
        return found
    raise UserError(f"{path} is no run folder, nor is there one in it: there is no run.toml")


def nearest(folder: Path) -> Path:
    """From here, if it is below."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def read_run(folder: Path) -> RunRecord:
    document = read_document(folder / "run.toml")
    document.pop("about", None)
    rounds = folder / "rounds.jsonl"
    text = rounds.read_text() if rounds.is_file() else ""
    data = folder / "data.json"
    try:
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # one may just be written
        facts: dict[str, Any] | None = json.loads(data.read_text()) if data.is_file() else None
    except ValueError as error:
        raise UserError(f"{folder}: rounds.jsonl or data.json is damaged ({error})") from error
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in flat(document).items()}
    return RunRecord(folder, settings, lines, facts, partial(text_features, folder, facts))


def text_features(folder: Path, facts: dict[str, Any] | None) -> Texts:
    """With the server's prompts, and with each client's as it trained them last."""
    import torch  # here: most figures do without, and it takes seconds to load

    from ..client.job import ClientState, Job, theta_of
    from ..clip.load import load
    from ..core.model import Model
    from ..evaluation.testing import personal_theta
    from ..settings.run import read_toml
    from .folder import RunFolder

    if facts is None:
        raise UserError(f"{folder} has no data.json with class names: it is of an older version")
    run = read_toml(folder / "run.toml")
    server, clients = RunFolder(folder).saved()
    model = Model.of(load(run.backbone.name), run.tuner.value, facts["classes"], facts["template"])
    context = run.tuner.value.context(model)
    job = Job(run.method.value, model, run.seed, rounds=run.rounds, clients=run.clients)
    if not (context.shared and context.own) or set(model.init(torch.Generator())) - set(job.scopes):
        raise UserError(f"tsne needs general and class-aware prompts, as CAPT has; {folder} has {run.tuner.name}")
    thetas = {"server": theta_of(job, server.params, ClientState())}
    for k, client in sorted(clients.items()):
        if client.tuned:  # what a remote client trained is not here
            thetas[f"client {k}"] = personal_theta(job, server, k, client)
    with torch.no_grad():
        found = [model.texts(theta, ("shared", "own")) for theta in thetas.values()]
    general, aware = (torch.stack([texts[rows] for texts in found]).numpy() for rows in ("shared", "own"))
    return Texts(list(thetas), general, aware)
