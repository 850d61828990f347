"""Gaussian privacy: where its noise comes from, what it does to a reply, what it costs, and when a run has to end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import kstest, norm

from fedtailor.base.errors import UserError
from fedtailor.client.codec import client_to_bytes, to_bytes
from fedtailor.client.job import ClientState, Task
from fedtailor.client.step import noise_of
from fedtailor.core.optim import LocalTraining
from fedtailor.core.statistics import Form, class_counts
from fedtailor.core.types import Params, Pass, Reply, Server
from fedtailor.methods import METHODS
from fedtailor.privacy.base import Leaving
from fedtailor.privacy.gaussian import Gaussian
from fedtailor.privacy.ledger import Ledger, of_cohorts, of_releases
from fedtailor.privacy.noise import Noise, client_secret, kept_secret, new_secret, request_key, seeded_secret
from fedtailor.privacy.releases import Releases
from fedtailor.runs.callback import Callback
from fedtailor.runs.execute import resume, run, train
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.result import spent_privacy
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import MakeEngine, make_engine
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import RoundRecord, run_round
from world import CLIENTS, world

# --- noise ------------------------------------------------------------------------------------------------------------


def test_noise_is_normal() -> None:
    """A hundred thousand numbers by Kolmogorov and Smirnov; and no two streams, or draws of one, are alike."""
    noise, like = Noise(b"one"), torch.empty(100_000)
    first, second = noise(like), noise(like)
    assert kstest(first.numpy(), "norm").pvalue > 1e-3
    assert abs(float((first * second).mean())) < 0.02
    assert abs(float((first * Noise(b"two")(like)).mean())) < 0.02


def test_the_same_request_gets_the_same_noise_and_any_other_another() -> None:
    """So that neither asking again nor asking a little differently takes anything away from it."""
    secret, params = seeded_secret(3, 1), {"w": torch.arange(4.0)}

    def key(about: tuple[str | int, ...] = (2, "train"), secret: bytes = secret, **groups: Params) -> bytes:
        return request_key(secret, about, {"params": params, "inbox": {}, **groups})

    assert key() == key()
    moved = {"w": params["w"] + torch.tensor([0.0, 0.0, 0.0, 1e-6])}
    others = [
        key((3, "train")), key((2, "census")), key(secret=seeded_secret(3, 2)), key(secret=seeded_secret(4, 1)),
        key(params=moved), key(params={"v": params["w"]}), key(params={"w": params["w"].reshape(2, 2)}),
        key(inbox={"x": torch.zeros(1)}), key(params={"w": params["w"].double()}), key(secret=new_secret()),
    ]  # fmt: skip
    assert len({key(), *others}) == 1 + len(others)


def one_pass(generator: str = "secret") -> tuple[Params, ClientState, bytes, bytes]:
    """Client 1's update in the first round of a federation with noise; its state; the bits of what it sent; the secret
    of this place."""
    experiment = world(privacy="gaussian", **{"privacy.generator": generator})
    job, engine = experiment.job, make_engine(experiment)
    server = job.first_server()
    reply = engine(job.method.train, server, [1])[1]
    change = {n: v - server.params[n] for n, v in reply.params.items()}
    assert isinstance(engine, LocalEngine)
    return change, engine.clients[1], to_bytes({"params": reply.params, "stats": reply.stats}, {}), engine.secret


def test_the_servers_seed_does_not_tell_the_noise() -> None:
    """Two runs of one seed differ, unless the noise is to come from the seed, which run.toml then says."""
    (a, *_, sent, secret), (b, *_) = one_pass(), one_pass()
    assert not torch.equal(a["text.ctx"], b["text.ctx"])
    assert len(secret) == 32
    assert secret not in sent
    assert client_secret(secret, 1) not in sent
    (a, *_), (b, *_) = one_pass("seeded"), one_pass("seeded")
    assert torch.equal(a["text.ctx"], b["text.ctx"])


def test_a_secret_lasts_and_no_pass_sees_it(tmp_path: Path) -> None:
    """It is in a file of its own, for its owner alone; each client's is another."""
    _, state, _, secret = one_pass()
    assert secret not in client_to_bytes(state)
    assert client_secret(secret, 1) not in client_to_bytes(state)
    kept = kept_secret(tmp_path)
    assert kept_secret(tmp_path) == kept == (tmp_path / "secret").read_bytes()
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0
    assert len({kept, client_secret(kept, 1), client_secret(kept, 2)}) == 3
    (tmp_path / "secret").write_bytes(kept[:5])
    with pytest.raises(UserError, match=r"secret is damaged: 5 bytes, not 32"):
        kept_secret(tmp_path)


