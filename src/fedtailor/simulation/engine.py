"""What the round loop asks of an engine besides running passes: what they cost, and how clients do in tests."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..client.job import ClientState, Job, Task
from ..client.states import ClientStates
from ..client.step import StepTrace
from ..core.types import Params, Pass, Reply, Server
from ..evaluation.metrics import Score, Scores
from ..evaluation.pseudo_labels import Quality
from ..evaluation.testing import Said
from ..privacy.ledger import Ledger
from ..privacy.releases import Releases
from ..settings.engines import ENGINES
from .build import Experiment


@dataclass(frozen=True)
class StepLog:
    """What one step of a client cost."""

    round: int  # from 0, as in Server
    client: int
    pass_name: str
    samples: int
    weight: float | None  # None: nobody but the client knows
    bytes_down: int
    bytes_up: int
    seconds: float
    dropped: str = ""  # why it does not count; empty: it does

    def row(self, name: str) -> dict[str, Any]:
        """As a line of clients.jsonl, with the client's name; rounds are counted from 1 there, as in every record."""
        rest = {key: value for key, value in vars(self).items() if key not in {"round", "client", "pass_name"}}
        return {"round": self.round + 1, "client": name, "pass": self.pass_name, **rest}


@dataclass(frozen=True)
class Evaluation:
    """One test of everything there is."""

    shared: Score  # the server's model; where the server has no test pictures, the mean of what clients found
    clients: Scores  # every client's own model on its own test pictures
    untuned: Score | None = None  # CLIP as it is on clients' own test pictures, where only they can tell
    said: Said | None = None  # picture by picture, where that is known here


class TooFewReplies(Exception):  # noqa: N818  # as it reads
    """The round does not count."""


class Engine(ABC):
    """Runs a pass on every client of a cohort (core.types.Each). Clients are in this process, or anywhere else."""

    oversample: float = 0.0  # how many more clients than needed are asked, as a share of those

    def __init__(self, job: Job, clients: Mapping[int, ClientState] | None = None) -> None:
        self.job, self.clients = job, ClientStates(clients)  # of remote clients, a state is only its version and mark
        self.log: list[StepLog] = []  # since whoever reads it last cleared it
        self.trace: list[StepTrace] | None = None  # the same in full, where someone wants it
        self.releases = Releases()  # in the round under way

    @abstractmethod
    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]: ...

    @abstractmethod
    def evaluate(self, experiment: Experiment, server: Server) -> Evaluation: ...

    @abstractmethod
    def pseudo_labels(self, experiment: Experiment) -> Quality | None:
        """How good pseudo-labels are, as far as anybody knows."""

    def tasks(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None
    ) -> dict[int, Task]:
        """What goes down to each client, in client order."""
        name, scopes = self.job.pass_name(pass_), self.job.scopes
        return {
            k: Task(name, server.round, server.params_for(k, scopes), (inbox or {}).get(k, {})) for k in sorted(cohort)
        }

    @abstractmethod
    def pictures(self) -> Mapping[int, int]:
        """How many each client has to train on, of those who have said."""

    def ledger(self, server: Server) -> Ledger | None:
        """What clients have released until now, if that is counted."""
        job = self.job
        return Ledger.of(job.privacy, server, job.cohort, self.releases, job.method.local, self.pictures())

    def drain_log(self) -> list[StepLog]:
        log, self.log = self.log, []
        return log

    def open(self) -> None:  # noqa: B027  # nothing to do for most
        """Before the first round."""

    def begin_round(self, invited: Collection[int], wanted: int) -> None:  # noqa: B027  # nothing to do for most
        """Of these clients, the first so many to answer are enough."""

    def committed(self) -> None:  # noqa: B027  # nothing to do for most
        """A checkpoint was written: the run will never go back to a state before the one before it."""

    def close(self) -> None:  # noqa: B027  # nothing to do for most
        """After the last round."""


MakeEngine = Callable[[Experiment, Mapping[int, ClientState] | None, Path | None], Engine]


def make_engine(
    experiment: Experiment, clients: Mapping[int, ClientState] | None = None, folder: Path | None = None
) -> Engine:
    """The engine that the run's settings name. Remote clients of a simulation keep their states under the folder."""
    make: MakeEngine = import_module(ENGINES[experiment.run.engine].module).make_engine
    return make(experiment, clients, folder)
