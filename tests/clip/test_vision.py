"""The image transformer's entries for tuners and cuts for caches, against straightforward references, in double."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from clip_helpers import difference, low_rank, normal, relative, small_clip
from torch import Tensor

from fedtailor.clip.block import MATRICES, LowRank, attend, attend_one, deltas_at, drop, split
from fedtailor.clip.model import Clip
from fedtailor.clip.vision import EMBEDDED, Prompt, Prompts, VisionTransformer

CLIP = small_clip(double=True)
TOWER = CLIP.vision
assert isinstance(TOWER, VisionTransformer)
WIDTH, LAYERS = TOWER.width, TOWER.layers
PIXELS = normal(3, 3, 32, 32, dtype=torch.float64)
EXACT = 1e-10


def rows(count: int, seed: int) -> Tensor:
    return normal(count, WIDTH, seed=seed, dtype=torch.float64).requires_grad_()


def embedded(tower: VisionTransformer, pixels: Tensor) -> Tensor:
    """Patch by patch: each 8 × 8 × 3 piece times the convolution's matrix."""
    flat = tower.conv1.weight.flatten(1)
    side = range(0, 32, 8)
    pieces = [pixels[:, :, top : top + 8, left : left + 8].flatten(1) @ flat.T for top in side for left in side]
    cls = tower.class_embedding.expand(len(pixels), -1)
    return torch.stack([cls, *pieces], dim=1) + tower.positional_embedding


Change = Callable[[int, Tensor], Tensor]


def walk(pixels: Tensor, at_embedded: Change, before: Change, behind: Change) -> Tensor:
    """All tokens after the last block, with something done at the entrance, before and behind every block."""
    x = TOWER.ln_pre(at_embedded(EMBEDDED, embedded(TOWER, pixels)))
    for layer in range(LAYERS):
        x = behind(layer, TOWER.transformer[layer](before(layer, x)))
    return TOWER.ln_post(x) @ TOWER.proj


def same(_: int, x: Tensor) -> Tensor:
    return x


def beside(x: Tensor, tokens: Tensor) -> Tensor:
    return torch.cat([x, torch.stack([tokens] * len(x))], dim=1)


# --- stages --------------------------------------------------------------------------------------------------------


def test_plain_tower() -> None:
    """Broken: the image tower itself, or its read-out: `features` is the first of `patches`."""
    want = walk(PIXELS, same, same, same)
    assert want.shape == (3, 1 + 16, 24)
    assert difference(TOWER(PIXELS, stop="patches"), want) < EXACT
    assert difference(TOWER(PIXELS), want[:, 0]) < EXACT


@pytest.mark.parametrize("stop", ["features", "patches"])
@pytest.mark.parametrize("cut", ["embedded", "block1", "block2", "block3"])
def test_cut_anywhere(cut: str, stop: str) -> None:
    """Broken: what a cache keeps at a cut is not what the rest of the tower goes on from."""
    assert cut in TOWER.stages
    kept = TOWER(PIXELS, stop=cut)
    assert difference(TOWER(kept, start=cut, stop=stop), TOWER(PIXELS, stop=stop)) < EXACT


def test_cuts_are_different_places() -> None:
    """Broken: a stage's name stands for another layer, so that a block is run twice or left out."""
    want = embedded(TOWER, PIXELS)
    assert difference(TOWER(PIXELS, stop="embedded"), want) < EXACT
    want = TOWER.ln_pre(want)
    for layer in range(LAYERS - 1):
        want = TOWER.transformer[layer](want)
        assert difference(TOWER(PIXELS, stop=f"block{layer + 1}"), want) < EXACT


def test_prompts_below_and_above_a_cut() -> None:
    """Broken: a prompt enters twice, or not at all, when the tower is run in two parts."""
    prompts = {EMBEDDED: Prompt(rows(2, 1)), 1: Prompt(rows(1, 2)), 2: Prompt(rows(2, 3), replace=True)}
    whole = TOWER(PIXELS, prompts=prompts)
    for cut in ("embedded", "block1", "block2", "block3"):
        kept = TOWER(PIXELS, stop=cut, prompts=prompts)
        assert difference(TOWER(kept, start=cut, prompts=prompts), whole) < EXACT


# --- prompts -------------------------------------------------------------------------------------------------------


