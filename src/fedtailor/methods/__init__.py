"""Every method by name: a class, the tuner it comes with, its settings. `promptfl` is FedAvg with a text prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core import Method
from .capt import CAPT
from .fedavg import FedAvg
from .fedcopl import FedCoPL
from .fedprox import FedProx
from .fedpurel import FedPuReL
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
    when: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)  # by preset (or "") and tuner


# The settings of CAPT's and FedPuReL's comparisons, and of FedCoPL's.
CAPT_SETUP = {"rounds": 100, "clients": 20, "fraction": 0.4, "local.epochs": 1, "local.batch": 32, "local.lr": 1e-3}
FEDCOPL_LOCAL = {
    "local.epochs": 10, "local.batch": 64, "local.lr": 0.1, "local.weight_decay": 0.05, "local.drop_last": False,
}  # fmt: skip
FEDCOPL_SETUP = {"rounds": 20, "clients": 10, "fraction": 1.0, **FEDCOPL_LOCAL}
PROMPTFL_SETUP = {
    "rounds": 20, "clients": 64, "local.epochs": 5, "local.lr": 1e-3, "local.schedule": "cosine", "tuner.length": 16,
}  # fmt: skip

PROMPT_PRESETS: dict[str, dict[str, Any]] = {
    "capt": {**CAPT_SETUP, "tuner.length": 4},
    "fedcopl": {**FEDCOPL_SETUP, "tuner.length": 16},
    "original": PROMPTFL_SETUP,
}

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
    "capt": Entry(
        CAPT, "coupled+class_prompt", "Hou et al., CVPR", 2025, "long-tailed",
        "general and class-aware prompts, two clusterings of clients, a bandit scheduler",
        tuners=("coupled+class_prompt", "coupled", "class_prompt", "text_prompt+class_prompt", "text_prompt"),
        # Four rows in all, as released, but split the other way and with a start for rare classes: decision 7.
        settings={"tuner.coupled.length": 3, "tuner.class_prompt.length": 1, "tuner.class_prompt.words": "a"},
        presets={
            "published": {},
            "released": {
                "tuner.coupled.length": 1, "tuner.class_prompt.length": 3, "tuner.class_prompt.words": "",
                "method.floor": 0.1,
                "method.against": "raw", "method.mask": False, "method.n_similar": 4, "method.n_diverse": 4,
                "method.draws": 4, "method.last": False, "method.sequential": True, "data.server": "test",
                "local.carry": "shared",
            },
        },
        when={
            ("", "coupled"): {"tuner.length": 4},
            ("", "class_prompt"): {"tuner.length": 4, "tuner.words": "a photo of a"},
            ("released", "class_prompt"): {"tuner.words": ""},
            ("released", "text_prompt+class_prompt"): {
                "tuner.text_prompt.length": 1, "tuner.class_prompt.length": 3, "tuner.class_prompt.words": "",
            },
            ("", "text_prompt+class_prompt"): {
                "tuner.text_prompt.length": 3, "tuner.class_prompt.length": 1, "tuner.class_prompt.words": "a",
            },
        },
    ),
    "fedcopl": Entry(
        FedCoPL, "text_prompt+visual_prompt", "Guo et al., ICCV", 2025, "unlabeled",
        "no labels: pseudo-labels by cooperation; only visual prompts shared",
        tuners=("text_prompt+visual_prompt",),
        settings={
            **FEDCOPL_LOCAL, "local.schedule": "cosine", "local.span": 50, "labels.name": "copl",
            "tuner.text_prompt.length": 16, "tuner.visual_prompt.length": 5, "tuner.visual_prompt.depth": 0,
            "tuner.visual_prompt.mode": "dropped",
        },
        presets={"published": {}, "released": {"local.carry": "shared"}},
    ),
    "fedpurel": Entry(
        FedPuReL, "text_prompt", "Hou et al.", 2026, "long-tailed, personal",
        "gradients purified against zero-shot CLIP, then a personal residual; any tuner",
        presets={
            "published": {},
            "released": {"method.schedule": "interleaved", "method.lam": 0.99, "local.carry": "shared"},
        },
        when={
            ("", "lora"): {"tuner.towers": "image", "tuner.rank": 8, "tuner.alpha": 16.0, "tuner.dropout": 0.25},
            ("released", "adapter"): {"method.align": "distil", "method.lam": 0.0},
        },
    ),
    "promptfl": Entry(
        FedAvg, "text_prompt", "Guo et al., IEEE TMC", 2023, "federated prompts", "FedAvg of one text context",
        tuners=("text_prompt",),
        presets=PROMPT_PRESETS,
    ),
    "promptprox": Entry(
        FedProx, "text_prompt", "Guo et al., IEEE TMC", 2023, "federated prompts", "FedProx of one text context",
        tuners=("text_prompt",),
        presets=PROMPT_PRESETS,
    ),
    "fedclip": Entry(
        FedAvg, "adapter", "Lu et al., IEEE Data Eng. Bull.", 2023, "federated adapters",
        "FedAvg of an attention gate on image features",
        tuners=("adapter",),
        presets={"capt": CAPT_SETUP},
    ),
    "clip-lora": Entry(
        FedAvg, "lora", "Zanella and Ben Ayed, CVPR workshops", 2024, "federated adapters",
        "FedAvg of low-rank deltas on both towers",
        tuners=("lora",),
        settings={"local.optimiser": "adamw", "local.lr": 2e-4, "local.weight_decay": 1e-2},
        presets={
            "capt": {**CAPT_SETUP, "local.optimiser": "sgd", "local.weight_decay": 5e-4},
            "fedpurel": {
                **CAPT_SETUP, "local.optimiser": "sgd", "local.weight_decay": 5e-4, "tuner.towers": "image",
                "tuner.rank": 8, "tuner.alpha": 16.0,
            },
        },
    ),
}  # fmt: skip
