"""Records of finished and unfinished runs, read from their folders for figures. Nothing in a folder changes."""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from ..base.documents import json_lines, read_json
from ..base.errors import UserError
from ..base.keys import flat
from ..report.figures.record import RunRecord, Texts
from ..settings.keys import read_document
from .checkpoint import CHECKPOINT, ROUNDS, Checkpoint, Log, check_log
from .format import check_format

Row = dict[str, Any]


class Told(BaseModel):
    """A document as far as anybody reads it."""

    model_config = ConfigDict(extra="allow")


class DataDocument(Told):
    """data.json."""

    classes: list[str]
    clients: list[str]
    template: str
    groups: dict[str, list[str]]
    counts: list[list[int]] | None = None
    zero_shot: dict[str, Row]


class RoundLine(Told):
    """A line of rounds.jsonl. The scores of rounds that were not tested are None."""

    round: int


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
    check_format(folder, document.pop("about", {}))
    lines, data = read_rounds(folder), folder / "data.json"
    facts = read_json(data, "resume the run, and it is written again", DataDocument) if data.is_file() else {}
    if lines and not facts:
        raise UserError(f"{folder} has rounds and no data.json; resume the run, which writes it again")
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in flat(document).items()}
    return RunRecord(folder, settings, lines, facts, partial(text_features, folder, facts))


def read_rounds(folder: Path) -> list[Row]:
    """All lines that are whole; those that a checkpoint counts are as they were written."""
    path, counted = folder / ROUNDS, dict[str, Log]()
    if not path.is_file():
        return []
    data = path.read_bytes()
    try:
        lines = json_lines(data[: data.rfind(b"\n") + 1])  # one may just be written
        TypeAdapter(list[RoundLine]).validate_python(lines)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({str(error).splitlines()[0]})") from error
    with suppress(UserError):  # resuming will tell
        counted = Checkpoint.read(folder / CHECKPOINT).logs
    if ROUNDS in counted:
        check_log(path, counted[ROUNDS])
    return lines


def text_features(folder: Path, facts: dict[str, Any]) -> Texts:
    """With the server's prompts, and with each client's as it trained them last."""
    import torch  # here: most figures do without, and it takes seconds to load

    from ..client.job import ClientState, Job, theta_of
    from ..clip.load import load
    from ..core.model import Model
    from ..evaluation.testing import personal_theta
    from ..settings.run import read_toml
    from .folder import RunFolder

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
            thetas[facts["clients"][k]] = personal_theta(job, server, k, client)
    with torch.no_grad():
        found = [model.texts(theta, ("shared", "own")) for theta in thetas.values()]
    general, aware = (torch.stack([texts[rows] for texts in found]).numpy() for rows in ("shared", "own"))
    return Texts(list(thetas), general, aware)