def test_another_state_gets_other_noise() -> None:
    """Else a server could ask for the same once more, from an older state, and subtract."""
    experiment = world("local", privacy="gaussian", **{"privacy.generator": "seeded"})
    job, task = experiment.job, Task("train", 0, {})

    def draw(client: ClientState) -> float:
        return float(noise_of(job, 1, task, client, b"")(torch.zeros(1)))

    assert draw(ClientState()) == draw(ClientState(version=3, tuned={"w": torch.ones(1)}))
    states = ClientState(), ClientState({"w": torch.ones(1)}), ClientState({}, {"w": torch.ones(1)})
    assert len({draw(state) for state in states}) == 3


# --- the mechanism ----------------------------------------------------------------------------------------------------


def leaving(zero: bool = False) -> Leaving:
    noise = (lambda like: torch.zeros(like.shape, dtype=torch.float64)) if zero else Noise(b"key")
    return Leaving({"w": torch.ones(2)}, {"n": class_counts(2), "s": Form(torch.zeros(1))}, 10, 4, noise)


REPLY = Reply({"w": torch.tensor([4.0, 5.0])}, 9.0, {"n": torch.tensor([3, 4]), "s": torch.tensor([12.0])})


def test_clipping_by_hand() -> None:
    """The change (3, 4) and the statistic 12 are 13 long together: clipped to 1.3, a tenth of each is left. Counts of 3
    and 4 are 5 long: clipped to 2.5, half of them, rounded. All weigh 1."""
    out = Gaussian(clip=1.3, noise=1, counts_clip=2.5)(REPLY, leaving(zero=True))
    assert out.params["w"].tolist() == pytest.approx([1.3, 1.4])
    assert out.stats["s"].tolist() == pytest.approx([1.2])
    assert out.stats["n"].tolist() == [2, 2]  # 1.5 and 2
    assert out.stats["n"].dtype == torch.int64
    assert out.weight == 1.0
    short = Gaussian(clip=100, noise=1, counts_clip=100)(REPLY, leaving(zero=True))
    assert short.params["w"].tolist() == [4.0, 5.0]
    assert short.stats["n"].tolist() == [3, 4]


@pytest.mark.parametrize(("against", "std"), [("server", 0.6), ("others", 0.3)])
def test_how_much_noise(against: str, std: float) -> None:
    """σ C at each client; shared by a cohort of four, half of it, so that their sum has σ C."""
    mechanism, like = Gaussian(clip=0.2, noise=3.0, against=against), torch.zeros(20_000)
    out = mechanism(Reply({"w": like}), Leaving({"w": like}, {}, 10, 4, Noise(b"key")))
    assert float(out.params["w"].std()) == pytest.approx(std, rel=0.03)


def test_noisy_counts_stay_in_their_range() -> None:
    out = Gaussian(counts_noise=50.0)(REPLY, leaving())
    assert 0 <= int(out.stats["n"].min()) <= int(out.stats["n"].max()) <= 10


def test_what_is_left_out_may_not_tell() -> None:
    """CReFF's clients send gradients of the classes that they have: their names alone would be a label list."""
    forms = {"0.bias": Form(torch.zeros(1), optional=True), "1.bias": Form(torch.zeros(1), optional=True)}
    with pytest.raises(UserError, match=r"which statistics a client leaves out \(1\.bias …\) would tell"):
        Gaussian()(Reply({}, stats={"0.bias": torch.ones(1)}), Leaving({}, forms, 10, 4, Noise(b"key")))


