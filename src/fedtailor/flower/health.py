"""/health and /metrics, at the control port, on the server's machine only. The first has no names in it and asks for no
token; the second, as all else at that port, does (gate.py).

`python -m fedtailor.flower.health DIR` asks for the first, and ends with 0 if all is well: for a container's check.
"""

import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..base.errors import UserError
from .board import Board, since
from .gate import KNOWN
from .init import read

PATIENCE = 5.0  # seconds
Answer = tuple[int, str, str]  # status, type, text


class Told:
    """An ASGI app before another: it answers at one path, to who is on this machine."""

    def __init__(self, app: Any, path: str, answer: Callable[[Board | None], Answer], folder: Path) -> None:
        self.app, self.path, self.answer, self.folder = app, path, answer, folder

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        ours = scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == self.path
        if not ours or KNOWN in scope["state"]:
            await self.app(scope, receive, send)
            return
        status, kind, text = self.answer(Board.read(self.folder))
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(text.encode())).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text.encode()})


def health(board: Board | None) -> Answer:
    """The server has a board once sites may come in; if it ends, so does this process."""
    if board is None:
        return 503, "application/json", json.dumps({"status": "starting"})
    run = board.run and board.run.model_dump(include={"name", "round", "rounds", "doing"})
    told = {"status": "up", "version": board.version, "age": round(board.age, 1), "run": run}
    return 200, "application/json", json.dumps(told)


def metrics(board: Board | None) -> Answer:
    """In Prometheus's text format."""
    lines = [] if board is None else [*measured(board)]
    return 200, "text/plain; version=0.0.4; charset=utf-8", "".join(f"{line}\n" for line in lines)


def measured(board: Board) -> Iterator[str]:
    yield from gauge("info", "the version, as a label", {label(version=board.version): 1})
    yield from gauge("board_age_seconds", "since the server last told of itself", {"": round(board.age, 1)})
    online = {label(site=name): int(there) for name, there in board.sites.items()}
    yield from gauge("site_online", "1: the site is connected", online)
    if (run := board.run) is None:
        return
    name = label(run=run.name)
    yield from gauge("round", "of the run under way, from 1; 0: before the first", {name: run.round})
    yield from gauge("rounds", "that it will have", {name: run.rounds})
    yield from gauge("round_seconds", "since this round began", {name: round(since(run.round_began), 1)})
    yield from gauge("sites_answered", "to the last message", {name: len(run.answered)})
    yield from gauge("sites_awaited", "that have not answered yet", {name: len(run.awaited)})


def gauge(name: str, meaning: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP fedtailor_{name} {meaning}"
    yield f"# TYPE fedtailor_{name} gauge"
    for labels, value in values.items():
        yield f"fedtailor_{name}{labels} {value}"


def label(**one: str) -> str:
    """`{run="capt-1"}`; names are those of files and sites, which may hold anything."""
    ((key, value),) = one.items()
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{{key}="{escaped}"}}'


def main() -> None:
    folder = Path(sys.argv[1])
    try:
        trusted = ssl.create_default_context(cafile=str(folder / "server" / "ca.pem"))
        url = f"https://127.0.0.1:{read(folder).control}/health"
        with urllib.request.urlopen(url, context=trusted, timeout=PATIENCE) as answer:
            sys.stdout.write(answer.read().decode() + "\n")
    except (OSError, UserError) as error:
        sys.exit(f"not well: {error}")


if __name__ == "__main__":
    main()
