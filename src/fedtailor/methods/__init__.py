"""Every method by name: a class, the tuner it comes with, its settings. `promptfl` is FedAvg with a text prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core import Method
from .fedavg import FedAvg
from .fedprox import FedProx
from .zeroshot import ZeroShot


@dataclass(frozen=True)
class Entry:
    method: type[Method]
    tuner: str
    paper: str
    year: int
    family: str
    idea: str
    tuners: tuple[str, ...] = ()  # the only ones it may have; none: any
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys, as on the command line
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # named settings: preset=…


# The settings of CAPT's and FedPuReL's comparisons, and of FedCoPL's.
CAPT = {"rounds": 100, "clients": 20, "fraction": 0.4, "local.epochs": 1, "local.batch": 32, "local.lr": 1e-3}
FEDCOPL = {
    "rounds": 20, "clients": 10, "fraction": 1.0, "local.epochs": 10, "local.batch": 64, "local.lr": 0.1,
    "local.weight_decay": 0.05, "local.drop_last": False,
}  # fmt: skip
PROMPTFL = {
    "rounds": 20, "clients": 64, "local.epochs": 5, "local.lr": 1e-3, "local.schedule": "cosine", "tuner.length": 16,
}  # fmt: skip

METHODS: dict[str, Entry] = {
    "zeroshot": Entry(
        ZeroShot, "none", "Radford et al., ICML", 2021, "reference", "CLIP as it is, a hand-written sentence a class",
        tuners=("none",),
    ),
    "fedavg": Entry(
        FedAvg, "text_prompt", "McMahan et al., AISTATS", 2017, "federated", "average what clients reach; any tuner",
    ),
    "fedprox": Entry(
        FedProx, "text_prompt", "Li et al., MLSys", 2020, "federated", "FedAvg with a pull to the start; any tuner",
    ),
    "promptfl": Entry(
        FedAvg, "text_prompt", "Guo et al., IEEE TMC", 2023, "federated prompts", "FedAvg of one text context",
        tuners=("text_prompt",),
        presets={"capt": {**CAPT, "tuner.length": 4}, "fedcopl": {**FEDCOPL, "tuner.length": 16}, "original": PROMPTFL},
    ),
    "promptprox": Entry(
        FedProx, "text_prompt", "Guo et al., IEEE TMC", 2023, "federated prompts", "FedProx of one text context",
        tuners=("text_prompt",),
        presets={"capt": {**CAPT, "tuner.length": 4}, "fedcopl": {**FEDCOPL, "tuner.length": 16}, "original": PROMPTFL},
    ),
    "fedclip": Entry(
        FedAvg, "adapter", "Lu et al., IEEE Data Eng. Bull.", 2023, "federated adapters",
        "FedAvg of an attention gate on image features",
        tuners=("adapter",),
        presets={"capt": CAPT},
    ),
    "clip-lora": Entry(
        FedAvg, "lora", "Zanella and Ben Ayed, CVPR workshops", 2024, "federated adapters",
        "FedAvg of low-rank deltas on both towers",
        tuners=("lora",),
        settings={"local.optimiser": "adamw", "local.lr": 2e-4, "local.weight_decay": 1e-2},
        presets={
            "capt": {**CAPT, "local.optimiser": "sgd", "local.weight_decay": 5e-4},
            "fedpurel": {
                **CAPT, "local.optimiser": "sgd", "local.weight_decay": 5e-4, "tuner.towers": "image", "tuner.rank": 8,
                "tuner.alpha": 16.0,
            },
        },
    ),
}  # fmt: skip
