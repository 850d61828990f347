"""Products with frozen matrices: by oneDNN where it can, and the same product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from clip_helpers import normal, relative

from fedtailor.clip.product import FASTER, affine, onednn, times


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 4)])
def test_the_same_product_and_gradient(shape: tuple[int, ...]) -> None:
    """Broken: a tower's features, or what is learned in front of it, are wrong by more than rounding."""
    weight, bias = normal(24, 16, seed=1), normal(24, seed=2)
    direction = normal(*shape, 24, seed=3)
    found = []
    for product in (affine, F.linear):
        x = normal(*shape, 16, seed=4).requires_grad_()
        out = product(x, weight, bias)
        found.append((out, *torch.autograd.grad((out * direction).sum(), x)))
    for ours, torchs in zip(*found, strict=True):
        assert ours.shape == torchs.shape
        assert relative(ours, torchs) < 1e-6
    assert relative(times(normal(*shape, 24), weight.t()), normal(*shape, 24) @ weight) < 1e-6


def test_who_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: double precision or a matrix that learns goes to an operator that knows neither, or nothing does."""
    x, weight, bias = normal(3, 16), normal(24, 16), normal(24)
    assert onednn(x, weight) == FASTER
    assert not onednn(x.double(), weight.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert not onednn(x, weight)
    learning = weight.clone().requires_grad_()
    affine(x, learning, bias).sum().backward()
    assert learning.grad is not None
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert not onednn(x, weight)
