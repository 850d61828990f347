"""A small residual network, trained from nothing in place of CLIP: what federated methods before CLIP train.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016; Wu and He, Group Normalization, ECCV 2018.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from ..clip.model import Clip
from ..core import Bend, Model, Params, Tuner, linear, linear_init, normal

TESTED = 256  # pictures of 32 pixels at once in a test, which asks for all of them; of larger ones as many fewer
BLOCKS = {8: (1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}  # by depth: blocks in each stage


class Conv(NamedTuple):
    name: str
    inside: int  # channels
    outside: int
    side: int
    stride: int = 1


DEPTHS = (
    "8: three stages, features of 4·width · 18, 34: four stages, 8·width · "
    "50: bottlenecks behind ImageNet's stem, for pictures of 224 pixels (size=224), 32·width"
)


class ResNet(Tuner):
    """All of the network's weights are parameters. Norms are of groups: the running statistics of skewed clients are
    not learned by gradients, nor safe to average."""

    acts_on = frozenset({"image", "classifier"})

    depth: Literal[8, 18, 34, 50] = Field(8, description=DEPTHS)
    width: int = Field(64, ge=1, le=4096, description="channels of the first stage, doubled with each further one")
    groups: int = Field(2, ge=1, description="of channels, each normalised together; divides the width")
    size: int = Field(
        32, ge=0, le=4096, description="larger pictures are averaged down to this side first; 0: as they are"
    )
    augment: bool = Field(True, description="in training: crops out of a rim of an eighth of the side, half mirrored")

    @model_validator(mode="after")
    def fits(self) -> Self:
        if self.width % self.groups:
            raise ValueError(f"width={self.width} cannot be cut into groups={self.groups}; take a divisor of it")
        return self

    def stage(self, clip: Clip) -> str:
        return "pixels"

    @property
    def large(self) -> bool:
        """ImageNet's network: its stem makes pictures a quarter as wide, and its blocks have a waist."""
        return self.depth == 50

    @property
    def stem(self) -> Conv:
        return Conv("net.stem", 3, self.width, 7, 2) if self.large else Conv("net.stem", 3, self.width, 3)

    def blocks(self) -> Iterator[tuple[list[Conv], Conv | None]]:
        """The convolutions of every block, and the one on the way aside, where the number of channels changes."""
        inside = self.width
        for i, count in enumerate(BLOCKS[self.depth]):
            for j in range(count):
                name, width, stride = f"net.stage{i + 1}.{j}", self.width << i, 2 if i > 0 and j == 0 else 1
                if self.large:
                    first, last = Conv(f"{name}.conv1", inside, width, 1), Conv(f"{name}.conv3", width, 4 * width, 1)
                    convs = [first, Conv(f"{name}.conv2", width, width, 3, stride), last]
                else:
                    convs = [Conv(f"{name}.conv1", inside, width, 3, stride), Conv(f"{name}.conv2", width, width, 3)]
                outside = convs[-1].outside
                yield convs, Conv(f"{name}.skip", inside, outside, 1, stride) if inside != outside else None
                inside = outside

    def init(self, model: Model, rng: torch.Generator) -> Params:
        theta = conv_init(self.stem, rng)
        for convs, aside in self.blocks():
            for conv in [*convs, aside] if aside else convs:
                theta |= conv_init(conv, rng)
        outside = convs[-1].outside
        return theta | linear_init("head", outside, model.classes, rng)

    def bend(self, theta: Params, model: Model) -> Bend:
        def net(pixels: Tensor, rng: torch.Generator | None) -> Tensor:
            x = pixels if not 0 < self.size < pixels.shape[-1] else F.adaptive_avg_pool2d(pixels, self.size)
            if self.augment and rng is not None:
                x = random_views(x, rng)
            some = [x] if torch.is_grad_enabled() else x.split(max(1, TESTED * 32**2 // x[0, 0].numel()))
            with model.cast():  # channels last: 1.1 to 1.4 times as fast on CPUs
                found = [self.features(theta, part.contiguous(memory_format=torch.channels_last)) for part in some]
            return torch.cat(found).float()

        return Bend(net=net, head=partial(linear, theta, "head"))

    def features(self, theta: Params, x: Tensor) -> Tensor:
        """(B, 3, S, S) → (B, F)."""

        def go(x: Tensor, conv: Conv, stride: int) -> Tensor:
            out = F.conv2d(x, theta[f"{conv.name}.weight"], stride=stride, padding=conv.side // 2)
            return F.group_norm(out, self.groups, theta[f"{conv.name}.norm.weight"], theta[f"{conv.name}.norm.bias"])

        x = F.relu(go(x, self.stem, self.stem.stride))
        x = F.max_pool2d(x, 3, 2, 1) if self.large else x
        for (*convs, last), aside in self.blocks():
            # Every other pixel, then a convolution: with a stride, oneDNN crashes at few channels.
            beside = x if aside is None else go(x[:, :, :: aside.stride, :: aside.stride], aside, 1)
            for conv in convs:
                x = F.relu(go(x, conv, conv.stride))
            x = F.relu(go(x, last, last.stride) + beside)
        return x.mean(dim=(2, 3))


def conv_init(conv: Conv, rng: torch.Generator) -> dict[str, Tensor]:
    """A convolution as He et al. begin it (fan-out), and the norm behind it."""
    name, inside, outside, side, _ = conv
    weight = normal((outside, inside, side, side), rng, math.sqrt(2 / (outside * side**2)))
    norm = {f"{name}.norm.weight": torch.ones(outside), f"{name}.norm.bias": torch.zeros(outside)}
    return {f"{name}.weight": weight, **norm}


def random_views(x: Tensor, rng: torch.Generator) -> Tensor:
    """Each picture shifted by up to an eighth of its side, zeros coming in, and mirrored half the time."""
    side, rim = x.shape[-1], x.shape[-1] // 8
    top, left = torch.randint(2 * rim + 1, (2, len(x), 1), generator=rng)
    mirrored = torch.rand(len(x), 1, generator=rng) < 0.5
    at = torch.arange(side)
    rows, columns = top + at, left + torch.where(mirrored, at.flip(0), at)  # (B, S) each
    which = torch.arange(len(x))[:, None, None]
    index = (i.to(x.device) for i in (which, rows[:, :, None], columns[:, None, :]))
    return F.pad(x, [rim] * 4).permute(0, 2, 3, 1)[tuple(index)].permute(0, 3, 1, 2)
