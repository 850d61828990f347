"""The network trained from nothing: its shapes and sizes, a twin of torch's own modules, its random views."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtailor.clip.encoder import Encoder
from fedtailor.clip.feature_cache import activations
from fedtailor.clip.load import digest
from fedtailor.clip.model import Shape
from fedtailor.core.model import Model
from fedtailor.core.types import Params
from fedtailor.data.preprocess import Preprocess
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from fedtailor.tuners import TUNERS
from fedtailor.tuners.resnet import ResNet, random_views
from tiny import RESNET, VIT
from world import NAMES, checkpoint, dataset, world


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(shape: Shape = VIT, **options: Any) -> Model:
    return Model.of(checkpoint(shape), ResNet(**{"width": 4, **options}), NAMES, "a photo of a {}.")


def pictures(count: int = 3, size: int = 32, seed: int = 2) -> Tensor:
    return torch.randn(count, 3, size, size, generator=seeded(seed))


# --- the network ----------------------------------------------------------------------------------------------------


class Basic(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = unit(inside, outside, 3, stride, groups)
        self.conv2 = unit(outside, outside, 3, 1, groups)
        if stride > 1:
            self.skip = unit(inside, outside, 1, stride, groups)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(torch.relu(self.conv1(x)))
        return torch.relu(out + (self.skip(x) if hasattr(self, "skip") else x))


class Waist(nn.Module):
    """The stride is in the middle, as in the networks that torchvision has."""

    def __init__(self, inside: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = unit(inside, outside, 1, 1, groups)
        self.conv2 = unit(outside, outside, 3, stride, groups)
        self.conv3 = unit(outside, 4 * outside, 1, 1, groups)
        if inside != 4 * outside:
            self.skip = unit(inside, 4 * outside, 1, stride, groups)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv3(torch.relu(self.conv2(torch.relu(self.conv1(x)))))
        return torch.relu(out + (self.skip(x) if hasattr(self, "skip") else x))


def unit(inside: int, outside: int, side: int, stride: int, groups: int) -> nn.Sequential:
    conv = nn.Conv2d(inside, outside, side, stride, side // 2, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.GroupNorm(groups, outside)))


def twin(depth: int, width: int, groups: int, classes: int) -> nn.Module:
    """The same network in torch's modules, written out stage by stage."""
    layout = {8: [1, 1, 1], 18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3]}[depth]
    block, factor = (Waist, 4) if depth == 50 else (Basic, 1)
    net, inside = nn.Sequential(), width
    stem = [*(unit(3, width, 7, 2, groups) if depth == 50 else unit(3, width, 3, 1, groups)).named_children()]
    stem += [("relu", nn.ReLU()), *([("pool", nn.MaxPool2d(3, 2, 1))] if depth == 50 else [])]
    net.add_module("stem", nn.Sequential(OrderedDict(stem)))
    for number, count in enumerate(layout, 1):
        outside = width * 2 ** (number - 1)
        first = block(inside, outside, 1 if number == 1 else 2, groups)
        more = (block(factor * outside, outside, 1, groups) for _ in range(count - 1))
        net.add_module(f"stage{number}", nn.Sequential(first, *more))
        inside = factor * outside
    whole = OrderedDict(net=net, pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), head=nn.Linear(inside, classes))
    return nn.Sequential(whole)


@pytest.mark.parametrize(("depth", "factor"), [(8, 4), (18, 8), (34, 8), (50, 32)])
@pytest.mark.parametrize("groups", [1, 2])
def test_equal_to_a_twin_of_modules(depth: int, factor: int, groups: int) -> None:
    """Logits and the gradient of every parameter; the twin's names are ours, but for `conv.` before its weights."""
    m = model(depth=depth, groups=groups, size=0)
    theta = {n: v + 0.1 * torch.randn(v.shape, generator=seeded(5)) for n, v in m.init(seeded()).items()}
    other = twin(depth, 4, groups, len(NAMES))
    names = {name: name.replace(".conv.weight", ".weight") for name, _ in other.named_parameters()}
    assert set(names.values()) == set(theta)
    other.load_state_dict({name: theta[ours] for name, ours in names.items()})
    leaves = {n: v.requires_grad_() for n, v in theta.items()}
    x, y = pictures(size=64 if depth == 50 else 32), torch.tensor([0, 1, 2])
    ours, theirs = m.logits(leaves, x), other(x)
    assert m.features(leaves, x).shape == (3, factor * 4)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    F.cross_entropy(theirs, y).backward()
    found = torch.autograd.grad(F.cross_entropy(ours, y), list(leaves.values()))
    grads = dict(zip(leaves, found, strict=True))
    for name, parameter in other.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0, name
        torch.testing.assert_close(grads[names[name]], parameter.grad, atol=1e-5, rtol=1e-3)


