"""The ways to bend a frozen CLIP, by name. `a+b` joins two of them."""

from collections.abc import Mapping
from typing import Any

from ..base.errors import unknown
from ..core.model import Tuner
from .adapter import Adapter
from .class_prompt import ClassPrompt
from .coupled import Coupled
from .head import Head
from .join import Join
from .lora import Lora
from .meta_prompt import MetaPrompt
from .none import Untuned
from .prompt_generator import PromptGenerator
from .resnet import ResNet
from .text_prompt import TextPrompt
from .visual_prompt import VisualPrompt

TUNERS: dict[str, type[Tuner]] = {
    "none": Untuned,
    "text_prompt": TextPrompt,
    "class_prompt": ClassPrompt,
    "meta_prompt": MetaPrompt,
    "prompt_generator": PromptGenerator,
    "visual_prompt": VisualPrompt,
    "coupled": Coupled,
    "lora": Lora,
    "adapter": Adapter,
    "head": Head,
    "resnet": ResNet,
}


def tuner_names(name: str) -> list[str]:
    """The parts of `a+b`, each a known tuner."""
    parts = name.split("+")
    for part in parts:
        if part not in TUNERS:
            raise unknown("tuner", part, TUNERS, "fedtailor list tuners")
    return parts


def make_tuner(name: str, options: Mapping[str, Any]) -> Tuner:
    """A tuner by name; of a join, options stand under their part's name: {"lora": {"rank": 4}}."""
    parts = tuner_names(name)
    if len(parts) == 1:
        return TUNERS[name](**options)
    if strange := options.keys() - set(parts):
        raise unknown(f"option of tuner {name}", sorted(strange)[0], parts)
    return Join(parts=tuple(TUNERS[part](**options.get(part, {})) for part in parts))
