"""`fedtailor flower server`: the middle of a deployment. A SuperLink carries messages; this process conducts the runs.

To Flower each attempt at a run is a new one. To us it is the same run, resumed from its last checkpoint, whatever ended
the attempt before: a SuperLink that broke, a process that was killed, a machine that was restarted.
"""

import hashlib
import logging
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from flwr.serverapp import Grid

from ..base.errors import UserError
from ..base.files import FolderLock, write_atomic
from ..base.polling import Backoff
from ..base.version import __version__
from ..base.workers import torch_threads
from ..client.job import ClientState
from ..remote.engine import RemoteEngine, Unfit, Watch, run_id, unwatched
from ..remote.members import Members, no_leaving
from ..runs.checkpoint import ROUNDS
from ..runs.execute import about, execute
from ..runs.folder import OtherVersion, RunFolder, check_version
from ..settings.run import Run, read_toml
from ..simulation.build import Experiment
from .attendance import Attendance
from .board import FILE as BOARD
from .board import Board, RunState, now
from .certificates import ending
from .control import control_client, keep_token
from .deployment import Deployment
from .init import DeploymentConfig
from .messages import GridTransport
from .models import AT_LEISURE, LOOK, SECONDS, TROUBLE, MakeRemote, SiteModels
from .private.app import build_fab_from_disk
from .private.grid import RunNotRunningException, grid_over
from .private.tasks import act_as
from .private.wire import (
    Fab,
    ListNodesRequest,
    PullTaskInputRequest,
    RegisterNodeRequest,
    Scalar,
    StartRunRequest,
    UnregisterNodeRequest,
)
from .process import BrokenOff, ManagedProcess, until_signal
from .sites import server_experiment
from .watch import RunWatch
from .worker import SERVER_APP, Runtime

log = logging.getLogger("fedtailor.flower")
UP = 120.0  # seconds that a SuperLink may take to start
WAITING = "waiting for a run to be asked for"
PAUSE = 0.1, 1.0  # seconds between two looks: the first, and at most
IDLE = 5.0  # seconds between two looks at who is there, while no run is under way


class Stopped(Exception):  # noqa: N818  # as it reads
    """The run was taken out of the queue, or this process is to end."""


class OtherMembers(Exception):  # noqa: N818  # as it reads
    """Sites have come or gone: the run goes on from its last checkpoint with those that are there now."""


