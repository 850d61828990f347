"""A deployment seen from outside its server: through its files and its control port."""

import json
import time
from typing import Any

import httpx
from flwr.proto.control_pb2 import ListNodesRequest
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..base.errors import Interrupted, UserError
from ..base.files import is_locked
from ..base.polling import Backoff
from ..base.terminal import Terminal
from ..runs.callback import Callback
from ..runs.result_file import read_result
from .certificates import ending, ends_of
from .control import control_client
from .deployment import FAILURE, Deployment


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
    total, pause = deployment.asked(name)[0].rounds, Backoff(0.1, 0.5)
    try:
        while deployment.is_asked(name):
            rounds = len(rounds_of(deployment, name))
            progress.on_progress(f"{name}: round", rounds if rounds < total else 0, total)
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


def collect(deployment: Deployment) -> dict[str, Any]:
    sites, up = deployment.sites(), is_locked(deployment.folder)
    try:
        nodes = control_client(deployment).ListNodes(ListNodesRequest()).nodes_info
    except httpx.HTTPStatusError as error:
        raise UserError(
            f"the server at {deployment.control} does not take the token of {deployment.root} "
            f"({error.response.status_code}); it is another federation's, or a copy of this folder was started"
        ) from error
    except httpx.HTTPError:
        nodes, up = (), False
    online = {node.public_key: node.status for node in nodes}
    return {
        "server": "up" if up else "down",
        "port": deployment.config.port,
        "certificates": {kind: f"{end:%Y-%m-%d}" for kind, end in ends_of(deployment.folder).items()},
        "warnings": ending(deployment.folder),
        "sites": [{"name": name, "state": online.get(key, "unknown")} for name, key in sites.items()],
        "runs": [describe_run(deployment, name) for name in sorted(deployment.run_names())],
    }


def describe_run(deployment: Deployment, name: str) -> dict[str, Any]:
    rows, state = rounds_of(deployment, name), state_of(deployment, name)
    overall = [row["global"]["overall"] for row in rows if row["global"]] or [None]
    failure = (deployment.runs / name / FAILURE).read_text() if state == "failed" else ""
    found = {"name": name, "state": state, "rounds": len(rows), "overall": overall[-1]}
    return {**found, "dropped": sum(len(row["dropped"]) for row in rows), "failure": failure}


def render(found: dict[str, Any]) -> RenderableType:
    sites = Table("site", "state", title=f"server {found['server']}, port {found['port']}", title_justify="left")
    for site in found["sites"]:
        sites.add_row(site["name"], site["state"])
    runs = Table("run", "state", "rounds", "overall", "dropped", title="runs", title_justify="left")
    for run in found["runs"]:
        overall = "" if run["overall"] is None else f"{run['overall']:.2f}"
        runs.add_row(run["name"], run["failure"] or run["state"], str(run["rounds"]), overall, str(run["dropped"]))
    told = [Text(sentence, style="yellow") for sentence in found["warnings"]]
    return Group(sites, *([runs] if found["runs"] else []), *told)
