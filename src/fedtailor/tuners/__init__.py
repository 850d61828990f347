"""The ways to bend a frozen CLIP, by name. `a+b` joins two of them."""

from ..base.errors import unknown
from ..core.model import Tuner
from .adapter import Adapter
from .class_prompt import ClassPrompt
from .coupled import Coupled
from .head import Head
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