def test_a_cohorts_noise_has_to_stay_together() -> None:
    """Averages over a part of a cohort have less noise than is counted."""
    others = {"privacy": "gaussian", "privacy.against": "others"}
    with pytest.raises(UserError, match=r"noise of a whole cohort, and capt averages in clusters"):
        make_run("capt", others)
    with pytest.raises(UserError, match=r"and robust=krum leaves some of it out"):
        make_run("promptfl", {**others, "robust": "krum"})
    assert make_run("capt", {"privacy": "gaussian"}).privacy.name == "gaussian"


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_epsilon_of_a_gaussian_by_hand() -> None:
    """Balle and Wang 2018: δ(ε) = Φ(1/2s − ε s) − e^ε Φ(−1/2s − ε s), s the standard deviation in units of the
    sensitivity, which is 2; n releases are one with a noise of 1/√n."""
    for noise, times in ((4.0, 1), (4.0, 4), (10.0, 40)):
        s, epsilon = noise / math.sqrt(times) / 2, of_releases(noise, times, 1e-5)
        half = 1 / (2 * s)
        delta = norm.cdf(half - epsilon * s) - math.exp(epsilon) * norm.cdf(-half - epsilon * s)
        assert delta == pytest.approx(1e-5, rel=1e-3)
    assert of_releases(4.0, 0, 1e-5) == 0.0
    assert of_releases(0.0, 1, 1e-5) == math.inf


def test_epsilon_of_cohorts() -> None:
    """Of everyone, with all of the noise, it is the Gaussian's, up to Rényi accounting; a cohort that is drawn tells
    less; who drops out adds no noise."""
    whole = of_cohorts(8.0, ((20, 10),), 20, 20, 1e-5)
    assert of_releases(8.0, 10, 1e-5) <= whole <= 1.3 * of_releases(8.0, 10, 1e-5)
    assert of_cohorts(8.0, ((5, 10),), 20, 5, 1e-5) < whole
    assert of_cohorts(8.0, ((4, 10),), 20, 5, 1e-5) > of_cohorts(8.0, ((4, 10),), 20, 4, 1e-5)


def test_what_is_released_is_counted() -> None:
    """CAPT, all clients: an update and a histogram in each round, a histogram before the first, tables of validation
    after each aggregation."""
    experiment = world("capt", "coupled+class_prompt", fraction=1.0, rounds=2, privacy="gaussian")
    engine, server = make_engine(experiment), experiment.job.first_server()
    passes = []
    for _ in range(2):
        server, _ = run_round(experiment, server, engine)
        passes += [step.pass_name for step in engine.drain_log() if step.client == 0]
    ledger = engine.ledger(server)
    assert ledger is not None
    assert ledger.released["privacy.clients.updates"].tolist() == [passes.count("train")] * CLIENTS
    assert ledger.released["privacy.clients.counts"].tolist() == [len(passes)] * CLIENTS
    assert ledger.released["privacy.sizes.updates"].tolist() == [0, 0, 0, 0, 2]
    assert ledger.row()["epsilon"] == pytest.approx(of_releases(1.0, 2, 1e-5))


@pytest.mark.parametrize("against", ["server", "others"])
def test_a_run_ends_before_it_exceeds_its_budget(against: str) -> None:
    """With a budget of exactly three rounds of ten, there are three, the third is tested, and the model is its."""
    sizes = ((CLIENTS, 3),)
    three = of_releases(20.0, 3, 1e-5) if against == "server" else of_cohorts(20.0, sizes, CLIENTS, CLIENTS, 1e-5)
    budget = {"privacy.noise": 20.0, "privacy.against": against, "privacy.epsilon": three * 1.001}
    experiment = world(rounds=10, fraction=1.0, every=10, privacy="gaussian", **budget)
    records = list(train(experiment))
    assert [record.round for record in records] == [1, 2, 3]
    told = [record.privacy or {} for record in records]
    assert told[2]["epsilon"] == pytest.approx(three)
    assert [it["spent"] for it in told] == [False, False, True]
    assert [record.shared is not None for record in records] == [False, False, True]