def agree(prompts: Prompts, want: Tensor) -> None:
    """Features, patches, and the gradient of the prompts."""
    learned = [prompt.tokens for prompt in prompts.values()]
    got = TOWER(PIXELS, stop="patches", prompts=prompts)
    features = TOWER(PIXELS, prompts=prompts)
    assert difference(got, want) < EXACT
    assert difference(features, want[:, 0]) < EXACT
    assert relative(features, TOWER(PIXELS)) > 1e-3
    direction = normal(3, 24, seed=5, dtype=torch.float64)
    pairs = zip(*(torch.autograd.grad((t * direction).sum(), learned) for t in (features, want[:, 0])), strict=True)
    for mine, other in pairs:
        assert relative(mine, other) < EXACT


def test_prompt_before_the_first_norm() -> None:
    """Broken: CAPT's visual prompt does not pass ln_pre, or leaves the sequence before its end."""
    tokens = rows(2, 1)
    want = walk(PIXELS, lambda _, x: beside(x, tokens), same, same)
    agree({EMBEDDED: Prompt(tokens)}, want)


def test_prompts_appended_and_dropped() -> None:
    """Broken: FedCoPL's visual prompts pile up, or are missing in one of their layers."""
    tokens = {layer: rows(2, layer) for layer in range(LAYERS - 1)}
    want = walk(
        PIXELS,
        same,
        lambda layer, x: beside(x, tokens[layer]) if layer in tokens else x,
        lambda layer, x: x[:, :-2] if layer in tokens else x,
    )
    agree({layer: Prompt(t, keep=False) for layer, t in tokens.items()}, want)


def test_prompts_kept() -> None:
    """Broken: prompts that are to stay are dropped behind their layer."""
    tokens = {1: rows(2, 1), 3: rows(1, 2)}
    want = walk(PIXELS, same, lambda layer, x: beside(x, tokens[layer]) if layer in tokens else x, same)
    assert want.shape[1] == 17 + 3
    agree({layer: Prompt(t) for layer, t in tokens.items()}, want)


def test_prompts_replaced() -> None:
    """Broken: deep visual prompts (MaPLe's) do not take their predecessors' places: the sequence grows or shrinks."""
    first, tokens = rows(2, 1), {1: rows(2, 2), 2: rows(2, 3)}
    want = walk(
        PIXELS,
        lambda _, x: beside(x, first),
        lambda layer, x: beside(x[:, :-2], tokens[layer]) if layer in tokens else x,
        same,
    )
    assert want.shape[1] == 17 + 2
    prompts = {layer: Prompt(t, replace=True) for layer, t in tokens.items()}
    agree({EMBEDDED: Prompt(first), **prompts}, want)


def test_prompts_of_each_image() -> None:
    """Broken: prompts with a batch axis, one set for each image, are given to the wrong image."""
    own = normal(3, 2, WIDTH, seed=7, dtype=torch.float64)
    got = TOWER(PIXELS, prompts={1: Prompt(own)})
    want = torch.cat([TOWER(PIXELS[i : i + 1], prompts={1: Prompt(own[i])}) for i in range(3)])
    assert difference(got, want) < EXACT


# --- low-rank deltas -----------------------------------------------------------------------------------------------


def merged(deltas: dict[tuple[int, str], LowRank]) -> Clip:
    """A copy of the tower with scale · B A added into its matrices."""
    clip = small_clip(double=True)
    assert isinstance(clip.vision, VisionTransformer)
    with torch.no_grad():
        for (layer, which), delta in deltas.items():
            attn = clip.vision.transformer[layer].attn
            at = MATRICES.index(which) * WIDTH
            weight = attn.out_proj.weight if which == "o" else attn.in_proj_weight[at : at + WIDTH]
            weight += delta.scale * delta.B @ delta.A
    return clip


@pytest.mark.parametrize("which", [*MATRICES, "qkv", "qkvo"])
@pytest.mark.parametrize("stop", ["features", "patches"])
def test_low_rank_equals_merged_weights(which: str, stop: str) -> None:
    """Broken: a delta acts on another matrix or layer than it names, or not as W + scale · B A."""
    deltas = {(layer, m): low_rank(WIDTH, seed=10 * layer + n) for layer in (0, 3) for n, m in enumerate(which)}
    got, want = TOWER(PIXELS, stop=stop, deltas=deltas), merged(deltas).vision(PIXELS, stop=stop)
    assert difference(got, want) < EXACT
    assert relative(got, TOWER(PIXELS, stop=stop)) > 1e-3


