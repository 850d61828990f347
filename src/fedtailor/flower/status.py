"""A deployment seen from outside its server: through its files and its control port."""

import json
import time
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import Any

import httpx
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..base.errors import Interrupted, UserError
from ..base.files import is_locked
from ..base.polling import Backoff
from ..base.terminal import Terminal
from ..base.version import apart
from ..runs.callback import Callback
from ..runs.result_file import read_result
from .board import Board, RunState, now, since
from .certificates import ending, ends_of
from .control import control_client
from .deployment import FAILURE, Deployment
from .private.wire import ListNodesRequest, NodeInfo

LATELY = 10  # rounds by which the time that is left is guessed
PACE = 2.0  # seconds between two looks


def rounds_of(deployment: Deployment, name: str) -> list[dict[str, Any]]:
    log = deployment.runs / name / "rounds.jsonl"
    lines = log.read_text().split("\n")[:-1] if log.is_file() else []  # the last line may be half written
    return [json.loads(line) for line in lines]


def state_of(deployment: Deployment, name: str) -> str:
    folder, waiting = deployment.runs / name, deployment.waiting()
    if name in waiting:
        return "running" if waiting[0] == name and is_locked(deployment.folder) else "waiting"
    if (folder / FAILURE).is_file():
        return "failed"
    return "finished" if (folder / "result.json").is_file() else "stopped"


def follow(deployment: Deployment, name: str, progress: Callback) -> dict[str, Any]:
    """Watch a run until it is over. Returns its summary; an error if it failed or was stopped."""
    if not is_locked(deployment.folder):
        Terminal(stderr=True).print("the server is not running; the run begins when it is started", style="yellow")
    total, pause, told = deployment.asked(name)[0].rounds, Backoff(0.1, 0.5), ""
    try:
        while deployment.is_asked(name):
            what, done, of = stage(deployment, name, total)
            if told not in ("", what):
                progress.on_progress(told, 1, 1)  # that is over
            progress.on_progress(told := what, done, of)
            time.sleep(pause.next())
    except KeyboardInterrupt:
        raise Interrupted(
            f"no longer watching; {name} goes on. fedtailor flower status {deployment.root} tells how, "
            f"fedtailor flower stop {deployment.root} {name} ends it"
        ) from None
    folder, state = deployment.runs / name, state_of(deployment, name)
    if state == "failed":
        raise UserError(f"{name} failed: {(folder / FAILURE).read_text()}")
    if state != "finished":
        raise UserError(f"{name} was stopped; go on with: fedtailor flower run {deployment.root} --resume {name}")
    return read_result(folder)


def stage(deployment: Deployment, name: str, total: int) -> tuple[str, int, int]:
    """What a run does, how much of it is done, and of how much."""
    rounds, board = len(rounds_of(deployment, name)), Board.read(deployment.folder)
    run = board.run if board else None
    if run and run.name == name and run.doing == "getting ready" and run.awaited:
        ready = len(run.answered)
        return f"{name}: waiting for {listed(run.awaited)}", ready, ready + len(run.awaited)
    return f"{name}: round", rounds if rounds < total else 0, total


def collect(deployment: Deployment) -> dict[str, Any]:
    sites, up, board = deployment.sites(), is_locked(deployment.folder), Board.read(deployment.folder)
    try:
        nodes = control_client(deployment).ListNodes(ListNodesRequest()).nodes_info
    except httpx.HTTPStatusError as error:
        raise UserError(
            f"the server at {deployment.control} does not take the token of {deployment.root} "
            f"({error.response.status_code}); it is another federation's, or a copy of this folder was started"
        ) from error
    except httpx.HTTPError:
        nodes, up = (), False
    known, versions = {node.public_key: node for node in nodes}, board.versions if board else {}
    others = {name: apart(versions[name], board.version) for name in versions} if board and up else {}
    return {
        "server": "up" if up else "down",
        "port": deployment.config.port,
        "certificates": {kind: f"{end:%Y-%m-%d}" for kind, end in ends_of(deployment.folder).items()},
        "warnings": ending(deployment.folder) + [f"{name} {told}" for name, told in others.items() if told],
        "version": board.version if board and up else "",
        "sites": [describe_site(name, known.get(key), versions.get(name, "")) for name, key in sites.items()],
        "runs": [
            describe_run(deployment, name, board.run if board and up else None)
            for name in sorted(deployment.run_names())
        ],
    }


