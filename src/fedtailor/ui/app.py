"""The server's addresses, behind its guard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.routing import Route

from ..base.errors import UserError
from .children import Child
from .guard import Guard
from .pages import Pages


def make_app(root: Path, token: str, port: int, ended: Callable[[Child], None] = lambda _: None) -> Starlette:
    """`ended` is told of each run that was stopped with the server."""
    pages = Pages(root)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        for child in await run_in_threadpool(pages.children.end):
            ended(child)

    routes = [
        Route("/", pages.index),
        Route("/rows", pages.rows),
        Route("/run/{path:path}", pages.run),
        Route("/live/{path:path}", pages.live),
        Route("/save/{path:path}", pages.save),
        Route("/compare", pages.compare),
        Route("/start", pages.start),
        Route("/start", pages.start_now, methods=["POST"]),
        Route("/stop/{path:path}", pages.stop, methods=["POST"]),
        Route("/resume/{path:path}", pages.resume, methods=["POST"]),
        Route("/predict", pages.predict),
        Route("/look/{path:path}", pages.look, methods=["POST"]),
        Route("/static/{name}", pages.static),
    ]
    guard = Middleware(Guard, token=token, port=port)
    return Starlette(routes=routes, middleware=[guard], exception_handlers={UserError: pages.wrong}, lifespan=lifespan)