def test_low_rank_gradient_equals_merged_gradient() -> None:
    """Broken: LoRA learns in a wrong direction.

    With G the gradient of the merged matrix, that of A is scale · Bᵀ G and that of B is scale · G Aᵀ.
    """
    deltas = {(layer, m): low_rank(WIDTH, seed=10 * layer + n) for layer in range(LAYERS) for n, m in enumerate("qkvo")}
    direction = normal(3, 24, seed=5, dtype=torch.float64)
    (TOWER(PIXELS, deltas=deltas) * direction).sum().backward()
    clip = merged(deltas).requires_grad_(True)
    (clip.vision(PIXELS) * direction).sum().backward()
    assert isinstance(clip.vision, VisionTransformer)
    for (layer, which), delta in deltas.items():
        attn = clip.vision.transformer[layer].attn
        at = MATRICES.index(which) * WIDTH
        whole = attn.out_proj.weight.grad if which == "o" else attn.in_proj_weight.grad[at : at + WIDTH]
        assert relative(delta.A.grad, delta.scale * delta.B.T @ whole) < EXACT
        assert relative(delta.B.grad, delta.scale * whole @ delta.A.T) < EXACT


def test_first_token_of_a_block() -> None:
    """Broken: the last layer's shortcut, which computes one token's output, computes another one's."""
    block = TOWER.transformer[2]
    x = normal(3, 9, WIDTH, dtype=torch.float64)
    deltas = {(2, m): low_rank(WIDTH, seed=n) for n, m in enumerate("qkvo")}
    here = deltas_at(2, deltas, None)
    assert difference(block.first(x), block(x)[:, 0]) < EXACT
    assert difference(block.first(x, here), block(x, deltas=here)[:, 0]) < EXACT
    assert relative(block.first(x, here), block.first(x)) > 1e-3


# --- dropout -------------------------------------------------------------------------------------------------------


def dropped(seed: int | None, rate: float = 0.25) -> Tensor:
    rng = None if seed is None else torch.Generator().manual_seed(seed)
    deltas = {(layer, "v"): low_rank(WIDTH, seed=layer, dropout=rate) for layer in range(LAYERS)}
    return TOWER(PIXELS, deltas=deltas, rng=rng).detach()


def test_dropout_follows_its_generator() -> None:
    """Broken: the same seed gives another result, or evaluation (no generator) drops something."""
    assert torch.equal(dropped(1), dropped(1))
    assert relative(dropped(1), dropped(2)) > 1e-4
    assert relative(dropped(1), dropped(None)) > 1e-4
    assert torch.equal(dropped(None), dropped(None, rate=0.0))
    assert torch.equal(dropped(1, rate=0.0), dropped(None, rate=0.0))


def test_dropout_leaves_the_global_generator_alone() -> None:
    """Broken: a draw comes from torch's global state, so that results depend on what ran before."""
    before = torch.random.get_rng_state()
    dropped(1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_dropout_keeps_the_mean() -> None:
    """Broken: what is kept is not scaled up by 1 / (1 − rate), or the rate is that of keeping."""
    out = drop(torch.ones(200_000), 0.25, torch.Generator().manual_seed(0))
    assert out.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert (out == 0).float().mean().item() == pytest.approx(0.25, abs=0.005)
    assert out.mean().item() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("masked", [False, True])
def test_one_query_needs_no_keys_and_values(masked: bool) -> None:
    """Broken: the read-out of either tower is another than CLIP's, or what is learned gets another gradient."""
    N, C, L, H, d = 2, 3, 5, 4, 6
    K, V, (key_bias, value_bias, *_) = normal(3, H * d, H * d, dtype=torch.float64)
    mask = torch.ones(C, 1, 1, L, dtype=torch.bool)
    mask[1, ..., 3:] = mask[2, ..., 1] = False
    here = mask if masked else None

    def found(direct: bool) -> tuple[Tensor, ...]:
        q = normal(N, C, 1, H, d, seed=1, dtype=torch.float64).requires_grad_()
        x = normal(N, C, L, H * d, seed=2, dtype=torch.float64).requires_grad_()
        k, v = split(x @ K.T + key_bias, H), split(x @ V.T + value_bias, H)
        out = attend_one(q, x, K, V, value_bias, here) if direct else attend(q, k, v, here)
        return out, *torch.autograd.grad(out.square().sum(), (q, x))

    for ours, textbook in zip(found(True), found(False), strict=True):
        assert difference(ours, textbook) < EXACT
