"""FedLoGe and its frame, formula by formula."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedtailor.algorithms.simplex_frame import etf, sparse_etf
from fedtailor.base.errors import UserError
from fedtailor.client.job import ClientState, Task
from fedtailor.client.step import client_step
from fedtailor.core.types import FIXED, GLOBAL, LOCAL, Params, Server
from fedtailor.methods import METHODS, Entry
from fedtailor.methods.fedloge import NEVER, FedLoGe
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import run_round
from fedtailor.tuners import TUNERS
from fedtailor.tuners.resnet import ResNet
from world import world

SMALL = {"tuner.width": 2, "tuner.size": 8, "tuner.augment": False, "method.steps": 20}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "fedloge", Entry(FedLoGe, "resnet", "", 2024, "", "", tuners=("resnet",)))
    monkeypatch.setitem(TUNERS, "resnet", ResNet)


def small(**more: Any) -> Experiment:
    return world("fedloge", "resnet", **{**SMALL, **more})


def go(experiment: Experiment) -> tuple[Server, LocalEngine]:
    engine, server = make_engine(experiment), experiment.job.first_server()
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
    return server, engine


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def degrees(rows: torch.Tensor) -> torch.Tensor:
    """The angles of every two rows."""
    unit = F.normalize(rows.double(), dim=1)
    cosines = (unit @ unit.T)[~torch.eye(len(rows), dtype=torch.bool)]
    return torch.rad2deg(cosines.clamp(-1, 1).arccos())


class Two:
    """A model whose features are what it is given."""

    def features(self, theta: Params, x: torch.Tensor) -> torch.Tensor:
        return x


def heads(present: list[float]) -> Params:
    """g = ((3, 4), (0, 2)) with bias (1, 0), rows of norm 5 and 2; l = ((0, 2), (1, 0)) with bias (0, 3): 2 and 1."""
    return {
        "head.weight": torch.tensor([[3.0, 4.0], [0.0, 2.0]]),
        "head.bias": torch.tensor([1.0, 0.0]),
        "local.weight": torch.tensor([[0.0, 2.0], [1.0, 0.0]]),
        "local.bias": torch.tensor([0.0, 3.0]),
        "local.present": torch.tensor(present),
    }


# --- the frame ---


@pytest.mark.parametrize(("C", "D"), [(2, 2), (3, 8), (10, 10), (10, 64)])
def test_etf(C: int, D: int) -> None:
    """Unit rows; every two at the cosine −1/(C−1), the widest that C directions can all be apart."""
    rows = etf(C, D, seeded(0))
    expected = torch.full((C, C), -1 / (C - 1), dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(rows @ rows.T, expected)
    assert not torch.allclose(rows, etf(C, D, seeded(1)))


@pytest.mark.parametrize(("C", "D"), [(5, 16), (10, 64), (10, 256)])
def test_sparse_etf(C: int, D: int) -> None:
    """60% zeros in every row, rows of norm 0.1, and angles as wide as the full frame's but for half a degree."""
    rows, plain = (sparse_etf(C, D, 0.6, 0.1, steps, seeded(0)) for steps in (500, 0))
    assert rows.dtype == torch.float32
    assert ((rows == 0).sum(1) == int(0.6 * D)).all()
    assert torch.equal(rows == 0, plain == 0)
    torch.testing.assert_close(rows.norm(dim=1), torch.full((C,), 0.1))
    ideal = math.degrees(math.acos(-1 / (C - 1)))
    assert degrees(rows).min() > ideal - 0.5
    assert degrees(rows).max() < ideal + 1.0
    assert degrees(plain).min() < ideal - 3
    assert torch.equal(rows, sparse_etf(C, D, 0.6, 0.1, 500, seeded(0)))


def test_a_full_frame_stays() -> None:
    """With beta=0 nothing is zeroed: the frame scaled to its length."""
    expected = 0.5 * etf(4, 9, seeded(3))
    torch.testing.assert_close(sparse_etf(4, 9, 0.0, 0.5, 0, seeded(3)), expected.float())


@pytest.mark.parametrize(("C", "D"), [(9, 8), (1, 8)])
def test_a_frame_that_cannot_be(C: int, D: int) -> None:
    with pytest.raises(UserError, match=f"got {C} class.*length {D}"):
        etf(C, D, seeded(0))


@pytest.mark.parametrize(("C", "D"), [(20, 16), (100, 64)])
def test_more_classes_than_features(C: int, D: int) -> None:
    """There is no equiangular frame then; rows are as sparse and as long as ever, and set as far apart as they come:
    the nearest two by a third more than where they were drawn."""
    rows, plain = (sparse_etf(C, D, 0.6, 1.0, steps, seeded(0)) for steps in (500, 0))
    assert ((rows == 0).sum(1) == int(0.6 * D)).all()
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(C))
    assert degrees(rows).min() > 1.3 * degrees(plain).min()
    assert torch.equal(rows, sparse_etf(C, D, 0.6, 1.0, 500, seeded(0)))


def test_a_run_with_more_classes_than_features() -> None:
    """Five classes, four features: it trains, and tells classes apart."""
    experiment = small(rounds=2, **{"tuner.width": 1, "tuner.groups": 1})
    assert experiment.job.start["etf.weight"].shape == (5, 4)
    server, _ = go(experiment)
    assert all(value.isfinite().all() for value in server.params.values())


# --- predictions ---


def test_global_realignment_by_hand() -> None:
    """Rows to norm 1.7: 1.7·(3, 4)/5 = (1.02, 1.36), 1.7·(0, 2)/2 = (0, 1.7). At x = (1, 2): 3.74 + 1 and 3.4."""
    found = FedLoGe().predict_shared(Two(), heads([1, 1]), torch.tensor([[1.0, 2.0]]))  # type: ignore[arg-type]
    torch.testing.assert_close(found, torch.tensor([[4.74, 3.4]]))


