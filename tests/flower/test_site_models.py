"""After a run each site has a model folder of its own, which answers as the run's own tests did."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from deployed import SITES, write_data

import fedtailor
from fedtailor.base.errors import UserError
from fedtailor.evaluation.testing import client_logits, in_chunks, score_client, score_zero_shot, shared_logits
from fedtailor.flower.client import open_site
from fedtailor.flower.models import SiteModels
from fedtailor.flower.sites import server_experiment
from fedtailor.remote import client as site_module
from fedtailor.remote.audit import read_lines
from fedtailor.remote.client import RemoteClient, StateFiles
from fedtailor.remote.engine import RemoteEngine
from fedtailor.remote.messages import ModelReply, ModelRequest, Refusal, decode, encode
from fedtailor.remote.policy import ANYTHING, SitePolicy
from fedtailor.runs import model_folder
from fedtailor.runs.folder import RunFolder
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import Experiment, build
from fedtailor.use.model_file import read_facts
from fedtailor.use.pictures import Pictures
from remote import RUN, Fault, Killed, RemoteWorld, says, unheard

MEMBERS = tuple(f"client-{k}" for k in range(SITES))
BRIEF: dict[str, dict[str, Any]] = {
    "capt": {"method.bandit": False, "method.period": 5, "method.last": False},
    "fedpurel": {"method.T_p": 1},
    "fedcopl": {"local.span": 4},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("places") / "data")


class Places(RemoteWorld):
    """Sites with pictures in folders of their own, and a server with a run folder, in one process."""

    def __init__(
        self, folder: Path, data: Path, method: str, policy: SitePolicy = ANYTHING, name: str = "", **more: Any
    ) -> None:
        small = {
            "rounds": 2,
            "every": 2,
            "epochs": 1,
            "batch": 8,
            "threads": 1,
            "fraction": 1.0,
            **BRIEF.get(method, {}),
        }
        self.settings = {**small, **more}
        at = {"data": f"folder:{data / 'server'}", "clients": SITES, "engine": "flower"}
        self.data, self.name = data, name
        super().__init__(server_experiment(make_run(method, {**self.settings, **at})), folder, policy=policy)

    def engine(self, clients: Any = None) -> RemoteEngine:
        self.made = super().engine(clients)
        self.made.invitation = self.made.invitation.model_copy(update={"name": self.name})
        return self.made

    def site(self, k: int) -> RemoteClient:
        where = f"folder:{self.data / f'site-{k}'}"
        return open_site(self.folder / f"client-{k}", self.policy, where, server="here")

    def in_one_place(self) -> Experiment:
        """The same federation, all of it here."""
        at = {"data": f"csv:{self.data / 'sites.csv'}", "data.partition": "site", "clients": SITES}
        return build(make_run(self.experiment.run.method.name, {**self.settings, **at}))

    def finished(self) -> Path:
        """A run folder, its rounds done."""
        store = RunFolder.create(self.folder / "run", self.experiment.run, {})
        list(self.train(store))
        store.close()
        return store.folder

    def give(self, run: Path, seconds: float = 60.0) -> str:
        def make(experiment: Experiment, clients: Any, at: Path | None) -> RemoteEngine:
            return self.engine(clients)

        return SiteModels(run, MEMBERS).hand_over(self.experiment, make, seconds)

    def model(self, k: int) -> Path:
        (folder,) = (self.folder / f"client-{k}" / "models").iterdir()
        return folder

    def states(self, k: int) -> StateFiles:
        return StateFiles(self.folder / f"client-{k}" / "state" / RUN)


def asked(folder: Path, paths: list[Path], client: str | None) -> torch.Tensor:
    return torch.cat([answers.logits for answers in fedtailor.load(folder).answers(Pictures(paths), client)])


@pytest.mark.parametrize("method", ["capt", "fedpurel", "fedcopl", "local"])
def test_answers_are_those_of_the_run(method: str, data: Path, tmp_path: Path) -> None:
    """Of the shared model and of the site's own, on the site's own test pictures and all others."""
    there = Places(tmp_path, data, method)
    run = there.finished()
    assert there.give(run) == "client-0, client-1, client-2 have their models"
    here, (server, ledger) = there.in_one_place(), RunFolder(run).saved()
    job, tests = here.job, here.tests
    images: Any = here.federation.dataset.test.images
    paths = [images.root / path for path in images.paths]
    shared = shared_logits(job, server)
    for k in range(SITES):
        state = there.states(k).read(ledger[k].version, ledger[k].state_id)
        own = torch.cat(list(in_chunks(client_logits(job, server, k, state), tests.features, tests.everything)))
        torch.testing.assert_close(asked(there.model(k), paths, "own"), own, rtol=1e-5, atol=1e-5)
        if shared is not None:
            found = torch.cat(list(in_chunks(shared, tests.features, tests.everything)))
            torch.testing.assert_close(asked(there.model(k), paths, None), found, rtol=1e-5, atol=1e-5)
        else:
            with pytest.raises(UserError, match="share no model"):
                asked(there.model(k), paths, None)
        facts = read_facts(there.model(k))
        told = score_client(job, server, k, state, tests).row(here.federation.class_names)
        assert facts.scores["personal"] == told
        assert facts.scores["zero_shot"]["overall"] == overall(here, k)
    clustered = [name for name, scope in job.scopes.items() if scope.cluster]
    downs = [server.params_for(k, job.scopes) for k in range(SITES)]
    assert bool(clustered) == any(down[name] is not server.params[name] for down in downs for name in clustered)


def overall(here: Experiment, k: int) -> float | None:
    return score_zero_shot(here.job, here.tests.of_client(k))[0].overall


@pytest.fixture(scope="module")
def over(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Places:
    """A federation whose run is over, and whose sites have no model yet."""
    there = Places(tmp_path_factory.mktemp("over"), data, "promptfl")
    there.finished()
    return there


@pytest.fixture
def there(over: Places, data: Path, tmp_path: Path) -> Places:
    """The same, for a test that spoils it."""
    shutil.copytree(over.folder, tmp_path / "copy")
    return Places(tmp_path / "copy", data, "promptfl")


def test_who_is_away_gets_it_when_it_is_back(there: Places) -> None:
    """Also if the server is another by then; who has it is not asked again."""
    run = there.folder / "run"
    there.transport.away[1] = 100.0
    assert there.give(run) == "client-0, client-2 have their models; client-1 gets its own later (it is not there)"
    assert SiteModels(run).owed == ["client-1"]
    there.clock.now = 100.0
    assert there.give(run) == "client-0, client-1, client-2 have their models"
    assert [sent.client for sent in there.transport.sent if sent.kind == "query.model"] == [0, 2, 1]
    assert fedtailor.load(there.model(1)).has_own("own")


def test_a_site_of_another_version_gets_it_once_it_is_upgraded(there: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    run = there.folder / "run"
    with monkeypatch.context() as before:
        before.setattr(site_module, "__version__", "0.0.7")
        told = there.give(run)
    why = f"it has fedtailor 0.0.7, this server {fedtailor.__version__}: upgrade it"
    assert told == "; ".join(f"client-{k} gets its own later ({why})" for k in range(SITES))
    assert there.clock.now < 10
    for k in range(SITES):
        there.transport.restart(k)
    assert there.give(run) == "client-0, client-1, client-2 have their models"


def test_nobody_is_waited_for_longer_than_that(there: Places) -> None:
    """A lost reply: the site has its model, and gets it once more."""
    run = there.folder / "run"
    there.transport.faults = [Fault(unheard, client=2, kind="query.model", times=1)]
    assert there.give(run, seconds=30).endswith("client-2 gets its own later (late: no reply in time)")
    assert 30 <= there.clock.now < 40
    before = (there.model(2) / "model.json").read_bytes()
    assert there.give(run) == "client-0, client-1, client-2 have their models"
    assert (there.model(2) / "model.json").read_bytes() == before


def test_a_site_that_is_killed_while_it_writes(there: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is read as a model is there, and the next time it is whole."""
    run, real = there.folder / "run", model_folder.write_atomic

    def killed(path: Path, data: bytes) -> None:
        if path.name == "model.json":
            raise Killed
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(model_folder, "write_atomic", killed)
        assert "have their models" not in there.give(run, seconds=10)
    parts = [path.name for path in (there.folder / "client-0" / "models").iterdir()]
    assert parts == [f"{RUN[:8]}-{RUN[:8]}.part"]
    assert there.give(run) == "client-0, client-1, client-2 have their models"
    assert fedtailor.load(there.model(0)).has_own("own")


