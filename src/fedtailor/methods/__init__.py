"""Every method by name: a class, the tuner it comes with, its settings. `promptfl` is FedAvg with a text prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.method import Method
from .capt import CAPT
from .central import Central
from .creff import CReFF
from .fedavg import FedAvg
from .fedclip import FedCLIP
from .fedcopl import FedCoPL
from .fedloge import FedLoGe
from .fedotp import FedOTP
from .fedpgp import FedPGP
from .fedprox import FedProx
from .fedpurel import FedPuReL
from .fedsa_lora import FedSALora
from .fedtpg import FedTPG
from .kgcoop import KgCoOp
from .local import LocalOnly
from .pfedprompt import PFedPrompt
from .promptfolio import PromptFolio
from .released.capt import ReleasedCAPT
from .released.fedavg import ReleasedFedAvg
from .released.fedcopl import ReleasedFedCoPL
from .released.fedpurel import ReleasedFedPuReL
from .rucr import RUCR
from .scaffold import Scaffold
from .setups import (
    BRISK,
    CAPT_PROMPTS,
    CAPT_SCRATCH,
    CAPT_SETUP,
    FEDCOPL_LOCAL,
    FEDCOPL_PROMPTS,
    FEDPUREL_LORA,
    PROMPTFL,
    SCRATCH,
    SMALLER,
    Settings,
)
from .zeroshot import ZeroShot


@dataclass(frozen=True)
class Entry:
    method: type[Method]
    tuner: str
    paper: str
    year: int | None  # None: no paper's
    family: str
    idea: str
    tuners: tuple[str, ...] = ()  # the only ones it may have; none: any
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys, as on the command line
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # named settings: preset=…
    when: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)  # by preset (or "") and tuner


PROMPT_PRESETS: dict[str, Settings] = {
    "capt": CAPT_PROMPTS,
    "fedpurel": CAPT_PROMPTS,
    "fedcopl": FEDCOPL_PROMPTS,
    "original": PROMPTFL,
}

METHODS: dict[str, Entry] = {
    "zeroshot": Entry(
        ZeroShot, "none", "Radford et al., ICML", 2021, "reference", "CLIP as it is, a hand-written sentence a class",
        tuners=("none",),
    ),
    "fedavg": Entry(
        FedAvg, "text_prompt", "McMahan et al., AISTATS", 2017, "federated", "average what clients reach",
    ),
    "fedprox": Entry(
        FedProx, "text_prompt", "Li et al., MLSys", 2020, "federated", "FedAvg with a pull to the start",
    ),
    "capt": Entry(
        CAPT, "coupled+class_prompt", "Hou et al., CVPR", 2025, "long-tailed",
        "general and class-aware prompts, two clusterings of clients, a bandit scheduler",
        tuners=("coupled+class_prompt", "coupled", "class_prompt", "text_prompt+class_prompt", "text_prompt"),
        # Four rows in all, as released, but split the other way and with a start for rare classes: decision 7.
        settings={"tuner.coupled.length": 3, "tuner.class_prompt.length": 1, "tuner.class_prompt.words": "a"},
        presets={"published": {}},
        when={
            ("", "coupled"): {"tuner.length": 4},
            ("", "class_prompt"): {"tuner.length": 4, "tuner.words": "a photo of a"},
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
        presets={"published": {}},
    ),
    "fedcopl-released": Entry(
        ReleasedFedCoPL, "text_prompt+visual_prompt", "Guo et al., ICCV", 2025, "unlabeled",
        "FedCoPL as released: momentum carried on from client to client",
        tuners=("text_prompt+visual_prompt",),
        settings={
            **FEDCOPL_LOCAL, "local.schedule": "cosine", "local.span": 50, "labels.name": "copl",
            "tuner.text_prompt.length": 16, "tuner.visual_prompt.length": 5, "tuner.visual_prompt.depth": 0,
            "tuner.visual_prompt.mode": "dropped",
        },
    ),
    "capt-released": Entry(
        ReleasedCAPT, "coupled+class_prompt", "Hou et al., CVPR", 2025, "long-tailed",
        "CAPT as released: raw prompts in the losses, clients one after the other on one model",
        tuners=("coupled+class_prompt", "coupled", "class_prompt", "text_prompt+class_prompt", "text_prompt"),
        settings={"tuner.coupled.length": 1, "tuner.class_prompt.length": 3, "data.server": "test"},
        when={
            ("", "coupled"): {"tuner.length": 4},
            ("", "class_prompt"): {"tuner.length": 4},
            ("", "text_prompt+class_prompt"): {"tuner.text_prompt.length": 1, "tuner.class_prompt.length": 3},
        },
    ),
    "fedpurel": Entry(
        FedPuReL, "text_prompt", "Hou et al.", 2026, "long-tailed, personal",
        "gradients purified against zero-shot CLIP, then a personal residual",
        presets={"published": {}},
        when={("", "lora"): FEDPUREL_LORA},
    ),
    "fedpurel-released": Entry(
        ReleasedFedPuReL, "text_prompt", "Hou et al.", 2026, "long-tailed, personal",
        "FedPuReL as released: a personal pass in every round, momentum carried on from client to client",
        when={("", "lora"): FEDPUREL_LORA, ("", "adapter"): {"method.align": "distil", "method.lam": 0.0}},
    ),
    "fedavg-released": Entry(
        ReleasedFedAvg, "text_prompt", "Guo et al., IEEE TMC", 2023, "federated",
        "FedAvg with momentum carried on from client to client, as PromptFL's code does",
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
    "fedtpg": Entry(
        FedTPG, "prompt_generator", "Qiu et al., ICLR", 2024, "federated prompts",
        "one network, learned together, writes the context from the class names",
        tuners=("prompt_generator",),
        settings=BRISK,
        presets={
            "capt": CAPT_PROMPTS,
            "original": {
                "rounds": 500, "local.epochs": 1, "local.batch": 200, "local.lr": 3e-3, "local.weight_decay": 1e-5,
                "local.schedule": "cosine", "local.span": 500,
            },
        },
    ),
    "fedotp": Entry(
        FedOTP, "text_prompt", "Li et al., CVPR", 2024, "federated prompts, personal",
        "a global and a local text context share out a picture's patches by optimal transport",
        tuners=("text_prompt", "class_prompt"),
        settings=BRISK,
        presets={
            "capt": CAPT_PROMPTS,
            "fedpurel": CAPT_PROMPTS,
            "fedcopl": FEDCOPL_PROMPTS,
            "original": {
                "rounds": 150, "clients": 100, "fraction": 0.1, "local.epochs": 1, "local.batch": 32, "local.lr": 1e-3,
                "tuner.length": 4,
            },
            "few-shot": {
                "rounds": 10, "clients": 10, "fraction": 1.0, "local.epochs": 1, "local.batch": 8, "local.lr": 1e-3,
                "tuner.length": 16, "method.eps": 0.01,
            },
        },
    ),
    "promptfolio": Entry(
        PromptFolio, "text_prompt", "Pan et al., NeurIPS", 2024, "federated prompts, personal",
        "a global and a local text context, their sentences mixed",
        tuners=("text_prompt",),
        presets={
            "capt": CAPT_PROMPTS,
            "fedpurel": CAPT_PROMPTS,
            "original": {
                "rounds": 10, "clients": 10, "local.epochs": 5, "local.batch": 16, "local.lr": 1e-3,
                "local.schedule": "cosine", "tuner.length": 8,
            },
        },
    ),
    "fedpgp": Entry(
        FedPGP, "text_prompt", "Cui et al., ICML", 2024, "federated prompts, personal",
        "a shared text context, a personal low-rank change of it, a contrast of the two",
        tuners=("text_prompt",),
        presets={
            "capt": CAPT_PROMPTS,
            "fedpurel": CAPT_PROMPTS,
            "original": {
                "rounds": 25, "clients": 10, "local.epochs": 2, "local.batch": 8, "local.lr": 1e-3, "tuner.length": 16,
                "method.rank": 8, "method.mu": 0.5, "method.anchor": "placeholder",
            },
        },
    ),
    "pfedprompt": Entry(
        PFedPrompt, "text_prompt", "Guo et al., WWW", 2023, "federated prompts, personal",
        "a shared text context and a personal attention on image features (approximate: no public code)",
        tuners=("text_prompt",),
        presets={"fedcopl": FEDCOPL_PROMPTS},
    ),
    "cocoop": Entry(
        FedAvg, "meta_prompt", "Zhou et al., CVPR", 2022, "central prompts, averaged",
        "a text context that a small network moves for each image",
        tuners=("meta_prompt",),
        settings={"tuner.words": "a photo of a", **BRISK},
        presets={
            "capt": {**CAPT_PROMPTS, "tuner.words": ""},
            "original": {"local.epochs": 10, "local.batch": 1, "local.lr": 2e-3, "local.schedule": "cosine"},
        },
    ),
    "kgcoop": Entry(
        KgCoOp, "text_prompt", "Yao et al., CVPR", 2023, "central prompts, averaged",
        "a text context whose sentences stay near the hand-written ones",
        tuners=("text_prompt", "class_prompt"),
        settings={"tuner.words": "a photo of a", **BRISK},
        presets={
            "capt": {**CAPT_PROMPTS, "method.lam": 1.0},
            "original": {"local.lr": 2e-3, "local.batch": 128, "local.epochs": 100, "local.schedule": "cosine"},
        },
        when={("", "class_prompt"): {"tuner.words": "a photo of a"}},
    ),
    "maple": Entry(
        FedAvg, "coupled", "Khattak et al., CVPR", 2023, "central prompts, averaged",
        "deep text prompts, projected into the image tower",
        tuners=("coupled",),
        settings={"tuner.length": 2, "tuner.depth": 0, "tuner.words": "a photo of a", **BRISK},
        presets={
            "capt": {**CAPT_PROMPTS, "tuner.depth": 1},  # that code's copy: its deeper prompts get no gradient
            "original": {
                "tuner.depth": 9, "local.epochs": 5, "local.batch": 4, "local.lr": 3.5e-3, "local.schedule": "cosine",
            },
        },
    ),
    "fedclip": Entry(
        FedCLIP, "adapter", "Lu et al., IEEE Data Eng. Bull.", 2023, "federated adapters",
        "an attention gate on image features",
        tuners=("adapter",),
        presets={
            "capt": CAPT_SETUP,
            "fedpurel": CAPT_SETUP,
            "original": {
                "rounds": 300, "local.epochs": 1, "local.batch": 32, "local.optimiser": "adam", "local.lr": 5e-5,
                "local.betas": [0.9, 0.98], "local.eps": 1e-6, "local.weight_decay": 0.2,
                "method.against": "captions", "method.equal": True, "data.template": "a picture of a {}",
            },
        },
    ),
    "clip-lora": Entry(
        FedAvg, "lora", "Zanella and Ben Ayed, CVPR workshops", 2024, "federated adapters",
        "FedAvg of low-rank deltas on both towers",
        tuners=("lora",),
        settings={"local.optimiser": "adamw", "local.lr": 2e-3, "local.weight_decay": 1e-2},
        presets={
            "capt": CAPT_SETUP,
            "fedpurel": {**CAPT_SETUP, **FEDPUREL_LORA},
            "original": {"local.lr": 2e-4, "local.schedule": "cosine", "local.batch": 32},
        },
    ),
    "fedsa-lora": Entry(
        FedSALora, "lora", "Guo et al., ICLR", 2025, "federated adapters, personal",
        "of low-rank deltas B A, the A shared and the B kept",
        tuners=("lora",),
        settings={"local.optimiser": "adamw", "local.lr": 2e-4, "local.weight_decay": 1e-2, **FEDPUREL_LORA},
        presets={
            "fedpurel": {**CAPT_SETUP, **FEDPUREL_LORA},
            "original": {"tuner.rank": 8, "tuner.alpha": 16.0, "tuner.dropout": 0.05},
        },
    ),
    "local": Entry(
        LocalOnly, "text_prompt", "", None, "reference", "each client trains alone",
    ),
    "central": Entry(
        Central, "text_prompt", "", None, "reference",
        "one model on everyone's data, not federated",
    ),
    "linear-probe": Entry(
        FedAvg, "head", "Radford et al., ICML", 2021, "federated heads", "FedAvg of a linear classifier on features",
        tuners=("head",),
        settings={"local.lr": 0.03},
    ),
    "scaffold": Entry(
        Scaffold, "text_prompt", "Karimireddy et al., ICML", 2020, "federated",
        "control variates against clients' drift",
        settings={"local.momentum": 0.0, "local.lr": 1e-2},
    ),
    "scratch-fedavg": Entry(
        FedAvg, "resnet", "McMahan et al., AISTATS", 2017, "from scratch", "FedAvg of a ResNet, without CLIP",
        tuners=("resnet",),
        settings=SCRATCH,
        presets={"capt": CAPT_SCRATCH},
    ),
    "fedgrab": Entry(
        FedAvg, "resnet", "Xiao et al., NeurIPS", 2023, "from scratch, long-tailed",
        "FedAvg of a ResNet with gradients in balance, class by class (rebalance=fedgrab does it for any method)",
        tuners=("resnet",),
        settings={**SCRATCH, **SMALLER, "rebalance.name": "fedgrab", "rebalance.loss": "bce"},
        presets={
            "capt": {**CAPT_SCRATCH, **SMALLER},
            "original": {
                "rounds": 500, "clients": 40, "fraction": 1.0, "local.epochs": 5, "local.batch": 10, "local.lr": 0.03,
                "local.momentum": 0.5, "tuner.depth": 18, "tuner.width": 64,
            },
        },
    ),
    "creff": Entry(
        CReFF, "resnet", "Shang et al., IJCAI", 2022, "from scratch, long-tailed",
        "FedAvg, its classifier re-trained on features made from class gradients",
        tuners=("resnet", "head"),
        settings=SCRATCH,
        presets={
            "capt": CAPT_SCRATCH,
            "original": {
                "rounds": 200, "clients": 20, "fraction": 0.4, "local.epochs": 10, "local.batch": 32, "local.lr": 0.1,
                "local.momentum": 0.0, "local.weight_decay": 0.0, "local.drop_last": False, "tuner.width": 64,
            },
        },
        when={("", "head"): {"local.lr": 1e-3}},  # its features are as long as CLIP's scale
    ),
    "rucr": Entry(
        RUCR, "resnet", "Huang et al., IEEE TIFS", 2024, "from scratch, long-tailed",
        "features pulled to shared prototypes, then a classifier re-trained on balanced mixtures",
        tuners=("resnet", "head"),
        settings=SCRATCH,
        presets={
            "capt": CAPT_SCRATCH,
            "original": {
                "rounds": 150, "clients": 20, "fraction": 0.4, "local.epochs": 10, "local.batch": 32, "local.lr": 0.1,
                "local.momentum": 0.0, "local.weight_decay": 0.0, "local.drop_last": False, "tuner.width": 64,
            },
        },
        when={("", "head"): {"local.lr": 1e-3}},
    ),
    "fedloge": Entry(
        FedLoGe, "resnet", "Xiao et al., ICLR", 2024, "from scratch, long-tailed, personal",
        "a network trained through a fixed sparse frame; shared and personal heads realigned by their norms",
        tuners=("resnet",),
        settings={**SCRATCH, **SMALLER},
        presets={
            "capt": {**CAPT_SCRATCH, **SMALLER},
            "original": {
                "rounds": 500, "clients": 40, "fraction": 0.3, "local.epochs": 5, "local.batch": 8, "local.lr": 0.03,
                "local.momentum": 0.5, "local.weight_decay": 0.0, "tuner.depth": 18, "tuner.width": 64,
                "method.length": 0.1,
            },
        },
    ),
}  # fmt: skip
