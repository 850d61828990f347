"""How far tuned logits are from zero-shot ones: the distances of FedPuReL."""

import torch
from torch import Tensor

from ..core.losses import entropy, kl


def alignment(kind: str, z: Tensor, f: Tensor) -> Tensor:
    """How far the tuned logits f are from the zero-shot logits z, the mean over samples."""
    if kind == "tkl":
        tau_zs, tau_ft = temperatures(z, f)
        return kl((z / tau_zs).softmax(-1), (f / tau_ft).softmax(-1)).mean()  # D_TKL
    if kind == "kl":
        return kl(z.softmax(-1), f.softmax(-1)).mean()
    return -(z.softmax(-1) * f.log_softmax(-1)).sum(-1).mean()  # distil: kl plus the entropy of z, which is a constant


@torch.no_grad()
def temperatures(z: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 1) each: those at which both distributions of a sample have the mean of their entropies."""
    H = (entropy(z.softmax(-1)) + entropy(f.softmax(-1))) / 2
    return temperature(z, H), temperature(f, H)


def temperature(logits: Tensor, H: Tensor, least: float = 0.05, most: float = 20.0, halvings: int = 20) -> Tensor:
    """(B, 1) by bisection: entropy grows with temperature."""
    low, high = torch.full_like(H, least), torch.full_like(H, most)
    for _ in range(halvings):
        middle = (low + high) / 2
        cold = entropy((logits / middle[:, None]).softmax(-1)) < H
        low, high = torch.where(cold, middle, low), torch.where(cold, high, middle)
    return ((low + high) / 2)[:, None]
