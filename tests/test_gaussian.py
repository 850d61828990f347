"""Gaussian privacy: where its noise comes from, what it does to a reply, what it costs, and when a run has to end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import kstest, norm

from fedtailor.base.errors import UserError
from fedtailor.client.codec import client_from_bytes, client_to_bytes, to_bytes
from fedtailor.client.job import ClientState
from fedtailor.core.statistics import Form, class_counts
from fedtailor.core.types import Params, Reply
from fedtailor.methods import METHODS
from fedtailor.privacy.base import Leaving
from fedtailor.privacy.gaussian import Gaussian
from fedtailor.privacy.ledger import Ledger, of_cohorts, of_releases
from fedtailor.privacy.noise import Noise, new_secret, request_key, seeded_secret
from fedtailor.runs.callback import Callback
from fedtailor.runs.execute import resume, run, train
from fedtailor.settings.run import make_run
from fedtailor.simulation.engine import make_engine
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


def one_pass(generator: str = "secret") -> tuple[Params, ClientState, bytes]:
    """Client 1's update in the first round of a federation with noise; its state; the bits of what it sent."""
    experiment = world(privacy="gaussian", **{"privacy.generator": generator})
    job, engine = experiment.job, make_engine(experiment)
    server = job.first_server()
    reply = engine(job.method.train, server, [1])[1]
    change = {n: v - server.params[n] for n, v in reply.params.items()}
    return change, engine.clients[1], to_bytes({"params": reply.params, "stats": reply.stats}, {})


def test_the_servers_seed_does_not_tell_the_noise() -> None:
    """Two runs of one seed differ, unless the noise is to come from the seed, which run.toml then says."""
    (a, state, sent), (b, *_) = one_pass(), one_pass()
    assert not torch.equal(a["text.ctx"], b["text.ctx"])
    assert len(state.secret) == 32
    assert state.secret not in sent
    (a, *_), (b, *_) = one_pass("seeded"), one_pass("seeded")
    assert torch.equal(a["text.ctx"], b["text.ctx"])


def test_a_secret_lasts_and_no_pass_sees_it() -> None:
    _, state, _ = one_pass()
    assert client_from_bytes(client_to_bytes(state)).secret == state.secret
    kept = [*state.memory.values(), *state.local.values(), *state.tuned.values()]
    assert not any(state.secret in value.numpy().tobytes() for value in kept)


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
    ledger = Ledger.of(experiment.run.privacy.value, server, CLIENTS)
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
    ledger = Ledger.of(experiment.run.privacy.value, server, experiment.job.cohort)
    assert ledger is not None
    assert (ledger.epsilon("updates") > 0) == (method not in ("local", "central"))
