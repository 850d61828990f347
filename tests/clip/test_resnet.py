"""RN50 against a reference written here from its published structure, on a file of its published names and shapes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from clip_helpers import difference, low_rank, normal, relative, write_tokenizer
from safetensors.torch import save_file
from torch import Tensor

from fedtailor.clip.load import load
from fedtailor.clip.model import Clip
from fedtailor.clip.vision import EMBEDDED, Prompt

WIDTH, DEPTHS, EMBED, HEADS, SIDE = 64, (3, 4, 6, 3), 1024, 32, 7
POOL = 32 * WIDTH  # channels of the last feature map
State = dict[str, Tensor]


def rn50_state() -> State:
    """Random weights under OpenAI's names; BatchNorm's statistics are random too, so that none can be left out."""
    rng = torch.Generator().manual_seed(0)
    state: State = {}

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng)

    def conv(name: str, out: int, inside: int, size: int) -> None:
        state[f"{name}.weight"] = random(out, inside, size, size) * (2 / (inside * size**2)) ** 0.5

    def norm(name: str, width: int, gain: float = 1.0) -> None:
        state[f"{name}.weight"] = gain * (1 + 0.2 * random(width))
        state[f"{name}.bias"] = 0.2 * random(width)
        state[f"{name}.running_mean"] = 0.2 * random(width)
        state[f"{name}.running_var"] = 0.5 + torch.rand(width, generator=rng)
        state[f"{name}.num_batches_tracked"] = torch.tensor(7)

    for i, (out, inside) in enumerate(((WIDTH // 2, 3), (WIDTH // 2, WIDTH // 2), (WIDTH, WIDTH // 2)), start=1):
        conv(f"visual.conv{i}", out, inside, 3)
        norm(f"visual.bn{i}", out)
    inside = WIDTH
    for i, depth in enumerate(DEPTHS):
        width = WIDTH * 2**i
        for j in range(depth):
            name = f"visual.layer{i + 1}.{j}"
            for k, (to, of, size) in enumerate(((width, inside, 1), (width, width, 3), (4 * width, width, 1)), start=1):
                conv(f"{name}.conv{k}", to, of, size)
                norm(f"{name}.bn{k}", to, gain=0.3 if k == 3 else 1.0)  # or sixteen residual sums run away
            if j == 0:
                conv(f"{name}.downsample.0", 4 * width, inside, 1)
                norm(f"{name}.downsample.1", 4 * width)
            inside = 4 * width
    state["visual.attnpool.positional_embedding"] = random(SIDE**2 + 1, POOL)
    for name, out in (("q_proj", POOL), ("k_proj", POOL), ("v_proj", POOL), ("c_proj", EMBED)):
        state[f"visual.attnpool.{name}.weight"] = random(out, POOL) / POOL**0.5
        state[f"visual.attnpool.{name}.bias"] = 0.2 * random(out)
    state |= text_state(rng)
    return state


def text_state(rng: torch.Generator) -> State:
    """A text tower of one small layer: this file is about the image tower."""
    width = 64
    shapes = {
        "token_embedding.weight": (400, width),
        "positional_embedding": (77, width),
        "text_projection": (width, EMBED),
        "ln_final.weight": (width,),
        "ln_final.bias": (width,),
        "logit_scale": (),
    }
    block = {"attn.in_proj_weight": (3 * width, width), "attn.in_proj_bias": (3 * width,)}
    for name, out, inside in (
        ("attn.out_proj", width, width),
        ("mlp.c_fc", 4 * width, width),
        ("mlp.c_proj", width, 4 * width),
    ):
        block |= {f"{name}.weight": (out, inside), f"{name}.bias": (out,)}
    for name in ("ln_1", "ln_2"):
        block |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    shapes |= {f"transformer.resblocks.0.{name}": shape for name, shape in block.items()}
    return {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}


# --- the reference -------------------------------------------------------------------------------------------------


def conv_norm(x: Tensor, s: State, conv: str, norm: str, **how: int) -> Tensor:
    x = F.conv2d(x, s[f"{conv}.weight"], **how)
    mean, var, gain, bias = (s[f"{norm}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
    x = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
    return x * gain[:, None, None] + bias[:, None, None]


def halve(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, kernel_size=2, stride=2)


def feature_map(x: Tensor, s: State) -> Tensor:
    x = conv_norm(x, s, "visual.conv1", "visual.bn1", stride=2, padding=1).relu()
    x = conv_norm(x, s, "visual.conv2", "visual.bn2", padding=1).relu()
    x = halve(conv_norm(x, s, "visual.conv3", "visual.bn3", padding=1).relu())
    for i, depth in enumerate(DEPTHS):
        for j in range(depth):
            name = f"visual.layer{i + 1}.{j}"
            shrink = halve if i > 0 and j == 0 else lambda t: t
            y = conv_norm(x, s, f"{name}.conv1", f"{name}.bn1").relu()
            y = shrink(conv_norm(y, s, f"{name}.conv2", f"{name}.bn2", padding=1).relu())
            y = conv_norm(y, s, f"{name}.conv3", f"{name}.bn3")
            if j == 0:
                x = conv_norm(shrink(x), s, f"{name}.downsample.0", f"{name}.downsample.1")
            x = (x + y).relu()
    return x


def pooled(x: Tensor, s: State) -> Tensor:
    """(B, W, 7, 7) → (50, B, D): every position asks, the mean first."""
    p = "visual.attnpool."
    x = x.flatten(2).permute(2, 0, 1)
    x = torch.cat([x.mean(dim=0, keepdim=True), x]) + s[p + "positional_embedding"][:, None]
    out, _ = F.multi_head_attention_forward(
        query=x,
        key=x,
        value=x,
        embed_dim_to_check=POOL,
        num_heads=HEADS,
        in_proj_weight=None,
        in_proj_bias=torch.cat([s[f"{p}{m}_proj.bias"] for m in "qkv"]),
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=s[p + "c_proj.weight"],
        out_proj_bias=s[p + "c_proj.bias"],
        training=False,
        need_weights=False,
        use_separate_proj_weight=True,
        q_proj_weight=s[p + "q_proj.weight"],
        k_proj_weight=s[p + "k_proj.weight"],
        v_proj_weight=s[p + "v_proj.weight"],
    )
    return out


@pytest.fixture(scope="module")
def state() -> State:
    return rn50_state()


@pytest.fixture(scope="module")
def clip(state: State, tmp_path_factory: pytest.TempPathFactory) -> Clip:
    folder = tmp_path_factory.mktemp("rn50")
    save_file(state, folder / "RN50.safetensors")
    write_tokenizer(folder)
    clip = load(str(folder / "RN50.safetensors")).clip
    (folder / "RN50.safetensors").unlink()
    return clip


def test_shape_is_read_from_the_weights(clip: Clip) -> None:
    """Broken: an RN50 file is built with other depths, heads or picture size than it was made for."""
    s = clip.shape
    assert (s.vision_layers, s.vision_width, s.vision_heads) == (DEPTHS, WIDTH, HEADS)
    assert (s.image_size, s.embed, s.patch) == (224, EMBED, 0)


@torch.no_grad()
def test_equal_to_the_reference(clip: Clip, state: State) -> None:
    """Broken: the stem, a stride, a shortcut, BatchNorm's statistics or the attention pool of RN50."""
    pixels = normal(2, 3, 224, 224)
    features, patches = clip.vision(pixels), clip.vision(pixels, stop="patches")
    tokens = pooled(feature_map(pixels, state), state)
    assert difference(features, tokens[0]) < 1e-4
    assert difference(patches, tokens.transpose(0, 1)) < 1e-4
    assert tokens[0].abs().max() > 0.5


