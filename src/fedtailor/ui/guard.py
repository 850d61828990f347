"""Who may ask: a browser that came with the token, under this server's own name, from this server's own pages.

A page of another site could send a browser here, or make its own name point here (DNS rebinding). So each request needs
the cookie that the token was exchanged for, and a Host header that is this address; what changes something also needs
an Origin header, which browsers set and pages cannot forge, that is this server's.
"""

from __future__ import annotations

import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self.app, self.token, self.cookie = app, token, f"fedtailor-{port}"  # cookies know no ports
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the server's own beginning and end
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer: ASGIApp = self.refusal(Request(scope)) or self.app
        await answer(scope, receive, with_headers)

    def refusal(self, request: Request) -> Response | None:
        """What is answered to one who may not ask, or has just shown the token; None: go on."""
        host = request.headers.get("host", "")
        if host not in self.hosts:
            return PlainTextResponse("This server answers under its own address alone.", 421)
        if (shown := request.query_params.get("token")) is not None and self.fits(shown):
            response = RedirectResponse(request.url.path, 303)  # the token does not stay in the address
            response.set_cookie(self.cookie, self.token, httponly=True, samesite="lax")
            return response
        if not self.fits(request.cookies.get(self.cookie, "")):
            return PlainTextResponse("Open the address that `fedtailor ui` has printed; its token lets you in.", 401)
        if request.method not in ("GET", "HEAD") and request.headers.get("origin") != f"http://{host}":
            return PlainTextResponse("Only pages of this server may change anything.", 403)
        return None

    def fits(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.token.encode())
