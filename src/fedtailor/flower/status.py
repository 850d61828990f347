"""Looking at a federation from outside its server: through its files, and its control port."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
from flwr.proto.control_pb2 import ListNodesRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from rich.console import Console, Group, RenderableType
from rich.table import Table

from ..base.errors import UserError
from ..runs.execute import SILENT, Callback
from .deployment import FAILURE, Deployment, taken


def desk_of(house: Deployment) -> ControlHttpClient:
    """Flower's control API, which is to be had on the server's machine only."""
    interceptor = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    return ControlHttpClient.from_server_address(house.control, False, house.certificate, [interceptor])


def rounds_of(house: Deployment, name: str) -> list[dict[str, Any]]:
    log = house.runs / name / "rounds.jsonl"
    if not log.is_file():
        return []
    lines = log.read_text().split("\n")[:-1]  # the last may be in the making
    return [json.loads(line) for line in lines]


def state_of(house: Deployment, name: str) -> str:
    folder = house.runs / name
    if name in house.waiting():
        return "running" if house.waiting()[0] == name and taken(house.folder) else "waiting"
    if (folder / FAILURE).is_file():
        return "failed"
    return "finished" if (folder / "result.json").is_file() else "stopped"


def follow(house: Deployment, name: str, progress: Callback = SILENT) -> dict[str, Any]:
    """Watch a run until it is over. Its summary; an error if it failed or was stopped."""
    if not taken(house.folder):
        Console(stderr=True).print("the server is not running; the run begins when it is started", style="yellow")
    total = house.asked(name)[0].rounds
    try:
        while house.still(name):
            rows = rounds_of(house, name)
            progress.on_progress(f"{name}: round", len(rows) if len(rows) < total else 0, total)
            time.sleep(0.5)
    except KeyboardInterrupt:
        raise UserError(
            f"no longer watching; {name} goes on. fedtailor flower status {house.root} tells how, "
            f"fedtailor flower stop {house.root} {name} ends it"
        ) from None
    folder, state = house.runs / name, state_of(house, name)
    if state == "failed":
        raise UserError(f"{name} failed: {(folder / FAILURE).read_text()}")
    if state != "finished":
        raise UserError(f"{name} was stopped; go on with: fedtailor flower run {house.root} --resume {name}")
    summary: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return summary


def look(house: Deployment) -> dict[str, Any]:
    """Sites and runs, as data."""
    names = {key: name for name, key in house.sites().items()}
    online: dict[str, Any] = {}
    up = taken(house.folder)
    try:
        for node in desk_of(house).ListNodes(ListNodesRequest()).nodes_info:
            if node.public_key in names:
                online[names[node.public_key]] = node.status
    except httpx.HTTPError:
        up = False
    runs = []
    for name in sorted({*house.waiting(), *(path.name for path in house.runs.iterdir())}):
        rows = rounds_of(house, name)
        tested = [row["global"]["overall"] for row in rows if row["global"]]
        runs.append(
            {
                "name": name,
                "state": state_of(house, name),
                "rounds": len(rows),
                "overall": tested[-1] if tested else None,
                "dropped": sum(len(row["dropped"]) for row in rows),
                "failure": (house.runs / name / FAILURE).read_text() if state_of(house, name) == "failed" else "",
            }
        )
    sites = [{"name": name, "state": online.get(name, "unknown")} for name in house.sites()]
    return {"server": "up" if up else "down", "port": house.federation.port, "sites": sites, "runs": runs}


def page(found: dict[str, Any]) -> RenderableType:
    sites = Table("site", "state", title=f"server {found['server']}, port {found['port']}", title_justify="left")
    for site in found["sites"]:
        sites.add_row(site["name"], site["state"])
    runs = Table("run", "state", "rounds", "overall", "dropped", title="runs", title_justify="left")
    for run in found["runs"]:
        overall = "" if run["overall"] is None else f"{run['overall']:.2f}"
        runs.add_row(run["name"], run["failure"] or run["state"], str(run["rounds"]), overall, str(run["dropped"]))
    return Group(sites, runs) if found["runs"] else sites