def test_closing_rounds_which_tell_nothing_come_after_all() -> None:
    """FedPuReL: the shared part ends early, and clients still get what is their own."""
    one = of_releases(20.0, 1, 1e-5) * 1.001
    experiment = world("fedpurel", rounds=5, privacy="gaussian", **{"privacy.noise": 20.0, "privacy.epsilon": one})
    records = list(train(experiment))
    assert [record.round for record in records] == [1, 6]
    assert (records[1].privacy or {})["epsilon"] <= one


def test_what_was_spent_outlives_a_stop(tmp_path: Path) -> None:
    """Killed after the second round and resumed: the budget is that of a run straight through."""
    settings: dict[str, Any] = {"privacy": "gaussian", "privacy.noise": 20.0, "rounds": 4, "clients": 4, "seed": 1}
    settings |= {"data": "drawn", "data.partition": "iid", "threads": 1, "batch": 256, "data.most": 8}

    class Stop(Callback):
        def on_round(self, record: RoundRecord, rounds: int) -> None:
            if record.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("promptfl", settings, out=tmp_path / "run", callback=Stop())
    told = resume(tmp_path / "run").summary["privacy"]
    assert told["epsilon"] == pytest.approx(of_releases(20.0, 4, 1e-5))
    assert told["rounds"] == 4


class Killed(LocalEngine):
    """Everything is gone once clients have answered a pass in the second round."""

    def __call__(self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Any = None) -> dict[int, Reply]:
        self.replies = super().__call__(pass_, server, cohort, inbox)
        if server.round == 1:
            raise KeyboardInterrupt
        return self.replies


class Told(LocalEngine):
    """Keeps the first replies."""

    replies: dict[int, Reply] | None = None

    def __call__(self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Any = None) -> dict[int, Reply]:
        found = super().__call__(pass_, server, cohort, inbox)
        self.replies = self.replies or found
        return found


def test_killed_between_release_and_checkpoint(tmp_path: Path) -> None:
    """Clients asked the same once more say the same to the bit, those too that had never been asked before; so nothing
    new is released, and ε is that of a run straight through."""
    experiment = world(rounds=2, fraction=0.5, privacy="gaussian", **{"privacy.noise": 20.0})
    made: list[LocalEngine] = []

    def engine(kind: type[LocalEngine]) -> MakeEngine:
        def make(it: Experiment, clients: Mapping[int, ClientState] | None, folder: Path | None) -> LocalEngine:
            made.append(kind(it.job, it.client_data, clients, 1, folder))
            return made[-1]

        return make

    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    with pytest.raises(KeyboardInterrupt):
        list(train(experiment, store, make=engine(Killed)))
    noted = json.loads((store.folder / "releases.json").read_text())
    assert noted["round"] == 1
    assert sorted(of for of, _ in noted["clients"].values()) == sorted(made[0].replies)  # type: ignore[attr-defined]
    (record,) = train(experiment, store, resuming=True, make=engine(Told))
    before, after = (engine.replies for engine in made)  # type: ignore[attr-defined]
    assert before.keys() == after.keys() > before.keys() & set(store.rounds()[0]["cohort"])
    assert all(torch.equal(before[k].params["text.ctx"], after[k].params["text.ctx"]) for k in before)
    assert record.privacy == [*train(world(run=experiment.run))][-1].privacy
    store.close()


