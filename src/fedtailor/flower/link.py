"""Whether this site is in touch with its server: told whenever that changes, and why it is not."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from pathlib import Path

import httpx

from ..base.polling import Backoff
from ..remote.client import WAITING

log = logging.getLogger("fedtailor.flower")
FRESH = 10.0  # seconds since then in which nobody need ask
PAUSES = 1.0, 15.0  # seconds between two looks: at first, and at most while nothing changes
PATIENCE = 5.0  # seconds for the server to say anything


class Link:
    def __init__(self, server: str, ca: Path, alive: Path) -> None:
        self.server, self.ca, self.alive = server, ca, alive
        self.trouble: str | None = None  # "" while in touch; None: nobody knows yet
        self.over, self.thread = threading.Event(), threading.Thread(target=self.watch, daemon=True)

    def __enter__(self) -> None:
        self.alive.unlink(missing_ok=True)
        told = f"connecting to {self.server}"
        log.info("%s", told, extra={"now": told})
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join(timeout=PATIENCE)

    def watch(self) -> None:
        pause = Backoff(*PAUSES)
        while not self.over.wait(pause.next() if self.trouble else PAUSES[0]):
            if self.look():
                pause.reset()

    def look(self) -> bool:
        """Whether anything has changed."""
        trouble = "" if self.in_touch() else unreachable(self.server, self.ca) or self.trouble
        if trouble == self.trouble:
            return False
        self.trouble = trouble
        if trouble:
            told = f"cannot reach {self.server}: {trouble}; trying again"
            log.warning("%s", told, extra={"now": told, "facts": {"server": self.server, "why": trouble}})
        else:
            log.info("connected to %s", self.server, extra={"now": WAITING, "facts": {"server": self.server}})
        return True

    def in_touch(self) -> bool:
        try:
            return time.time() - self.alive.stat().st_mtime < FRESH
        except FileNotFoundError:
            return False


def unreachable(server: str, ca: Path) -> str:
    """Why a server does not answer, whatever it would say; empty: it does. By a proxy, where there is one."""
    try:
        httpx.get(f"https://{server}/", verify=ssl.create_default_context(cafile=str(ca)), timeout=PATIENCE)
    except httpx.TimeoutException:
        return f"no answer within {PATIENCE:.0f} s"
    except (httpx.HTTPError, OSError) as error:
        return reason(error)
    return ""


def reason(error: BaseException) -> str:
    """What lies at the bottom of it."""
    within: BaseException | None = error
    while within is not None:
        if isinstance(within, ssl.SSLCertVerificationError):
            return f"its certificate is none of this federation's ({within.verify_message})"
        if isinstance(within, OSError) and within.strerror:
            return within.strerror
        within = within.__cause__ or within.__context__
    return str(error)
