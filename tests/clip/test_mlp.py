"""The MLP of frozen towers against the textbook one."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from fedtailor.base.rng import generator
from fedtailor.clip.block import Mlp

WIDTH = 12


def textbook(mlp: Mlp, x: Tensor, residual: Tensor) -> Tensor:
    inner = mlp.c_fc(x)
    active = torch.nn.functional.gelu(inner) if mlp.act == "gelu" else inner * torch.sigmoid(1.702 * inner)
    return residual + mlp.c_proj(active)


@pytest.mark.parametrize("act", ["quick_gelu", "gelu"])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4)])
def test_equal_to_the_textbook(act: str, shape: tuple[int, ...]) -> None:
    """Values and both gradients, in double precision; inputs stay as they were, with and without gradients."""
    mlp = Mlp(WIDTH, act).double().requires_grad_(False)
    rng = generator(1)
    x, residual, ahead = (torch.randn(*shape, WIDTH, generator=rng, dtype=torch.float64) for _ in range(3))
    x.requires_grad_()
    residual.requires_grad_()
    before = x.detach().clone(), residual.detach().clone()
    found, expected = mlp(x, residual), textbook(mlp, x, residual)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for a, b in zip(
        *(torch.autograd.grad((out * ahead).sum(), (x, residual)) for out in (found, expected)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(mlp(x, residual), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_only_the_residual_asks() -> None:
    mlp = Mlp(WIDTH, "quick_gelu").requires_grad_(False)
    x, residual = torch.randn(3, WIDTH), torch.randn(3, WIDTH, requires_grad=True)
    (slope,) = torch.autograd.grad(mlp(x, residual).sum(), residual)
    assert torch.equal(slope, torch.ones(3, WIDTH))


def test_one_that_is_trained_has_gradients_of_its_weights() -> None:
    """As when a CLIP is pretrained."""
    mlp, x = Mlp(WIDTH, "quick_gelu"), torch.randn(4, WIDTH)
    mlp(x, x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in mlp.parameters())
    frozen = deepcopy(mlp).requires_grad_(False)
    torch.testing.assert_close(frozen(x, x), mlp(x, x).detach())


def test_one_activation_is_kept() -> None:
    """Of all that is N × 4W."""
    mlp, x = Mlp(WIDTH, "quick_gelu").requires_grad_(False), torch.randn(7, WIDTH, requires_grad=True)
    kept: list[tuple[int, ...]] = []

    def keep(value: Tensor) -> Tensor:
        kept.append(tuple(value.shape))
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        mlp(x, x)
    assert kept.count((7, 4 * WIDTH)) == 1
    assert all(shape == (7, 4 * WIDTH) or 7 not in shape for shape in kept)