def test_size_by_hand() -> None:
    """Width 2, five classes: convolutions of 9·in·out (1·in·out aside), 2 a channel in the norms.

    stem     27·2 + 4                                          = 58
    stage 1  2·(9·2·2 + 4)                                     = 80
    stage 2  9·2·4 + 8 + 9·4·4 + 8 + 2·4 + 8                   = 248
    stage 3  9·4·8 + 16 + 9·8·8 + 16 + 4·8 + 16                = 944
    head     8·5 + 5                                           = 45
    """
    theta = model(width=2).init(seeded())
    parts = dict.fromkeys(("net.stem", "net.stage1", "net.stage2", "net.stage3", "head"), 0)
    for name, value in theta.items():
        parts[next(part for part in parts if name.startswith(part))] += value.numel()
    assert list(parts.values()) == [58, 80, 248, 944, 45]
    assert theta["head.weight"].shape == (5, 8)
    assert {"net.stem.weight", "net.stage1.0.conv1.weight", "net.stage2.0.skip.norm.bias", "head.bias"} <= theta.keys()


def test_the_usual_sizes() -> None:
    """ResNet-8 of 64 channels has 256 features and 1.2 million weights, ResNet-18 and -34 have 11 and 21 million."""
    sizes = {
        depth: sum(v.numel() for v in model(depth=depth, width=64).init(seeded()).values()) for depth in (8, 18, 34)
    }
    assert ResNet().depth == 8
    assert model(width=64).init(seeded())["head.weight"].shape == (5, 256)
    assert [round(size / 1e6, 1) for size in sizes.values()] == [1.2, 11.2, 21.3]


def test_resnet_50_is_as_large_as_everyones() -> None:
    """25,557,032 numbers for 1000 classes, as torchvision's has: its batch norms learn as many as our group norms."""
    m = Model.of(checkpoint(VIT), ResNet(depth=50, size=224), [f"thing {i}" for i in range(1000)], "a {}")
    theta = m.init(seeded())
    assert sum(value.numel() for value in theta.values()) == 25_557_032
    assert theta["head.weight"].shape == (1000, 2048)
    assert theta["net.stem.weight"].shape == (64, 3, 7, 7)


def test_resnet_50_at_224_pixels_learns_everywhere() -> None:
    """Of a picture of 224 pixels the last stage sees 7 × 7; every parameter gets a gradient."""
    m = model(depth=50, size=224, groups=1)
    theta = {n: v.requires_grad_() for n, v in m.init(seeded()).items()}
    loss = F.cross_entropy(m.logits(theta, pictures(2, 224), seeded()), torch.tensor([0, 1]))
    found = torch.autograd.grad(loss, list(theta.values()))
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in found)


def test_first_weights() -> None:
    """Convolutions N(0, 2/(9·out)), norms 1 and 0, the head as torch's Linear; from the generator alone."""
    m = model(width=64)
    theta, again, other = m.init(seeded()), m.init(seeded()), m.init(seeded(1))
    assert all(torch.equal(theta[n], again[n]) for n in theta)
    assert not torch.equal(theta["net.stem.weight"], other["net.stem.weight"])
    for name, out in (("net.stage1.0.conv1", 64), ("net.stage3.0.conv1", 256)):
        assert theta[f"{name}.weight"].std().item() == pytest.approx((2 / (9 * out)) ** 0.5, rel=0.02)
    assert theta["net.stage3.0.skip.weight"].std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.02)
    norms = [v for n, v in theta.items() if ".norm." in n]
    assert all(v.eq(1).all() or v.eq(0).all() for v in norms)
    assert theta["head.weight"].abs().max() <= 256**-0.5