def describe_site(name: str, node: NodeInfo | None, version: str) -> dict[str, Any]:
    """`seen`: when it was there last, empty if never."""
    found = {"name": name, "state": "unknown", "seen": "", "version": version}
    if node is None:
        return found
    seen = {"online": now(), "offline": node.last_deactivated_at}
    return found | {"state": node.status, "seen": seen.get(node.status, "")}


def describe_run(deployment: Deployment, name: str, under_way: RunState | None) -> dict[str, Any]:
    rows, state = rounds_of(deployment, name), state_of(deployment, name)
    overall = [row["global"]["overall"] for row in rows if row["global"]] or [None]
    failure = (deployment.runs / name / FAILURE).read_text() if state == "failed" else ""
    found = {"name": name, "state": state, "rounds": len(rows), "overall": overall[-1]}
    found |= {"dropped": sum(len(row["dropped"]) for row in rows), "failure": failure}
    if state != "running" or under_way is None or under_way.name != name:
        return found
    doing = under_way.model_dump(mode="json", include={"round", "doing", "answered", "awaited"})
    return found | doing | {"of": under_way.rounds, **times([row["seconds"] for row in rows], under_way)}


def times(seconds: list[float], run: RunState) -> dict[str, float | None]:
    """Seconds of work so far, in all attempts, and how many are left if rounds go on as the last ones did."""
    this, lately = since(run.round_began), seconds[-LATELY:]
    left = max(sum(lately) / len(lately) * (run.rounds - len(seconds)) - this, 0.0) if lately else None
    return {"elapsed": round(sum(seconds) + this, 1), "left": None if left is None else round(left, 1)}


def render(found: dict[str, Any]) -> RenderableType:
    sites = Table("site", "state", "seen", "version", title=headline(found), title_justify="left")
    for site in found["sites"]:
        sites.add_row(site["name"], site["state"], site["seen"][:19], site["version"])
    runs = Table("run", "state", "rounds", "overall", "dropped", title="runs", title_justify="left")
    for run in found["runs"]:
        overall = "" if run["overall"] is None else f"{run['overall']:.2f}"
        runs.add_row(run["name"], run["failure"] or run["state"], str(run["rounds"]), overall, str(run["dropped"]))
    told = [Text(progress_of(run) + time_of(run)) for run in found["runs"] if "doing" in run]
    told += [Text(sentence, style="yellow") for sentence in found["warnings"]]
    return Group(sites, *([runs] if found["runs"] else []), *told)


def headline(found: dict[str, Any]) -> str:
    version = f", fedtailor {found['version']}" if found["version"] else ""
    return f"server {found['server']}, port {found['port']}{version}"


def progress_of(run: dict[str, Any]) -> str:
    """Of a run in a line, without the time."""
    if "doing" not in run:
        return f"{run['name']}: {run['state']}"
    told = f"{run['name']}: {run['doing']}"
    if run["round"]:
        told += f", round {min(run['round'], run['of'])} of {run['of']}"
    if run["awaited"] or run["answered"]:
        told += f"; {len(run['answered'])} answered"
    return told + (f", waiting for {listed(run['awaited'])}" if run["awaited"] else "")


def time_of(run: dict[str, Any]) -> str:
    if "doing" not in run:
        return ""
    left = "" if run["left"] is None else f", about {spelled(run['left'])} left"
    return f"; {spelled(run['elapsed'])} so far{left}"


def listed(names: Collection[str], most: int = 12) -> str:
    """The first few of a long list of names."""
    ordered = sorted(names, key=lambda name: (len(name), name))
    return ", ".join(ordered[:most]) + (f" and {len(ordered) - most} more" if len(ordered) > most else "")


def spelled(seconds: float) -> str:
    """As 0:07:30."""
    return str(timedelta(seconds=round(seconds)))


def watched(deployment: Deployment) -> Iterator[dict[str, Any]]:
    """What there is to see, again and again."""
    while True:
        yield collect(deployment)
        time.sleep(PACE)
