"""FedTPG: the mean of generators in which every client counts the same."""

from __future__ import annotations

import pytest
import torch

from fedtailor.client.job import Job
from fedtailor.core.model import Model
from fedtailor.core.optim import LocalTraining
from fedtailor.core.types import Reply, Server
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedtpg import FedTPG
from fedtailor.simulation.local import LocalEngine
from fedtailor.tuners.prompt_generator import PromptGenerator
from world import CLIENTS, NAMES, checkpoint, world


def test_the_mean_does_not_see_samples() -> None:
    """0 from thirty samples and 4 from ten: (0 + 4)/2 = 2, where FedAvg has (30 · 0 + 10 · 4)/40 = 1."""
    replies = {0: Reply({"a": torch.tensor([0.0])}, weight=30), 3: Reply({"a": torch.tensor([4.0])}, weight=10)}
    server = Server(0, {"a": torch.tensor([9.0]), "b": torch.tensor([5.0])})
    found = FedTPG().aggregate(server, replies)
    assert {name: value.item() for name, value in found.params.items()} == {"a": 2.0, "b": 5.0}
    assert FedAvg().aggregate(server, replies).params["a"].item() == 1.0
    assert replies[0].weight == 30


def test_rounds() -> None:
    """A round is the plain mean of what clients with more and fewer samples reach; rounds lower the loss."""
    client_data = (
        world().client_data
    )  # pictures cached as features, which this tuner leaves alone as a text prompt does
    assert len({len(client_data[k]) for k in range(CLIENTS)}) > 1
    method = FedTPG(local=LocalTraining(batch=4, lr=0.01))
    job = Job(method, Model.of(checkpoint(), PromptGenerator(), NAMES, "a photo of a {}."), seed=3, clients=CLIENTS)
    engine, server = LocalEngine(job, client_data), job.first_server()
    assert server.params.keys() == job.start.keys()
    cohort = list(range(CLIENTS))
    reached = engine(method.train, server, cohort)
    after = method.round(server, cohort, LocalEngine(job, client_data))
    for name, value in after.params.items():
        mean = torch.stack([reached[k].params[name] for k in cohort]).double().mean(dim=0).float()
        torch.testing.assert_close(value, mean, atol=1e-7, rtol=1e-6)
        assert not torch.equal(value, job.start[name]), name
    batches = [next(client_data[k].batches(8, True, torch.Generator().manual_seed(0))) for k in cohort]

    def loss(server: Server) -> float:
        return sum(method.loss(job.model, server.params, batch, {}).item() for batch in batches)

    first = loss(server)
    for _ in range(3):
        server = method.round(server, cohort, engine)
    assert loss(server) < first - 0.1


def test_original_learning_rate() -> None:
    """A cosine over 500 rounds of one epoch: 0.003 at first, half of it in the middle, next to nothing at the end."""
    local = LocalTraining(lr=0.003, weight_decay=1e-5, batch=200, schedule="cosine", span=500)
    assert [local.rate(t, 0) for t in (0, 250)] == pytest.approx([0.003, 0.0015])
    assert 0 < local.rate(499, 0) < 1e-6