def test_a_site_that_keeps_no_models(over: Places, data: Path, tmp_path: Path) -> None:
    """It is not asked again."""
    shutil.copytree(over.folder, tmp_path / "copy")
    there = Places(tmp_path / "copy", data, "promptfl", ANYTHING.model_copy(update={"models": False}))
    told = there.give(there.folder / "run")
    assert told == "; ".join(f"{site}: its policy keeps no models of runs" for site in MEMBERS)
    assert SiteModels(there.folder / "run").owed == []
    assert not (there.folder / "client-0" / "models").exists()


def test_a_site_that_has_lost_its_state(there: Places, caplog: pytest.LogCaptureFixture) -> None:
    """It has what all share, as its own too."""
    for _, path in there.states(0).held():
        path.unlink()
    assert there.give(there.folder / "run") == "client-0, client-1, client-2 have their models"
    assert not fedtailor.load(there.model(0)).has_own("own")
    assert "is not here; of this run there are: none; the model is what all share" in caplog.text


def test_a_site_that_says_anything_else_costs_the_others_nothing(there: Places) -> None:
    """Also that its state is lost, which ends a run that goes on."""

    def lost(data: bytes) -> bytes:
        reply, _ = decode(data)
        assert isinstance(reply, ModelReply)
        return encode(Refusal(request_id=reply.request_id, why="lost-state"))

    there.transport.faults = [Fault(says(lost), client=0, kind="query.model")]
    told = there.give(there.folder / "run")
    assert told.startswith(
        "client-1, client-2 have their models; client-0 gets its own later (it does not have the state"
    )


