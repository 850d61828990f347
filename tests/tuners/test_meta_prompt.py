"""CoCoOp's tuner: equal to the authors' code; and per-image sentences in parts equal those at once, in less memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedtailor.clip.model import Shape
from fedtailor.core import model as model_module
from fedtailor.core.model import Model, Tuner
from fedtailor.core.optim import LocalTraining
from fedtailor.core.types import Params
from fedtailor.tuners.join import Join
from fedtailor.tuners.lora import Lora
from fedtailor.tuners.meta_prompt import MetaPrompt, shift
from fedtailor.tuners.text_prompt import TextPrompt
from golden_numbers import GoldenCase, close, close_gradient, golden
from tiny import RESNET, VIT
from torch_optimisers import torch_optimiser
from world import NAMES, checkpoint

WIDE = replace(VIT, text_width=96, text_layers=6)


def model(tuner: Tuner, shape: Shape = VIT) -> Model:
    return Model.of(checkpoint(shape), tuner, NAMES, "a photo of a {}.")


def moved(m: Model) -> Params:
    """Parameters away from their start, as leaves."""
    rng = torch.Generator().manual_seed(1)
    start = m.init(torch.Generator().manual_seed(0))
    return {n: (v + 0.3 * torch.randn(v.shape, generator=rng)).requires_grad_() for n, v in start.items()}


def features(n: int) -> Tensor:
    return torch.randn(n, VIT.embed, generator=torch.Generator().manual_seed(2))


def run(m: Model, theta: Params, x: Tensor, seed: int | None = None) -> tuple[Tensor, list[Tensor]]:
    """Logits and the gradients of a loss."""
    logits = m.logits(theta, x, None if seed is None else torch.Generator().manual_seed(seed))
    loss = F.cross_entropy(logits, torch.arange(len(x)) % len(NAMES))
    return logits.detach(), list(torch.autograd.grad(loss, list(theta.values())))


@contextmanager
def counting(m: Model) -> Iterator[list[int]]:
    """How many images each run of the text tower had."""
    sizes: list[int] = []
    hook = m.clip.text.register_forward_hook(lambda tower, given, out: sizes.append(len(out)))
    try:
        yield sizes
    finally:
        hook.remove()


def test_golden_cocoop() -> None:
    """Logits, loss, gradients and two steps of SGD."""
    g = golden("cocoop")
    case = GoldenCase(MetaPrompt(length=4))
    names = {"text.ctx": "ctx"}
    for ours, theirs in (("in", "linear1"), ("out", "linear2")):
        names |= {f"meta.{ours}.{end}": f"meta_net.{theirs}.{end}" for end in ("weight", "bias")}
    now = {ours: g[f"input.prompt_learner.{theirs}"].clone() for ours, theirs in names.items()}
    start = case.model.init(torch.Generator())
    assert {n: v.shape for n, v in now.items()} == {n: v.shape for n, v in start.items()}
    close(case.logits(now), g["logits"])
    optimiser = torch_optimiser(LocalTraining(), list(now.values()))
    for step in (1, 2):
        loss, grads = case.gradients(now)
        for ours, theirs in names.items():
            if step == 1:
                close(loss, g["loss"])
                close_gradient(grads[ours], g[f"grad.prompt_learner.{theirs}"])
            now[ours].grad = grads[ours]
        optimiser.step()
        for ours, theirs in names.items():
            there = g[f"after_{step}_step.prompt_learner.{theirs}"]
            way = there - g[f"input.prompt_learner.{theirs}"]
            assert (now[ours] - there).norm() <= 1e-3 * way.norm() + 1e-6


def test_context_of_an_image_by_hand() -> None:
    """v_m(x) = v_m + π, π = W₂ relu(W₁ z + b₁) + b₂.

    W₁ = (1, −1), b₁ = 0.5: z = (0.6, 0.8) gives 0.3, z = (−0.6, 0.8) gives −0.9, so 0.
    W₂ = (10, −10)ᵀ, b₂ = (1, 2): π = (4, −1) and (1, 2).
    """
    theta = {
        "text.ctx": torch.tensor([[1.0, 0.0], [0.0, 5.0]]),
        "meta.in.weight": torch.tensor([[1.0, -1.0]]),
        "meta.in.bias": torch.tensor([0.5]),
        "meta.out.weight": torch.tensor([[10.0], [-10.0]]),
        "meta.out.bias": torch.tensor([1.0, 2.0]),
    }
    z = torch.tensor([[0.6, 0.8], [-0.6, 0.8]])
    torch.testing.assert_close(shift(theta, z), torch.tensor([[[4.0, -1.0]], [[1.0, 2.0]]]))
    bend = MetaPrompt(length=2).bend(theta, model(MetaPrompt()))
    assert bend.for_image is not None
    rows = bend.for_image(z)
    torch.testing.assert_close(rows, torch.tensor([[[5.0, -1.0], [4.0, 4.0]], [[2.0, 2.0], [1.0, 7.0]]]))


def test_each_image_has_its_own_sentences() -> None:
    """The logits of an image are those of a plain text prompt whose context was moved for it."""
    m, x = model(MetaPrompt(length=3)), features(4)
    theta = {n: v.detach() for n, v in moved(m).items()}
    plain = model(TextPrompt(length=3))
    z = F.normalize(x, dim=-1)
    one_by_one = [
        plain.logits({"text.ctx": theta["text.ctx"] + shift(theta, z[i : i + 1])[0]}, x[i : i + 1]) for i in range(4)
    ]
    torch.testing.assert_close(m.logits(theta, x), torch.cat(one_by_one))
    assert not torch.allclose(m.logits(theta, x), plain.logits({"text.ctx": theta["text.ctx"]}, x), atol=1e-2)


@pytest.mark.parametrize("length", [2, 9])  # "a photo of a" is nine letters, and this tokenizer's tokens are letters
def test_starts_as_words(length: int) -> None:
    """Without a shift, a context that starts as the template's words is the template; what is beyond M is frozen."""
    m, x = model(MetaPrompt(length=length, words="a photo of a")), features(3)
    theta = m.init(torch.Generator().manual_seed(0))
    still = {**theta, "meta.out.weight": theta["meta.out.weight"] * 0, "meta.out.bias": theta["meta.out.bias"] * 0}
    torch.testing.assert_close(m.logits(still, x), m.zero_shot_logits(x))
    assert not torch.allclose(m.logits(theta, x), m.zero_shot_logits(x), atol=1e-3)


