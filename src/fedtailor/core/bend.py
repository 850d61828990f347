"""Everything a tuner can do to CLIP, as values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..clip.block import Deltas, Rng
from ..clip.vision import Prompts


@dataclass(frozen=True)
class Context:
    """The learned rows in a class's sentence: [SOS][shared][own][before][name][.][EOT]."""

    shared: int = 0
    own: int = 0
    before: tuple[int, ...] = ()  # frozen tokens between the learned rows and the name
    position: str = "end"  # of the name


@dataclass(frozen=True)
class Bend:
    shared: Tensor | None = None  # (M, W) context rows of all classes
    own: Tensor | None = None  # (C, M, W) context rows of each class
    deep: Mapping[int, Tensor] = field(default_factory=dict)  # layer → rows that overwrite the shared ones there
    text_deltas: Deltas = field(default_factory=dict)
    prompts: Prompts = field(default_factory=dict)  # tokens for the image tower
    image_deltas: Deltas = field(default_factory=dict)
    gates: tuple[Callable[[Tensor], Tensor], ...] = ()  # on image features
    for_image: Callable[[Tensor], Tensor] | None = None  # (B, D) images → (B, M, W) context rows for each
    net: Callable[[Tensor, Rng], Tensor] | None = None  # pixels → features, in place of CLIP's tower
    head: Callable[[Tensor], Tensor] | None = None  # features → logits, in place of the class sentences


PLAIN = Bend()