@pytest.mark.parametrize("size", [32, 64, 224])
def test_pictures_of_any_size(size: int) -> None:
    """By default larger ones are averaged down to 32 pixels; with size=0 they stay as they are."""
    x = pictures(2, size)
    small, whole = model(), model(size=0)
    theta = small.init(seeded())
    assert small.features(theta, x, seeded()).shape == (2, 16)
    torch.testing.assert_close(small.logits(theta, x), whole.logits(theta, F.avg_pool2d(x, size // 32)))
    assert torch.allclose(small.logits(theta, x), whole.logits(theta, x), atol=1e-6) == (size == 32)


def test_a_width_that_groups_do_not_divide() -> None:
    with pytest.raises(ValueError, match="divisor"):
        ResNet(width=6, groups=4)
    with pytest.raises(ValueError, match="8, 18, 34 or 50"):
        ResNet(depth=10)  # type: ignore[arg-type]


def test_a_batch_can_be_learned_by_heart() -> None:
    m = model(width=8, augment=False)
    theta = {n: v.requires_grad_() for n, v in m.init(seeded()).items()}
    x, y = pictures(10), torch.arange(10) % 5
    optimiser = torch.optim.SGD(theta.values(), 0.05, momentum=0.9)
    for _ in range(40):
        loss = F.cross_entropy(m.logits(theta, x, seeded()), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert (m.logits(theta, x).argmax(1) == y).all()
    assert loss.item() < 0.1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_precision_is_the_backbones(precision: str) -> None:
    """Under autocast the convolutions are rougher, what comes out is fp32 again."""
    plain, cast = model(), Model.of(checkpoint(), ResNet(width=4), NAMES, "a {}", precision=precision)
    theta = plain.init(seeded())
    exact, found = plain.features(theta, pictures()), cast.features(theta, pictures())
    assert found.dtype == torch.float32
    assert torch.equal(found, exact) == (precision == "fp32")
    torch.testing.assert_close(found, exact, atol=0.05, rtol=0.05)


# --- random views ---------------------------------------------------------------------------------------------------


def test_views_are_drawn_in_training_only() -> None:
    m, still = model(), model(augment=False)
    theta, x = m.init(seeded()), pictures()
    assert torch.equal(m.logits(theta, x), still.logits(theta, x, seeded(1)))
    assert torch.equal(m.logits(theta, x, seeded(1)), m.logits(theta, x, seeded(1)))
    assert not torch.equal(m.logits(theta, x, seeded(1)), m.logits(theta, x))
    assert not torch.equal(m.logits(theta, x, seeded(1)), m.logits(theta, x, seeded(2)))


def test_draws_come_from_the_generator_alone() -> None:
    before, x = torch.get_rng_state(), pictures()
    rng = seeded(1)
    random_views(x, rng)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(rng.get_state(), seeded(1).get_state())
    rng = seeded(1)
    model(augment=False).logits(model().init(seeded()), x, rng)
    assert torch.equal(rng.get_state(), seeded(1).get_state())


def test_every_view_is_a_shift_perhaps_mirrored() -> None:
    """Of 16 pixels with a rim of 2: one of 5 · 5 crops, or its mirror image; all of them occur about as often."""
    x = pictures(1, 16).expand(2000, -1, -1, -1)
    padded = F.pad(x[0], [2] * 4)
    crops = [padded[:, top : top + 16, left : left + 16] for top in range(5) for left in range(5)]
    every = torch.stack(crops + [crop.flip(2) for crop in crops]).flatten(1)
    views = random_views(x, seeded(3))
    assert views.shape == x.shape
    which = torch.cdist(views.flatten(1), every).argmin(1)
    assert torch.equal(views.flatten(1), every[which])
    assert (torch.bincount(which, minlength=50) > 15).all()  # 40 expected


def test_the_rim_is_an_eighth() -> None:
    for size, rim in ((32, 4), (64, 8), (4, 0)):
        ones = random_views(torch.ones(500, 3, size, size), seeded())
        rows = ones[:, 0].amax(dim=2).sum(dim=1)  # rows not wholly from outside
        assert rows.min() == size - rim
        assert torch.equal(ones[:, 0], ones[:, 2])


# --- in the package -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [VIT, RESNET])
def test_pixels_are_cached_as_they_are(shape: Shape, tmp_path: Path) -> None:
    m = model(shape)
    assert m.stage == "pixels"
    clip, images = m.clip, dataset().test.images
    transform = Preprocess(32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    kept = activations(Encoder(clip, digest(clip), transform, m.stage, m.device), images, tmp_path)
    assert kept.shape == (len(images), 3, 32, 32)
    assert torch.equal(torch.tensor(kept[3]), transform(images.read(3)))


@pytest.mark.parametrize("shape", [VIT, RESNET])
def test_clip_is_still_there_beside_it(shape: Shape) -> None:
    """Teachers and labelers look at the same pixels through CLIP."""
    m, x = model(shape), pictures()
    z = F.normalize(m.clip.vision(x), dim=-1)
    torch.testing.assert_close(m.zero_shot_logits(x), m.clip.scale * z @ m.zero_shot.T)
    assert m.tuner.touches() == {"image", "classifier"}
    assert torch.equal(m.text(m.init(seeded())), m.zero_shot)


def test_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAvg of the network's weights, all of which move."""
    monkeypatch.setitem(TUNERS, "resnet", ResNet)
    experiment = world("fedavg", "resnet", rounds=1, fraction=1.0, **{"tuner.width": 4})
    start = experiment.job.first_server()
    server, _ = run_round(experiment, start, make_engine(experiment))
    moved: Params = {n: v for n, v in server.params.items() if not torch.equal(v, start.params[n])}
    assert moved.keys() == experiment.job.start.keys()


def test_a_test_set_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a gradient no more than so many pictures are in the network at once; the features are the same."""
    m = model(width=4)
    theta, x = m.init(torch.Generator().manual_seed(0)), torch.randn(7, 3, 32, 32)
    seen: list[int] = []
    whole = ResNet.features

    def features(self: ResNet, theta: Params, x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return whole(self, theta, x)

    monkeypatch.setattr(ResNet, "features", features)
    monkeypatch.setattr("fedtailor.tuners.resnet.TESTED", 3)
    together = m.features(theta, x)
    with torch.no_grad():
        torch.testing.assert_close(m.features(theta, x), together)
    assert seen == [7, 3, 3, 1]
