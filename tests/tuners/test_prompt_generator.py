"""FedTPG's prompt generator: by hand, against torch's own modules, and what it reads."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtailor.base.errors import UserError
from fedtailor.clip.model import Shape
from fedtailor.core.model import Model
from fedtailor.core.types import Params
from fedtailor.tuners.prompt_generator import PromptGenerator, generate
from fedtailor.tuners.text_prompt import TextPrompt
from tiny import RESNET, VIT
from world import NAMES, checkpoint

SQUARE = replace(VIT, embed=24)  # features as wide as the text tower, as in ViT-B/16


def model(shape: Shape = VIT, template: str = "a photo of a {}.", names: tuple[str, ...] = NAMES, M: int = 4) -> Model:
    return Model.of(checkpoint(shape), PromptGenerator(length=M), names, template)


def moved(m: Model) -> Params:
    rng = torch.Generator().manual_seed(1)
    start = m.init(torch.Generator().manual_seed(0))
    return {n: v + 0.3 * torch.randn(v.shape, generator=rng) for n, v in start.items()}


def test_by_hand() -> None:
    """One query on two names, width 2, one head.

    Layer norm makes (1, 0) into (1, −1) and (0, 1) into (−1, 1), but for its epsilon. With W_K = W_V = I and
    W_Q = c I the scores are ±2c/√2; c = √2 ln(3)/4 puts ln 3 between them, so attention is (3/4, 1/4) and gives
    x = 3/4 (1, −1) + 1/4 (−1, 1) = (0.5, −0.5): the query itself is not added. Its norm is (1, −1) again; of the
    eight values only the first is not 0, 3 · 1 = 3, with a gate of 1: 3 gelu(1) = 3 (1 + erf(1/√2))/2 = 2.524034. Twice
    that goes to the first coordinate of x: (5.548068, −0.5).
    """
    theta = {f"generator.{norm}.weight": torch.ones(2) for norm in ("norm_q", "norm_kv", "norm_ff")}
    theta |= {f"generator.{norm}.bias": torch.zeros(2) for norm in ("norm_q", "norm_kv", "norm_ff")}
    theta |= {f"generator.{matrix}.weight": torch.eye(2) for matrix in ("k", "v", "out")}
    theta |= {f"generator.{vector}.bias": torch.zeros(2) for vector in ("q", "v", "out", "narrow")}
    theta["generator.queries"] = torch.tensor([[1.0, 0.0]])
    theta["generator.q.weight"] = torch.eye(2) * math.sqrt(2) * math.log(3) / 4
    theta["generator.widen.weight"], theta["generator.widen.bias"] = torch.zeros(16, 2), torch.zeros(16)
    theta["generator.widen.weight"][0, 0], theta["generator.widen.bias"][8] = 3.0, 1.0
    theta["generator.narrow.weight"] = torch.zeros(2, 8)
    theta["generator.narrow.weight"][0, 0] = 2.0
    rows = generate(theta, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), heads=1)
    torch.testing.assert_close(rows, torch.tensor([[5.548068, -0.5]]), atol=1e-3, rtol=0)


class Twin(nn.Module):
    """The same network of torch's modules."""

    def __init__(self, W: int, D: int) -> None:
        super().__init__()
        self.norm_q, self.norm_kv, self.norm_ff = nn.LayerNorm(W), nn.LayerNorm(D), nn.LayerNorm(W)
        self.attention = nn.MultiheadAttention(W, 4, kdim=D, vdim=D)
        self.widen, self.narrow = nn.Linear(W, 8 * W), nn.Linear(4 * W, W)

    def forward(self, queries: Tensor, names: Tensor) -> Tensor:
        read = self.norm_kv(names)
        x, _ = self.attention(self.norm_q(queries), read, read)
        values, gates = self.widen(self.norm_ff(x)).tensor_split(2, dim=1)
        out: Tensor = self.narrow(nn.GELU()(gates) * values) + x
        return out

    def matrices(self) -> dict[str, Tensor]:
        """q, k and v: three matrices, or one where the widths agree."""
        a = self.attention
        parts = (a.q_proj_weight, a.k_proj_weight, a.v_proj_weight) if a.in_proj_weight is None else a.in_proj_weight
        return dict(zip("qkv", parts.chunk(3) if isinstance(parts, Tensor) else parts, strict=True))

    def named(self) -> dict[str, Tensor]:
        """By our names, as views."""
        out = {f"{which}.weight": matrix for which, matrix in self.matrices().items()}
        out |= dict(zip(("q.bias", "k.bias", "v.bias"), self.attention.in_proj_bias.chunk(3), strict=True))
        out |= {n.replace("attention.out_proj", "out"): v for n, v in self.named_parameters() if "in_proj" not in n}
        return {n: v for n, v in out.items() if "attention" not in n}