def test_width_of_the_meta_net() -> None:
    wide = replace(VIT, embed=48)
    for tuner, shape, hidden in ((MetaPrompt(), VIT, 1), (MetaPrompt(), wide, 3), (MetaPrompt(hidden=7), VIT, 7)):
        theta = model(tuner, shape).init(torch.Generator())
        assert theta["meta.in.weight"].shape == (hidden, shape.embed)
        assert theta["meta.out.weight"].shape == (shape.text_width, hidden)
    small = replace(VIT, embed=8)
    assert len(model(MetaPrompt(), small).init(torch.Generator())["meta.in.bias"]) == 1


def test_on_a_resnet() -> None:
    m = model(MetaPrompt(), RESNET)
    theta = moved(m)
    logits, grads = run(m, theta, features(3))
    assert logits.shape == (3, len(NAMES))
    assert all(g.abs().sum() > 0 for g in grads)


# --- a few images at a time (Model.cosines) -------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [1, 1_000_000])
def test_parts_equal_the_whole(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    m, x = model(MetaPrompt()), features(7)
    theta = moved(m)
    with counting(m) as sizes:
        whole, slopes = run(m, theta, x)
        assert sizes == [7]
    monkeypatch.setattr(model_module, "TEXT_BYTES", bound)
    with counting(m) as sizes:
        parts, slopes_of_parts = run(m, theta, x)
    assert 1 < len(sizes) // 2 <= 7
    assert sum(sizes) == 14  # each image once, and once more on the way back
    assert (set(sizes) == {1}) == (bound == 1)
    torch.testing.assert_close(parts, whole)
    for a, b in zip(slopes_of_parts, slopes, strict=True):
        assert (a - b).norm() <= 1e-5 * b.norm()
    with torch.no_grad(), counting(m) as sizes:
        torch.testing.assert_close(m.logits(theta, x), whole)
    assert sum(sizes) == 7


class Held(TorchDispatchMode):
    """The largest number of bytes of tensors made under it and held at once, without CLIP's own weights."""

    def __init__(self, m: Model) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights = {StorageWeakRef(p.untyped_storage()) for p in m.clip.parameters()}
        self.made: dict[StorageWeakRef, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for storage in (leaf.untyped_storage() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)):
            if (ref := StorageWeakRef(storage)) not in self.made and ref not in self.weights:
                self.made[ref] = storage.nbytes()
                self.now += storage.nbytes()
        if self.now > self.peak:  # only then does it matter what was let go of since
            self.made = {ref: n for ref, n in self.made.items() if not ref.expired()}
            self.now = sum(self.made.values())
            self.peak = max(self.peak, self.now)
        return out


def peak(m: Model, theta: Params, x: Tensor) -> int:
    """Of a run there and back."""
    m.layout  # noqa: B018  # made once for ever, before anything is counted
    held = Held(m)
    with held:
        run(m, theta, x, seed=3)
    return held.peak


@pytest.mark.parametrize(
    "tuner",
    [
        MetaPrompt(length=4),
        MetaPrompt(length=32),  # attention has a copy of the context for each class
        Join(parts=(MetaPrompt(length=4), Lora(towers="text", matrices="qkvo", dropout=0.5))),
    ],
)
def test_memory_stays_under_the_bound(tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty-four images at once need four times the bound; in parts, never more than it, and not much less either."""
    m, x = model(tuner, WIDE), features(24)
    theta = moved(m)
    bound = peak(m, theta, x) // 4
    monkeypatch.setattr(model_module, "TEXT_BYTES", bound)
    with counting(m) as sizes:
        found = peak(m, theta, x)
    assert 0.6 * bound < found <= bound
    assert 4 < len(sizes) // 2 <= 6


DROPPING = Join(parts=(MetaPrompt(length=2), Lora(towers="text", matrices="qkvo", dropout=0.5)))


def test_dropout_in_parts_has_the_right_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is dropped on the way back is what was dropped on the way there: as without any recomputation."""
    m, x = model(DROPPING), features(6)
    theta = moved(m)
    monkeypatch.setattr(model_module, "TEXT_BYTES", 300_000)
    with counting(m) as sizes:
        logits, grads = run(m, theta, x, seed=5)
    assert len(sizes) > 2

    def plainly(some: Any, *given: Any, use_reentrant: bool) -> Tensor:
        out: Tensor = some(*given)
        return out

    monkeypatch.setattr(model_module, "checkpoint", plainly)
    with counting(m) as once:
        plain, slopes = run(m, theta, x, seed=5)
    assert 2 * len(once) == len(sizes)
    assert torch.equal(logits, plain)
    for a, b in zip(grads, slopes, strict=True):
        assert b.norm() > 0
        assert (a - b).norm() <= 1e-5 * b.norm()
    assert not torch.allclose(logits, run(m, theta, x, seed=6)[0], atol=1e-3)
    assert not torch.allclose(logits, run(m, theta, x)[0], atol=1e-3)


def test_one_seed_for_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts drop different things; nothing is drawn for images that share a part."""
    m = model(DROPPING)
    theta = {n: v.detach() for n, v in moved(m).items()}
    x = features(1).expand(4, -1)

    def drawn() -> tuple[Tensor, int]:
        rng, again = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
        logits, draws = m.logits(theta, x, rng), 0
        while not torch.equal(again.get_state(), rng.get_state()):
            torch.randint(1 << 62, (), generator=again)
            draws += 1
        return logits, draws

    assert drawn()[1] == 1
    monkeypatch.setattr(model_module, "TEXT_BYTES", 1)
    logits, draws = drawn()
    assert draws == 4
    assert len(logits.unique(dim=0)) == 4
