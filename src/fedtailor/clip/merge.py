"""Low-rank deltas put into the weights: a CLIP that needs no tuner beside it."""

import torch

from .block import MATRICES, Deltas
from .model import Clip


def merged(clip: Clip, image: Deltas, text: Deltas) -> Clip:
    """Another CLIP, whose matrices are W + scale · B A; all others are the same tensors."""
    state = dict(clip.state_dict())
    for tower, deltas in (("vision", image), ("text", text)):
        for (layer, which), (A, B, scale, _) in deltas.items():
            name, first = matrix(clip, tower, layer, which)
            change, weight = scale * B.double() @ A.double(), state[name].clone()
            rows = weight[first : first + len(change)]
            rows.copy_(rows.double() + change)
            state[name] = weight
    with torch.device("meta"):  # no memory for weights that are replaced at once
        other = Clip(clip.shape)
    other.load_state_dict(state, assign=True)
    return other.freeze()


def matrix(clip: Clip, tower: str, layer: int, which: str) -> tuple[str, int]:
    """Where q, k, v or o of a layer is: the name of a tensor, and its first row there."""
    if tower == "vision" and not isinstance(clip.shape.vision_layers, int):
        return f"vision.attnpool.{which}_proj.weight", 0
    block, width = f"{tower}.transformer.resblocks.{layer}.attn", getattr(clip, tower).width
    if which == "o":
        return f"{block}.out_proj.weight", 0
    return f"{block}.in_proj_weight", MATRICES.index(which) * width