@pytest.mark.parametrize("stop", ["features", "patches"])
def test_pool_of_a_prompted_map(clip: Clip, state: State, stop: str) -> None:
    """Broken: the cache's cut at the feature map, or a prompt whose mean is not added at each of its positions.

    The gradient is checked from the map on, where learning starts: before it are only frozen convolutions.
    """
    pixels = normal(1, 3, 224, 224)
    with torch.no_grad():
        cut = clip.vision(pixels, stop="map")
        assert torch.equal(clip.vision(cut, start="map"), clip.vision(pixels))
    mine, other = (normal(4, POOL, seed=1).requires_grad_() for _ in range(2))
    got = clip.vision(cut, start="map", stop=stop, prompts={EMBEDDED: Prompt(mine)})
    want = pooled(cut + other.mean(dim=0)[None, :, None, None], state).transpose(0, 1)
    want = want[:, 0] if stop == "features" else want
    direction = normal(*want.shape, seed=2)
    gradients = [torch.autograd.grad((out * direction).sum(), x)[0] for out, x in ((got, mine), (want, other))]
    assert difference(got, want) < 1e-4
    assert relative(got, clip.vision(cut, start="map", stop=stop)) > 1e-2
    assert relative(*gradients) < 1e-4


def test_low_rank_deltas_of_the_pool(clip: Clip, state: State) -> None:
    """Broken: a delta of q, k or v that does not act as W + scale · B A in the attention pool."""
    cut = normal(1, POOL, SIDE, SIDE).abs()
    merged, deltas = dict(state), {}
    for seed, which in enumerate("qkv"):
        deltas[0, which] = delta = low_rank(POOL, seed=10 * seed, dtype=torch.float32)
        key = f"visual.attnpool.{which}_proj.weight"
        merged[key] = (state[key] + delta.scale * delta.B @ delta.A).detach()
    got = clip.vision(cut, start="map", deltas=deltas)
    want = pooled(cut, merged)[0]
    assert relative(got, want) < 1e-4
    assert relative(got, pooled(cut, state)[0]) > 1e-2


def test_statistics_stay(clip: Clip) -> None:
    """Broken: a forward pass in training code moves the frozen BatchNorm statistics."""
    before = {k: v.clone() for k, v in clip.state_dict().items() if "running" in k}
    assert not clip.training
    clip.vision(normal(1, 3, 224, 224) + 3)
    assert all(torch.equal(clip.state_dict()[k], v) for k, v in before.items())