def test_a_round_that_the_budget_ends_half_way_is_counted(tmp_path: Path) -> None:
    """CAPT, with a budget for two histograms a client: one before the first round and one in it, and none for the table
    of validation after it. The round counts for the budget, and for nothing else; resumed, the run is over."""
    settings = {"privacy": "gaussian", "privacy.counts_noise": 20.0}
    settings |= {"privacy.counts_epsilon": of_releases(20.0, 2, 1e-5) * 1.001}
    experiment = world("capt", "coupled+class_prompt", fraction=1.0, rounds=3, **settings)
    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    (record,) = train(experiment, store)
    told = record.privacy or {}
    assert told["counts_epsilon"] == pytest.approx(of_releases(20.0, 2, 1e-5))
    assert told["epsilon"] == pytest.approx(of_releases(1.0, 1, 1e-5))
    assert told["spent"]
    assert record.cohort == []
    assert set(record.dropped) == {"0", "1", "2", "3"}
    assert record.shared is not None
    saved = store.resume()
    assert saved is not None
    assert all(torch.equal(value, saved[0].params[n]) for n, value in experiment.job.first_server().params.items())
    assert saved[0].state["privacy.clients.counts"].tolist() == [2] * CLIENTS
    assert (spent_privacy(store.rounds()) or {})["rounds"] == 0
    assert list(train(experiment, store, resuming=True)) == []
    store.close()


def test_a_release_is_counted_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    """A round is tried twice: the first pass is the same again, the second another, as another client was lost. Noted
    on disk before it is sent; in the next round it is history."""
    server, forms = Server(0, {}, clients=3), {"n": class_counts(2)}
    counted = {k: Reply({}, stats={"n": torch.tensor([1, 2])}) for k in range(3)}
    trained = {k: Reply({"w": torch.ones(1)}) for k in range(3)}

    def ledger(round_: int = 0) -> Ledger:
        releases, at = Releases(tmp_path / "releases.json"), replace(server, round=round_)
        found = Ledger.of(Gaussian(noise=20), at, 3, releases, LocalTraining(), {})
        assert found is not None
        return found

    first = ledger()
    first.ask("count", forms, {0: "a0", 1: "a1", 2: "a2"})
    assert ledger().released["privacy.clients.updates"].tolist() == [1, 1, 1]  # what it releases is not known yet
    first.answered("count", forms, {0: "a0", 1: "a1", 2: "a2"}, counted)
    first.ask("train", {}, {0: "b0", 1: "b1"})
    again = ledger()
    again.ask("count", forms, {0: "a0", 1: "a1", 2: "a2"})
    again.answered("count", forms, {0: "a0", 1: "a1", 2: "a2"}, counted)
    again.ask("train", {}, {0: "c0", 2: "c2"})
    again.answered("train", {}, {0: "c0", 2: "c2"}, {2: trained[2]})
    assert again.released["privacy.clients.counts"].tolist() == [1, 1, 1]
    assert again.released["privacy.sizes.counts"].tolist() == [0, 0, 0, 1]
    assert again.released["privacy.clients.updates"].tolist() == [2, 1, 1]
    assert again.released["privacy.sizes.updates"].tolist() == [0, 1, 1, 0]
    assert not any(times.any() for times in ledger(1).released.values())
    (tmp_path / "releases.json").write_text("[]")
    with pytest.raises(UserError, match=r"releases.json is damaged .* is not known"):
        ledger()


# The others in `pytest -m slow`.
SOME = ("fedavg", "scaffold", "fedpurel", "local")
TRAINED = [
    pytest.param(name, marks=[] if name in SOME else [pytest.mark.slow])
    for name, entry in METHODS.items()
    if entry.method.trains and not name.endswith("-released") and name != "creff"  # refused, above
]


@pytest.mark.parametrize("method", TRAINED)
def test_any_method_goes_with_it(method: str) -> None:
    """A round ends in finite numbers, and what was released is known."""
    more = {"rounds": 1, "labels": "given", "privacy": "gaussian", "privacy.noise": 0.5}
    experiment = world(method, METHODS[method].tuner, **more)
    engine, server = make_engine(experiment), experiment.job.first_server()
    server, _ = run_round(experiment, server, engine)
    assert all(torch.isfinite(value).all() for value in server.params.values())
    ledger = engine.ledger(server)
    assert ledger is not None
    assert (ledger.epsilon("updates") > 0) == (method not in ("local", "central"))
