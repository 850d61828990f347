"""Which sites are there: since when this server has not seen one, who was taken away, and who may join a run."""

import logging
import time
from collections.abc import Collection, Mapping

from ..remote.members import Members, no_joining, no_leaving
from ..settings.run import Run
from .deployment import Deployment
from .private.control import ControlHttpClient
from .private.wire import ListNodesRequest, NodeInfo
from .status import listed

log = logging.getLogger("fedtailor.flower")
TRIES = 3  # of a site that cannot join a run, each of which interrupts the others, until the server is started again


class Attendance:
    def __init__(self, deployment: Deployment, control: ControlHttpClient) -> None:
        self.deployment, self.control = deployment, control
        self.began, self.seen = time.monotonic(), dict[str, float]()  # by site: when it was online last
        self.names: list[str] = []  # of all sites, at the last look
        self.online: set[str] | None = None  # None: nobody has looked yet
        self.unfit: dict[str, list[str]] = {}  # sites that could not join a run: when they had come online, each time
        self.waiting = set[str]()  # who cannot join the run under way, though there
        self.keys_at = 0  # when the keys were last looked at

    def look(self) -> dict[str, NodeInfo | None]:
        """The sites whose keys are here; None for one that Flower does not know yet."""
        nodes = {node.public_key: node for node in self.control.ListNodes(ListNodesRequest()).nodes_info}
        found = {name: nodes.get(key) for name, key in self.deployment.sites().items()}
        self.names = [*found]
        self.note({name for name, node in found.items() if node is not None and node.status == "online"})
        return found

    def note(self, online: Collection[str], of: Collection[str] | None = None) -> None:
        """Who is online now, of these or of all; who came and who was lost is logged."""
        before, now = self.online or set(), set(online)
        if of is not None:
            now |= before.difference(of)
        if self.online is not None:
            for told, names in (("lost", before - now), ("online", now - before)):
                if names:
                    back = " again" if told == "online" and names <= self.seen.keys() else ""
                    log.log(logging.WARNING if told == "lost" else logging.INFO, "%s%s: %s", told, back, listed(names))
        self.online = now
        self.seen |= dict.fromkeys(now, time.monotonic())

    def away(self, name: str) -> float:
        """Seconds for which this server has not seen a site, while it was up itself."""
        return time.monotonic() - self.seen.get(name, self.began)

    def following(self, run: Run, members: Members, t: int) -> Members:
        """Who takes part from round t on."""
        return members.from_round(t, self.there(run, members.present(t)))

    def there(self, run: Run, members: Collection[str]) -> list[str]:
        """Who is to take part from now on: of the members those who were not taken away, and have not been away for
        long; of the others those who are online."""
        nodes, longest = self.look(), run.plan.away or float("inf")
        stay = [name for name in members if no_leaving(run) or (name in nodes and self.away(name) <= longest)]
        others = {name: node for name, node in nodes.items() if name not in members and self.may_join(name, node)}
        if others and (why := no_joining(run)):
            if others.keys() != self.waiting:
                log.info("%s must wait for the next run: %s", listed(others), why)
            self.waiting = set(others)
            return stay
        return [*stay, *others]

    def may_join(self, name: str, node: NodeInfo | None) -> bool:
        before = self.unfit.get(name, [])
        fresh = node is not None and node.last_activated_at not in before and len(before) < TRIES
        return fresh and name in (self.online or ())

    def refuse(self, why: Mapping[str, str]) -> None:
        """These could not join a run. They may try again once they have come online anew, a few times."""
        for name, node in self.look().items():
            if name in why and node is not None:
                self.unfit.setdefault(name, []).append(node.last_activated_at)
                log.error("%s cannot join this run: %s", name, why[name])

    def taken_away(self, names: Collection[str]) -> set[str]:
        """Of these, whose keys are no longer here; looked up only when the keys have changed."""
        now = (self.deployment.folder / "keys").stat().st_mtime_ns
        if now == self.keys_at:
            return set()
        self.keys_at = now
        return set(names) - self.deployment.sites().keys()
