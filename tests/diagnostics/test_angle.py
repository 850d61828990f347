"""The angle between what clients' losses and zero-shot CLIP ask for."""

from __future__ import annotations

import pytest
import torch
from seen_rounds import fedcopl, seen_round

from fedtailor.algorithms.alignment import alignment
from fedtailor.core.losses import task_loss
from fedtailor.core.optim import gradient_of
from fedtailor.evaluation.diagnostics import gradients
from fedtailor.evaluation.diagnostics.gradients import angle, angles, cosine, leaves
from world import world


def test_cosine_by_hand() -> None:
    """(3, 4)·(4, 3) / 25 = 24/25; no direction, no cosine."""
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])
    assert cosine(a, b) == pytest.approx(0.96)
    assert cosine(a, -b) == pytest.approx(-0.96)
    assert cosine(a, 100 * a) == 1
    assert cosine(a, 0 * b) is None
    assert cosine(0 * a, b) is None
    assert cosine(a, 1e-5 * b) is None  # what is left of a zero when temperatures are found by bisection
    assert cosine(a, 1e-3 * b) == pytest.approx(0.96)


def test_angles_by_hand() -> None:
    """0, 90, 180 and 120 degrees: a mean of 97.5, two of four in conflict. The mean angle is not the mean's angle."""
    found = angles([1.0, 0.0, -1.0, -0.5])
    assert found == {"degrees": pytest.approx(97.5), "cosine": -0.125, "conflict": 50, "clients": 4}
    assert angles([]) == {"degrees": None, "cosine": None, "conflict": None, "clients": 0}


@pytest.mark.parametrize("tuner", ["text_prompt", "adapter", "text_prompt+visual_prompt"])
def test_a_round_of_fedavg(tuner: str) -> None:
    """As from the gradients of the two losses, each differentiated for itself, at the server's model."""
    seen = seen_round(world("fedavg", tuner), number=2)
    model, cosines = seen.job.model, []
    for k in seen.cohort:
        batch = seen.batch(k, 64, "angle")
        assert batch is not None
        assert len(batch.x) == len(seen.data[k]) < 64
        theta = {n: v.clone().requires_grad_() for n, v in seen.before.params.items()}
        task = gradient_of(lambda theta, batch: task_loss(model.logits(theta, batch.x), batch))(theta, batch)
        align = gradient_of(
            lambda theta, batch: alignment("tkl", model.teacher(batch), model.logits(theta, batch.x))
        )(theta, batch)  # fmt: skip
        a, b = (torch.cat([found[n].flatten() for n in theta]) for found in (task, align))
        cosines.append(float(torch.nn.functional.cosine_similarity(a, b, dim=0)))
    assert angle(seen)["cosine"] == pytest.approx(sum(cosines) / len(cosines), abs=1e-5)
    assert angle(seen)["conflict"] == pytest.approx(100 * sum(c < 0 for c in cosines) / len(cosines))
    assert angle(seen)["clients"] == len(seen.cohort) == 2


def test_only_what_is_shared_is_differentiated_by() -> None:
    """FedPuReL: φ_g. FedCoPL: visual prompts, beside the text prompt that the client had when the round began."""
    purel = seen_round(world("fedpurel-released", "text_prompt"), number=2)
    theta, by = leaves(purel, purel.cohort[0])
    assert [name for name, value in theta.items() if value.requires_grad] == ["global.text.ctx"]
    assert by[0] is theta["global.text.ctx"]
    assert torch.equal(by[0], purel.before.params["global.text.ctx"])
    copl = seen_round(fedcopl(), number=3)
    k = next(k for k in copl.cohort if copl.clients_before[k].local)
    theta, by = leaves(copl, k)
    assert len(by) == 1
    assert by[0] is theta["visual.ctx"]
    assert torch.equal(theta["text.ctx"], copl.clients_before[k].local["text.ctx"])
    assert not torch.equal(theta["text.ctx"], copl.clients[k].local["text.ctx"])
    assert angle(copl)["degrees"] is not None


def test_nothing_to_compare() -> None:
    """LoRA begins as zero-shot CLIP: no alignment gradient. With nothing shared there is no gradient at all."""
    assert angle(seen_round(world("fedavg", "lora")))["clients"] == 0
    alone = seen_round(fedcopl(**{"method.share_visual": False}))
    assert angle(alone) == {"degrees": None, "cosine": None, "conflict": None, "clients": 0}
    assert gradients.variance(alone) is None