class Coordinator:
    def __init__(self, deployment: Deployment, listen: str, limit_mb: int) -> None:
        self.deployment, self.over, self.began = deployment, until_signal(), now()
        (deployment.folder / BOARD).unlink(missing_ok=True)  # of a server before this one
        secret, config, folder, flwr = secrets.token_hex(32), deployment.config, deployment.folder, deployment.flwr
        write_atomic(flwr / "secret", secret.encode(), private=True)
        keep_token(deployment.token)
        words = [
            *(where_to_listen(listen, config), str(limit_mb * 1_000_000), str(folder / "keys"), str(deployment.token)),
            *("--host", "127.0.0.1", "--port", str(config.control)),
            *("--ssl-certfile", str(folder / "server.pem"), "--ssl-keyfile", str(folder / "server.key")),
            *("--ssl-ca-certfile", str(folder / "ca.pem"), "--enable-supernode-auth"),
            *("--database", str(flwr / "state.db"), "--disable-runtime-dependency-installation"),
            *("--isolation", "process", "--superexec-auth-secret-file", str(flwr / "secret")),
        ]
        self.superlink = ManagedProcess("fedtailor.flower.superlink", words, folder / "log" / "superlink.log", flwr)
        self.control = control_client(deployment)
        self.admitted: dict[str, bytes] = {}
        self.asked: set[tuple[Path, str, str]] = set()  # run, site and since when: who was offered a model
        self.next_look = 0.0
        self.attendance = Attendance(deployment, self.control)
        self.versions: dict[str, str] = {}
        self.looked = 0.0
        self.runtime = Runtime(deployment.control, secret.encode(), deployment.certificate, SERVER_APP)

    def serve(self) -> None:
        with self.superlink:
            self.admit_sites()
            self.look_around()
            while not self.over.is_set():
                self.admit_changes()
                waiting = self.deployment.waiting()
                if not waiting:
                    self.give_models()
                if not waiting or not self.attempt(waiting[0]):
                    self.look_around()
                    self.over.wait(1.0)

    def look_around(self) -> None:
        """While no run is under way."""
        if time.monotonic() - self.looked < IDLE:
            return
        self.looked = time.monotonic()
        try:
            self.attendance.look()
            self.publish()
        except (httpx.HTTPError, UserError) as error:
            log.warning("cannot see who is there: %s", error)

    def publish(self, run: RunState | None = None, versions: Mapping[str, str] | None = None) -> None:
        """For `status`, /health and /metrics."""
        online = self.attendance.online or ()
        known = {**self.versions, **(versions or {})}
        self.versions = {name: known[name] for name in known if name in online}  # it may come back with another
        sites = {name: name in online for name in self.attendance.names}
        board = Board(at=now(), began=self.began, version=__version__, sites=sites, versions=self.versions, run=run)
        board.write(self.deployment.folder)

    def admit_sites(self) -> None:
        """Let in the sites whose keys are here, and no others, once Flower is there."""
        ends, pause = time.monotonic() + UP, Backoff(*PAUSE)
        while True:
            try:
                self.admit(self.deployment.sites())
                break
            except httpx.HTTPError as error:  # also of one that is about to end, and has another token
                if time.monotonic() > ends or self.over.wait(pause.next()):
                    raise UserError(f"{self.superlink.last_words()}: {error}") from error
        for told in ending(self.deployment.folder):
            log.warning("%s", told)
        told = "ready: %d sites may come in at port %d"
        log.info(told, len(self.admitted), self.deployment.config.port, extra={"now": WAITING})

    def admit(self, keys: dict[str, bytes]) -> None:
        there = {node.public_key: node for node in self.control.ListNodes(ListNodesRequest()).nodes_info}
        known = {key for key, node in there.items() if node.status != "unregistered"}
        for name, key in keys.items():
            if key not in known:
                try:
                    self.control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
                except httpx.HTTPStatusError as error:
                    log.error("%s cannot come in: Flower refuses a key that it has had before (%s)", name, error)
        for key in known - set(keys.values()):
            self.control.UnregisterNode(UnregisterNodeRequest(node_id=there[key].node_id))
        self.admitted = keys

    def admit_changes(self) -> None:
        """Sites whose keys have come or gone since. The gate has looked for itself (gate.py)."""
        if (keys := self.deployment.sites()) == (before := self.admitted):
            return
        try:
            self.admit(keys)
        except httpx.HTTPError as error:
            log.warning("who may come in has changed, but Flower does not answer (%s); trying again", error)
            return
        for told, names in (("may come in", keys.keys() - before), ("no longer", before.keys() - keys)):
            if names:
                log.info("%s: %s", told, ", ".join(sorted(names)))

    def attempt(self, name: str) -> bool:
        """Carry out a run of the queue as far as it goes. Returns whether it is done with."""
        try:
            with self.over.may_break_off():
                self.conduct(name)
            self.deployment.done(name)
            log.info("%s: finished", name, extra={"now": WAITING})
        except (Stopped, BrokenOff):
            later = "; it goes on when the server is started again" if self.over.is_set() else ""
            log.info("%s: stopped%s", name, later, extra={"now": WAITING})
        except OtherMembers:
            log.info("%s: goes on with other members", name)
        except (httpx.HTTPError, RunNotRunningException) as error:
            log.warning("%s: lost touch with Flower (%s); going on from the last checkpoint", name, error)
            return False
        except UserError as error:
            log.error("%s: %s", name, error)
            self.deployment.done(name, str(error))
        except Exception as error:
            log.exception("%s: failed", name)
            self.deployment.done(name, f"{type(error).__name__}: {error}")
        return True

    def conduct(self, name: str) -> None:
        """From the last checkpoint on, with the sites that are there now, until the run is over or others are there."""
        (run, asked), folder = self.deployment.asked(name), self.deployment.runs / name
        resuming = goes_on(folder)
        told = f"{name}: going on from its last checkpoint" if resuming else f"{name}: begins"
        log.info("%s", told, extra={"now": told, "facts": {"run": name}})
        with torch_threads(run.threads):
            began, built = time.perf_counter(), server_experiment(run)
            t = RunFolder(folder).done() + 1 if resuming else 1
            members = Members.read(folder) or Members.first(asked)
            if t <= built.rounds:
                members = self.attendance.following(run, members, t)
            names, gone = members.names, members.gone(t)
            if len(gone) == len(names):
                raise UserError("none of the sites of this run is left")
            experiment = built.with_members(names, gone, members.changes())

            def others_at(done: int) -> None:
                if done < experiment.rounds:
                    following = self.attendance.following(run, members, done + 1)
                    if (following.names, following.gone(done + 1)) != (names, gone):
                        raise OtherMembers

            def wait(seconds: float) -> None:
                self.wait(name, seconds)
                if not no_leaving(run) and self.attendance.taken_away(members.present(t)):
                    raise OtherMembers

            watch = RunWatch(name, names, t - 1, experiment.rounds, self.attendance, self.publish, others_at)
            present = {k: site for k, site in enumerate(names) if k not in gone}
            with self.reached(name, run, present, wait, watch.look, members.newcomers(t)) as make:
                try:
                    store = self.opened(folder, experiment, members)
                    execute(experiment, store, resuming, began, watch, make)
                except Unfit as unfit:
                    if not unfit.why.keys() <= members.newcomers(t):
                        raise
                    self.attendance.refuse({names[k]: why for k, why in unfit.why.items()})
                    members.without(unfit.why, t).write(folder)
                    raise OtherMembers from unfit
                try:
                    models = SiteModels(folder, names, gone)
                    log.info("%s: %s", name, models.hand_over(experiment, make, SECONDS))
                except UserError as error:  # the run is none the worse for it
                    log.error("%s: the sites' models: %s", name, error)

    def opened(self, folder: Path, experiment: Experiment, members: Members) -> RunFolder:
        """The run's folder, where it stands who takes part before anybody does."""
        if (folder / "run.toml").is_file():
            members.write(folder)
            return RunFolder.reopen_with(folder, len(members.names))
        store = RunFolder.create(folder, experiment.run, about(experiment))
        members.write(folder)
        return store

    def give_models(self) -> None:
        """To sites that were away when their run ended, and are back. Once for each time that they come."""
        if time.monotonic() < self.next_look:
            return
        self.next_look, back = time.monotonic() + LOOK, set[tuple[Path, str, str]]()
        try:
            owing = [it for it in map(SiteModels, sorted(self.deployment.runs.iterdir())) if it.owed]
            since = self.online() if owing else {}
            for models in owing:
                back = {(models.folder, site, since[site]) for site in models.owed if site in since} - self.asked
                self.asked |= back
                if back:
                    with self.over.may_break_off():
                        self.bring(models)
        except (Stopped, BrokenOff):
            self.asked -= back
        except (httpx.HTTPError, RunNotRunningException) as error:
            log.warning("models of finished runs: lost touch with Flower (%s)", error)
        except Exception as error:
            log.exception("models of finished runs: %s", error)
            self.next_look += TROUBLE

    def online(self) -> dict[str, str]:
        """The sites that are there, since when."""
        keys = {key: site for site, key in self.deployment.sites().items()}
        nodes = self.control.ListNodes(ListNodesRequest()).nodes_info
        there = [node for node in nodes if node.status == "online" and node.public_key in keys]
        return {keys[node.public_key]: node.last_activated_at for node in there}

    def bring(self, models: SiteModels) -> None:
        """Until a run is asked for."""

        def wait(seconds: float) -> None:
            if self.over.wait(seconds) or self.deployment.waiting():
                raise Stopped

        run, name = read_toml(models.folder / "run.toml"), models.folder.name
        with torch_threads(run.threads):
            experiment = server_experiment(run).with_members([*models.of], models.gone)
            with self.reached(name, run, dict(enumerate(models.of)), wait) as make:
                log.info("%s: %s", name, models.hand_over(experiment, make, AT_LEISURE))

    @contextmanager
    def reached(
        self,
        name: str,
        run: Run,
        sites: Mapping[int, str],
        wait: Callable[[float], None],
        watch: Watch = unwatched,
        newcomers: Collection[int] = (),
    ) -> Iterator[MakeRemote]:
        """What makes the engine that reaches a run's sites, which are given by number."""
        keys = self.deployment.sites()
        numbers = {keys[site]: k for k, site in sites.items() if site in keys}
        with self.started(name, wait) as grid:
            transport = GridTransport(grid, lambda node: numbers.get(node.public_key), run.plan.limit * 1e6)

            def make(made: Experiment, clients: Mapping[int, ClientState] | None, at: Path | None) -> RemoteEngine:
                return RemoteEngine(
                    made, clients, transport, run_id(at), name, wait=wait, watch=watch, newcomers=newcomers
                )

            yield make

    @contextmanager
    def started(self, name: str, wait: Callable[[float], None]) -> Iterator[Grid]:
        """A run in Flower's eyes, whose ServerApp is this process."""
        with warnings.catch_warnings(action="ignore"):  # Flower's own, of no use to anyone here
            fab = build_fab_from_disk(self.deployment.root / "app")
        app = Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab)
        request = StartRunRequest(fab=app, override_config={"run": Scalar(string=name)})
        started, pause = self.control.StartRun(request).run_id, Backoff(*PAUSE)
        while (task := self.runtime.acquire()) is None or task.run != started:
            if task is not None:  # of an attempt that ended before its task was taken
                with self.runtime.task(task.token):
                    log.info("an attempt that never began is ended")
            wait(pause.next())
        with self.runtime.task(task.token) as client:
            given = client.PullTaskInput(PullTaskInputRequest())
            act_as(given.task_id, given.run.run_id, given.context.node_id)
            address, certificate = self.deployment.control, self.deployment.certificate
            yield grid_over(client, given.run.run_id, address, certificate, task.token)

    def wait(self, name: str, seconds: float) -> None:
        self.admit_changes()
        if self.over.wait(seconds) or not self.deployment.is_asked(name):
            raise Stopped


def goes_on(folder: Path) -> bool:
    """Whether a run was begun before. One of another version is refused, unless it has no round yet: it begins anew."""
    if not (folder / "run.toml").is_file():
        return False
    try:
        check_version(folder)
    except OtherVersion as other:
        if (folder / ROUNDS).is_file() and (folder / ROUNDS).stat().st_size:
            raise
        log.warning("%s: no round was done yet, so it begins anew (%s)", folder.name, other)
        shutil.rmtree(folder)
        return False
    return True


def where_to_listen(listen: str, config: DeploymentConfig) -> str:
    """At the federation's port, unless the address has one of its own."""
    where = listen if re.fullmatch(r"(\[.*\]|[^:]*):\d+", listen) else f"{listen}:{config.port}"
    if where.endswith(f":{config.control}"):
        raise UserError(f"--listen {listen}: {config.control} is the control port, for this machine alone")
    return where


def run_server(deployment: Deployment, listen: str, limit_mb: int) -> None:
    """Serve until a signal ends it."""
    with FolderLock(deployment.folder, "server"):
        server = Coordinator(deployment, listen, limit_mb)
        server.serve()
    server.over.end()