@pytest.mark.parametrize("harm", ["NaN", "shape", "cluster", "missing"])
def test_what_is_no_model_of_this_run_is_refused(harm: str, there: Places) -> None:
    """As is everything else that a server sends."""
    run, site = there.folder / "run", there.site(0)
    server, ledger = RunFolder(run).saved()
    params, cluster = dict(server.params), dict[str, torch.Tensor]()
    (name,) = params
    if harm == "NaN":
        params[name] = params[name] * float("nan")
    elif harm == "shape":
        params[name] = params[name][:1]
    elif harm == "cluster":
        cluster = dict(params)
    else:
        params = {}
    asked = {"run": RUN, "client": 0, "request_id": "00000000-1", "version": ledger[0].version}
    data = encode(ModelRequest(**asked, state_id=ledger[0].state_id), params=params, cluster=cluster)
    reply, _ = decode(site.handle(data))
    assert isinstance(reply, Refusal)
    assert reply.why == "beyond"
    assert not (there.folder / "client-0" / "models").exists()


def test_it_says_how_it_does_here(there: Places, caplog: pytest.LogCaptureFixture) -> None:
    """Before and after, overall in the log and by class in the card; and nothing of it goes to the server."""
    caplog.set_level("INFO")
    there.give(there.folder / "run")
    facts = read_facts(there.model(0))
    scores, count = facts.scores, sum(facts.scores["pictures"].values())
    told = f"accuracy on {count} test pictures here: CLIP as it is {scores['zero_shot']['overall']:.1f}%, "
    told += f"the shared model {scores['global']['overall']:.1f}%, this site's own {scores['personal']['overall']:.1f}%"
    assert f"finished; the model is in {there.model(0)}; {told}" in caplog.text
    card = (there.model(0) / "README.md").read_text()
    for name, n in scores["pictures"].items():
        cells = [scores[model]["per_class"][name] for model in ("zero_shot", "global", "personal")]
        line = f"| {name} | {n} | {' | '.join(f'{cell:.2f}' for cell in cells if cell is not None)} |"
        assert (line in card) == bool(n)
    assert "pictures of this site and those of the run's other sites" in card
    assert "this site's own model has otherwise (`--client own`)" in card
    assert "the other sites' own models never left them" in card
    *_, last = read_lines(there.folder / "client-0" / "state" / "audit")
    assert (last.facts["what"], last.facts["tensors"]) == ("model-reply", [])
    assert last.facts["bytes"] < 400


def test_a_site_without_test_pictures(data: Path, tmp_path: Path) -> None:
    for k in range(SITES):
        shutil.copytree(data / f"site-{k}", tmp_path / f"site-{k}", ignore=shutil.ignore_patterns("test"))
    shutil.copytree(data / "server", tmp_path / "server")
    there = Places(tmp_path / "fed", tmp_path, "promptfl", rounds=1, every=1)
    assert there.give(there.finished()).endswith("have their models")
    assert "Not measured: this site has no test pictures" in (there.model(0) / "README.md").read_text()


def test_what_is_over_is_told_without_sites(there: Places) -> None:
    """A server that was killed after its last round."""
    store, _, _ = RunFolder.reopen(there.folder / "run")
    there.transport.away = dict.fromkeys(range(SITES), 1e9)
    assert list(there.train(store, resuming=True)) == []
    store.close()
    assert there.transport.sent == []