@pytest.mark.parametrize("shape", [VIT, SQUARE])
def test_equals_torchs_modules(shape: Shape) -> None:
    """Whatever the bias of the keys, which ours has none of."""
    m = model(shape)
    theta, twin = moved(m), Twin(shape.text_width, shape.embed)
    named = twin.named()
    ours = {n.removeprefix("generator."): v for n, v in theta.items()}
    assert named.keys() - ours.keys() == {"k.bias"}
    assert ours.keys() - named.keys() == {"queries"}
    with torch.no_grad():
        for name, value in named.items():
            value.copy_(torch.linspace(-1, 1, len(value)) if name == "k.bias" else ours[name])
        expected = twin(ours["queries"], m.names)
        torch.testing.assert_close(generate(theta, m.names, 4), expected)
        assert expected.shape == (4, shape.text_width)


@pytest.mark.parametrize("shape", [VIT, SQUARE])
def test_begins_as_torchs_modules(shape: Shape) -> None:
    """The same bounds of uniform draws, the same ones and zeros; queries are N(0, 0.02²)."""
    theta = model(shape, M=200).init(torch.Generator().manual_seed(0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        twin = Twin(shape.text_width, shape.embed).named()
    queries = theta.pop("generator.queries")
    assert queries.std().item() == pytest.approx(0.02, rel=0.05)
    assert queries.mean().abs() < 1e-3
    for name, value in theta.items():
        theirs = twin[name.removeprefix("generator.")]
        assert value.shape == theirs.shape
        constant = torch.equal(theirs, theirs[:1].expand_as(theirs)) and theirs.dim() == 1
        if constant:
            assert torch.equal(value, theirs), name
        else:
            sure = 0.03 if value.dim() > 1 else 0.15  # the largest of a bias's few draws is not that near the bound
            assert value.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=sure), name
            assert value.std().item() == pytest.approx(theirs.std().item(), rel=2 * sure), name


def test_what_it_writes_is_the_context() -> None:
    m = model()
    theta = moved(m)
    rows = generate(theta, m.names, 4)
    plain = Model.of(checkpoint(), TextPrompt(), NAMES, "a photo of a {}.")
    torch.testing.assert_close(m.text(theta), plain.text({"text.ctx": rows}))


def test_it_reads_bare_names() -> None:
    """No template and no period, normalised; in any order, and other names give another context."""
    m = model()
    theta = moved(m)
    bare = model(template="{}").zero_shot
    torch.testing.assert_close(m.names, bare)
    torch.testing.assert_close(m.names.norm(dim=-1), torch.ones(len(NAMES)))

    def rows(m: Model) -> Tensor:
        shared = m.bend(theta).shared
        assert shared is not None
        return shared

    torch.testing.assert_close(rows(m), generate(theta, bare, 4))
    torch.testing.assert_close(rows(model(template="an etching of the {}")), rows(m))
    torch.testing.assert_close(rows(model(names=NAMES[::-1])), rows(m))
    assert not torch.allclose(rows(model(names=NAMES[:2])), rows(m), atol=1e-3)


@pytest.mark.parametrize("shape", [VIT, SQUARE, RESNET])
def test_every_parameter_acts(shape: Shape) -> None:
    m = model(shape)
    theta = {n: v.requires_grad_() for n, v in moved(m).items()}
    x = torch.randn(3, shape.embed, generator=torch.Generator().manual_seed(2))
    assert m.stage == "features"
    loss = F.cross_entropy(m.logits(theta, x), torch.tensor([0, 1, 2]))
    for n, grad in zip(theta, torch.autograd.grad(loss, list(theta.values())), strict=True):
        assert grad.abs().max() > 1e-5, n


def test_heads_divide_the_width() -> None:
    m = Model.of(checkpoint(), PromptGenerator(heads=5), NAMES, "{}")
    with pytest.raises(UserError, match="heads=5 does not divide the text tower's width 24"):
        m.init(torch.Generator())
