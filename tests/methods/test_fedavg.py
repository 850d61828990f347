"""FedAvg, equation by equation."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from fedtailor.client.job import ClientState, Task
from fedtailor.client.step import client_step
from fedtailor.core.types import Batch, Reply, Server
from fedtailor.methods.fedavg import FedAvg
from world import world


def test_aggregation() -> None:
    """w ← Σ n_k w_k / Σ n_k: (30·[1, 2] + 10·[5, −2]) / 40 = [2, 1]."""
    replies = {
        7: Reply({"w": torch.tensor([5.0, -2.0])}, weight=10),
        2: Reply({"w": torch.tensor([1.0, 2.0])}, weight=30),
    }
    server = FedAvg().aggregate(Server(0, {"w": torch.zeros(2), "other": torch.ones(1)}), replies)
    assert server.params["w"].tolist() == [2.0, 1.0]
    assert server.params["other"].tolist() == [1.0]


def test_loss_is_cross_entropy_of_the_scaled_cosines() -> None:
    experiment = world()
    job, data = experiment.job, experiment.client_data[0]
    batch = next(data.batches(4, True, torch.Generator().manual_seed(0)))
    theta = job.start
    cosines = job.model.image(theta, batch.x) @ job.model.text(theta).T
    expected = F.cross_entropy(cosines * job.model.clip.logit_scale.exp(), batch.y)
    torch.testing.assert_close(job.method.loss(job.model, theta, batch, theta), expected)


def test_a_client_takes_e_epochs_of_n_over_b_steps() -> None:
    """E = 2 epochs over 11 samples in batches of 4, the smaller last batch left out: 4 steps."""
    experiment = world(epochs=2, batch=4)
    job = experiment.job
    steps: list[Batch] = []

    class Counting(FedAvg):
        def loss(self, model, theta, batch, start):  # type: ignore[no-untyped-def]
            steps.append(batch)
            return super().loss(model, theta, batch, start)

    counted = replace(job, method=Counting(local=job.method.local))
    task = Task("train", 0, job.first_server().params)
    reply, _ = client_step(counted, 1, counted.method.train, task, ClientState(), experiment.client_data[1])
    assert len(experiment.client_data[1]) == 11
    assert [len(b.y) for b in steps] == [4] * 4
    assert reply.weight == 11