def test_personal_realignment_by_hand() -> None:
    """g's rows × l's norms: (6, 8), (0, 2). At x = (1, 2): 22 + 1 and 4; l says 4 and 1 + 3. Sum: 27 and 8."""
    x, method = torch.tensor([[1.0, 2.0]]), FedLoGe()
    l_G, l_P = method.branches(Two(), heads([1, 1]), x)  # type: ignore[arg-type]
    assert (l_G.tolist(), l_P.tolist()) == ([[23.0, 4.0]], [[4.0, 4.0]])
    assert method.predict(Two(), heads([1, 1]), x).tolist() == [[27.0, 8.0]]  # type: ignore[arg-type]
    assert method.predict(Two(), heads([0, 1]), x).tolist() == [[pytest.approx(NEVER), 8.0]]  # type: ignore[arg-type]


# --- training ---


def test_three_losses() -> None:
    """The sum of three cross-entropies; the network feels the frame's alone, each head its own alone."""
    experiment = small()
    job, model = experiment.job, experiment.job.model
    batch = next(experiment.client_data[0].batches(8, True, seeded(0)))
    theta = {n: v.clone().requires_grad_(n != "etf.weight") for n, v in job.start.items()}
    found = job.method.gradient(model, job.start)(theta, batch)
    f = model.features(theta, batch.x)
    losses = {
        "net.": F.cross_entropy(f @ theta["etf.weight"].T, batch.y),
        "head.": F.cross_entropy(f.detach() @ theta["head.weight"].T + theta["head.bias"], batch.y),
        "local.": F.cross_entropy(f.detach() @ theta["local.weight"].T + theta["local.bias"], batch.y),
    }
    total = job.method.loss(model, theta, batch, job.start)
    torch.testing.assert_close(total, torch.stack(list(losses.values())).sum())
    assert set(found) == set(theta) - {"etf.weight", "local.present"}
    for prefix, loss in losses.items():
        names = [n for n in found if n.startswith(prefix)]
        assert names
        for name, g in zip(names, torch.autograd.grad(loss, [theta[n] for n in names]), strict=True):
            torch.testing.assert_close(found[name], g)


def test_who_owns_what() -> None:
    job = small().job
    kinds = {name: scope for name, scope in job.scopes.items() if not name.startswith("net.")}
    assert kinds == {
        "head.weight": GLOBAL, "head.bias": GLOBAL, "etf.weight": FIXED,
        "local.weight": LOCAL, "local.bias": LOCAL, "local.present": LOCAL,
    }  # fmt: skip
    assert all(scope == GLOBAL for name, scope in job.scopes.items() if name.startswith("net."))
    assert torch.equal(job.start["etf.weight"], small().job.start["etf.weight"])
    plain = world("fedavg", "resnet", **{k: v for k, v in SMALL.items() if k.startswith("tuner.")}).job.start
    assert all(torch.equal(job.start[name], value) for name, value in plain.items())


def test_a_client_knows_its_classes() -> None:
    """The classes of its training pictures, though it never sends which; the frame is as it was."""
    experiment = small()
    job, data = experiment.job, experiment.client_data[0]
    y = data.labels
    some = data.labelled(((y == 1) | (y == 4)).nonzero().flatten(), y[(y == 1) | (y == 4)])
    task = Task("train", 0, job.first_server().params)
    reply, client = client_step(job, 0, job.method.train, task, ClientState(), some)
    assert client.local["local.present"].tolist() == [0, 1, 0, 0, 1]
    assert not torch.equal(client.local["local.weight"], job.start["local.weight"])
    assert set(reply.params) == {n for n, scope in job.scopes.items() if scope == GLOBAL}
    assert not reply.stats
    theta = {**job.start, **reply.params, **client.local}
    said = job.method.predict(job.model, theta, experiment.tests.features.fetch(experiment.tests.everything)).argmax(1)
    assert set(said.tolist()) <= {1, 4}


def test_rounds() -> None:
    """Everyone in round 0, so that all have a head; the same bits forwards and backwards, here and on the wire."""
    assert small().job.method.cohort(0, 4, 0.5, seeded(0)) == [0, 1, 2, 3]
    server, engine = go(small())
    assert all(
        set(client.local) == {"local.weight", "local.bias", "local.present"} for client in engine.clients.values()
    )
    experiment = small(engine="posted")

    class Backwards(FedLoGe):
        def cohort(self, *given: Any) -> list[int]:
            return super().cohort(*given)[::-1]

    turned = replace(experiment, job=replace(experiment.job, method=Backwards(**dict(experiment.job.method))))
    again, other = go(turned)
    assert server_to_bytes(again) == server_to_bytes(server)
    for k, client in engine.clients.items():
        assert all(torch.equal(value, other.clients[k].local[name]) for name, value in client.local.items())


def test_the_frame_teaches_the_network() -> None:
    """The tinted toy is learned through the frame: on test pictures its cross-entropy falls well below ln 5 = 1.6."""
    experiment = small(rounds=10, lr=0.1, epochs=2, **{"tuner.width": 4})
    server, _ = go(experiment)
    job, tests = experiment.job, experiment.tests
    x, y = tests.features.fetch(tests.everything), torch.from_numpy(tests.labels)

    def loss(params: Params) -> float:
        return F.cross_entropy(job.model.features(params, x) @ job.start["etf.weight"].T, y).item()

    assert loss(job.start) > 1.6
    assert loss(server.params) < 1.2
