"""After a run, each of its sites gets the model that it has come to. Who is away gets it when it is back.

`models.json` in the run's folder says what has become of each one's. It is there before the run leaves the queue: so
whatever ends the server, nobody is forgotten. A site that gets its model twice writes the same folder twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from ..base.documents import read_json, sealed
from ..base.files import write_atomic
from ..client.job import ClientState
from ..remote.engine import RemoteEngine
from ..runs.folder import RunFolder
from ..simulation.build import Experiment

MakeRemote = Callable[[Experiment, Mapping[int, ClientState] | None, Path | None], RemoteEngine]
FILE = "models.json"
OWED, KEPT, LEFT = "owed", "kept", "it had left the run"
SECONDS = 60.0  # for those who are there at a run's end, while others may wait for their run
AT_LEISURE = 600.0  # for those who are back, while nobody waits
LOOK, TROUBLE = 5.0, 600.0  # seconds between two looks for such, and how many more after one that failed


class SiteModels:
    """Of one run: site → "owed", "kept", or why it is not kept there. In the order of the sites' client numbers."""

    def __init__(self, folder: Path, members: Iterable[str] = (), gone: Collection[int] = ()) -> None:
        """`gone`: those of the members, by number, who had left before the end."""
        self.folder, self.file = folder, folder / FILE
        told = read_json(self.file, kind=dict[str, str]) if self.file.is_file() else {}
        self.of: dict[str, str] = told or {site: LEFT if k in gone else OWED for k, site in enumerate(members)}

    @property
    def gone(self) -> set[int]:
        return {k for k, state in enumerate(self.of.values()) if state == LEFT}

    @property
    def owed(self) -> list[str]:
        return [site for site, state in self.of.items() if state == OWED]

    def save(self) -> None:
        write_atomic(self.file, sealed(self.of))

    def hand_over(self, experiment: Experiment, make: MakeRemote, seconds: float) -> str:
        """To those who are owed theirs and are there. Returns what came of it, in words."""
        self.save()
        number = {site: k for k, site in enumerate(self.of)}
        server, clients = RunFolder(self.folder).saved()
        engine = make(experiment, clients, self.folder)
        done = engine.hand_over(server, [number[site] for site in self.owed], seconds)
        for site in self.owed:
            if number[site] in done.taken:
                self.of[site] = KEPT
            elif number[site] in done.unfit:
                self.of[site] = done.trouble[number[site]]
        self.save()
        later = {site: done.trouble.get(number[site], "it is not there") for site in self.owed}
        kept = ", ".join(site for site, state in self.of.items() if state == KEPT)
        refused = [f"{site}: {state}" for site, state in self.of.items() if state not in (KEPT, OWED, LEFT)]
        told = [f"{kept} have their models"] if kept else []
        return "; ".join([*told, *refused, *(f"{site} gets its own later ({why})" for site, why in later.items())])
