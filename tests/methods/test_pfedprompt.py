"""pFedPrompt in the form chosen here: line by line."""

from __future__ import annotations

import torch

from fedtailor.methods.pfedprompt import PFedPrompt, attention
from world import world


def test_attention_by_hand() -> None:
    """z = (1, −1) is its own layer norm (mean 0, variance 1, up to ε). W_q = 0 and b_q = (0, ln 3): looks (¼, ¾).

    W_v = [[4, 0], [0, 8]], b_v = (1, 0): p = (1 + 1, 6).
    """
    own = {
        "norm.weight": torch.ones(2), "norm.bias": torch.zeros(2),
        "query.weight": torch.zeros(2, 2), "query.bias": torch.tensor([0.0, 1.0]) * torch.log(torch.tensor(3.0)),
        "value.weight": torch.tensor([[4.0, 0.0], [0.0, 8.0]]), "value.bias": torch.tensor([1.0, 0.0]),
    }  # fmt: skip
    torch.testing.assert_close(attention(own, torch.tensor([[1.0, -1.0]])), torch.tensor([[2.0, 6.0]]))
    own["query.weight"] = torch.tensor([[0.0, 0.0], [1.0, 0.0]])  # looks now depend on z
    assert attention(own, torch.tensor([[1.0, -1.0]]))[0, 1] > 6


def test_a_client_begins_as_promptfl() -> None:
    experiment = world("pfedprompt")
    method, model, start = experiment.job.method, experiment.job.model, experiment.job.start
    x = experiment.tests.features.fetch(experiment.tests.everything)
    torch.testing.assert_close(method.predict(model, start, x), model.logits(start, x))
    changed = {**start, "local.value.bias": torch.arange(5.0)}
    more = method.predict(model, changed, x) - model.logits(start, x)
    torch.testing.assert_close(more, (model.clip.scale * torch.arange(5.0)).expand_as(more), atol=1e-3, rtol=0)
    torch.testing.assert_close(method.predict_shared(model, changed, x), model.logits(start, x))


def test_the_attention_learns_faster() -> None:
    """Gradients of local.* are `pace` times those of the loss; the prompt's are as they are."""
    experiment = world("pfedprompt")
    start = {n: v.clone().requires_grad_() for n, v in experiment.job.start.items()}
    batch = next(experiment.client_data[0].batches(4, True, torch.Generator().manual_seed(0)))
    slow, fast = (PFedPrompt(pace=p).gradient(experiment.job.model, start)(start, batch) for p in (1.0, 3.0))
    torch.testing.assert_close(fast["local.value.bias"], 3 * slow["local.value.bias"])
    assert slow["local.value.bias"].abs().sum() > 0
    assert torch.equal(fast["text.ctx"], slow["text.ctx"])
