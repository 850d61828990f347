"""`fedtailor flower status --watch`: tables that are kept up to date; in a pipe a line for each change."""

import json
import sys

from rich.live import Live

from ..base.terminal import Terminal, visible_json
from ..flower.deployment import Deployment
from ..flower.status import headline, progress_of, render, time_of, watched
from .output import say


def show(deployment: Deployment, as_json: bool) -> None:
    """Until Ctrl-C."""
    terminal = Terminal()
    if as_json:
        for found in watched(deployment):
            sys.stdout.write(visible_json(json.dumps(found, ensure_ascii=False)) + "\n")
            sys.stdout.flush()
    elif terminal.is_terminal:
        with Live(console=terminal, auto_refresh=False) as live:
            for found in watched(deployment):
                live.update(render(found), refresh=True)
    else:
        told: set[str] = set()
        for found in watched(deployment):
            online = sum(site["state"] == "online" for site in found["sites"])
            lines = {f"{headline(found)}; {online} of {len(found['sites'])} sites online": ""}
            lines |= dict.fromkeys(found["warnings"], "")
            lines |= {progress_of(run): time_of(run) for run in found["runs"]}
            for line, when in lines.items():
                if line not in told:
                    say(line + when)
            told = {*lines}
