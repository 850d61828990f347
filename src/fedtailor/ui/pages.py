"""The pages: list, run, comparison, start, pictures. Whatever takes a while is done beside the loop."""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import PackageLoader
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ..base.errors import UserError
from ..report.page import asset, make_environment, render
from ..report.page.view import view_page, view_run
from ..runs.page import read_page, read_page_run
from .body import fields, limited
from .children import Children
from .listing import Listing, stamp_of
from .models import BYTES, Models, clients_of, has_model
from .start import Form, check_form, offer

KINDS = {"css": "text/css", "js": "text/javascript"}


class Pages:
    def __init__(self, root: Path) -> None:
        self.root, self.listing, self.children, self.models = (
            root.resolve(),
            Listing(root.resolve()),
            Children(),
            Models(),
        )
        self.templates = make_environment(PackageLoader("fedtailor.ui"))
        self.templates.filters |= {"path": quote, "when": when}
        self.own = {name: (Path(__file__).parent / "templates" / name).read_text() for name in ("ui.css", "ui.js")}

    def page(self, name: str, status: int = 200, **facts: Any) -> HTMLResponse:
        return HTMLResponse(self.templates.get_template(name).render(root=self.root, **facts), status)

    def place(self, path: str) -> Path:
        """The folder of a run below the root; nothing else can be asked about."""
        folder = (self.root / path).resolve()
        known = folder in self.children.all or (folder / "run.toml").is_file()
        if not (folder.is_relative_to(self.root) and known):
            raise UserError(f"there is no run {path!r} in {self.root}")
        return folder

    # --- to look at -------------------------------------------------------------------------------------------------

    async def index(self, request: Request) -> Response:
        return self.page("list.html", **await run_in_threadpool(self.listed))

    async def rows(self, request: Request) -> Response:
        """The list again, if it is another one."""
        facts = await run_in_threadpool(self.listed)
        return (
            Response(status_code=204)
            if request.query_params.get("since") == facts["state"]
            else self.page("rows.html", **facts)
        )

    def listed(self) -> dict[str, Any]:
        runs = self.listing.runs()
        there = {self.root / run.path for run in runs}
        begun = [child for folder, child in self.children.all.items() if folder not in there]
        told = [(it.path, it.status, it.done, it.changed) for it in runs], [(it.folder, it.alive) for it in begun]
        return {"runs": runs, "begun": begun, "state": hashlib.sha256(repr(told).encode()).hexdigest()[:16]}

    async def run(self, request: Request) -> Response:
        facts = await run_in_threadpool(self.watched, request.path_params["path"])
        return self.page("watch.html", **facts)

    async def live(self, request: Request) -> Response:
        """The run's part of the page again, if there is something new."""
        path, since = request.path_params["path"], request.query_params.get("since")
        if since == self.state(self.place(path)):
            return Response(status_code=204)
        return self.page("live.html", **await run_in_threadpool(self.watched, path))

    def state(self, folder: Path) -> str:
        child = self.children.of(folder)
        told = stamp_of(folder), child and (child.alive, child.stopped)
        return hashlib.sha256(repr(told).encode()).hexdigest()[:16]

    def watched(self, path: str) -> dict[str, Any]:
        folder = self.place(path)
        state, child = self.state(folder), self.children.of(folder)
        begun = (folder / "run.toml").is_file()
        run = read_page_run(folder, self.root) if begun else None
        return {
            "path": path,
            "state": state,
            "child": child,
            "it": view_run(run, "run") if run else None,
            "going": bool(child and child.alive) or bool(run and run.running),
            "usable": has_model(folder),
        }

    async def save(self, request: Request) -> Response:
        """A run's page to keep: what `fedtailor report` writes."""
        folder = self.place(request.path_params["path"])
        text = await run_in_threadpool(lambda: render(read_page([folder])))
        name = quote(f"{folder.name}.html")
        return HTMLResponse(text, headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"})

    async def compare(self, request: Request) -> Response:
        folders = [self.place(path) for path in dict.fromkeys(request.query_params.getlist("run"))]
        if len(folders) < 2:
            raise UserError("choose two runs or more to compare, in the list of runs")
        page = await run_in_threadpool(lambda: view_page(read_page(folders)))
        return self.page("compare.html", page=page)

    # --- to start and stop ------------------------------------------------------------------------------------------

    async def start(self, request: Request) -> Response:
        return self.page("start.html", form=Form(), offer=await run_in_threadpool(offer), error="")

    async def start_now(self, request: Request) -> Response:
        form = Form(**{key: value for key, value in (await fields(request)).items() if key in Form._fields})
        try:
            folder, words = await run_in_threadpool(check_form, form, self.root)
            self.children.start(folder, words)
        except UserError as error:
            return self.page("start.html", 422, form=form, offer=await run_in_threadpool(offer), error=str(error))
        return RedirectResponse(self.address(folder), 303)

    async def stop(self, request: Request) -> Response:
        folder = self.place(request.path_params["path"])
        self.children.stop(folder)
        return RedirectResponse(self.address(folder), 303)

    async def resume(self, request: Request) -> Response:
        folder = self.place(request.path_params["path"])
        rounds = (await fields(request)).get("rounds", "").strip()
        if rounds and not rounds.isdecimal():
            raise UserError(f"rounds={rounds}: give a whole number of rounds, or none to go on to what was planned")
        more = [f"rounds={rounds}"] if rounds else []
        self.children.start(folder, ["run", *more, "--resume", str(folder), "--quiet"])
        return RedirectResponse(self.address(folder), 303)

    def address(self, folder: Path) -> str:
        return f"/run/{quote(folder.relative_to(self.root).as_posix())}"

    # --- pictures ---------------------------------------------------------------------------------------------------

    async def predict(self, request: Request) -> Response:
        runs = [run for run in await run_in_threadpool(self.listing.runs) if has_model(self.root / run.path)]
        path = request.query_params.get("run") or (runs[0].path if runs else "")
        clients = clients_of(self.place(path)) if path else []
        return self.page("predict.html", runs=runs, path=path, clients=clients, most=BYTES)

    async def look(self, request: Request) -> Response:
        folder, client = self.place(request.path_params["path"]), request.query_params.get("client") or None
        try:
            body = await limited(request, BYTES)
            found = await run_in_threadpool(self.models.look, folder, body, client)
        except UserError as error:
            return self.page("answers.html", 422, found=[], error=str(error))
        return self.page("answers.html", found=found, error="")

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        text = self.own.get(name) or (asset(name) if name in ("page.css", "page.js") else "")
        return Response(text or "", 200 if text else 404, media_type=KINDS.get(name.rpartition(".")[2], "text/plain"))

    async def wrong(self, request: Request, error: Exception) -> Response:
        return self.page("wrong.html", 404 if "there is no run" in str(error) else 422, error=str(error))


def when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
