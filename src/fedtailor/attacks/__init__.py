"""Attacks on a simulated federation, by name: `attack=flip-labels attack.share=0.2`, to see what a defence is worth."""

from .backdoor import Backdoor
from .base import Attack
from .flip_labels import FlipLabels
from .updates import FlipSign, Scale

ATTACKS: dict[str, type[Attack]] = {
    "flip-labels": FlipLabels,
    "flip-sign": FlipSign,
    "scale": Scale,
    "backdoor": Backdoor,
}
