"""The settings of papers' comparisons, which several methods' presets share."""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]  # dotted keys, as on the command line

# CAPT's and FedPuReL's tables: the released codes of the PromptFL family.
CAPT_SETUP: Settings = {
    "rounds": 100, "clients": 20, "fraction": 0.4, "local.epochs": 1, "local.batch": 32, "local.lr": 1e-3,
    "local.optimiser": "sgd", "local.momentum": 0.9, "local.weight_decay": 5e-4, "local.schedule": "constant",
}  # fmt: skip
CAPT_PROMPTS: Settings = {**CAPT_SETUP, "tuner.length": 4}

# FedCoPL's.
FEDCOPL_LOCAL: Settings = {
    "local.epochs": 10, "local.batch": 64, "local.lr": 0.1, "local.weight_decay": 0.05, "local.drop_last": False,
}  # fmt: skip
FEDCOPL_PROMPTS: Settings = {
    "rounds": 20, "clients": 10, "fraction": 1.0, **FEDCOPL_LOCAL, "tuner.length": 16,
}  # fmt: skip

PROMPTFL: Settings = {
    "rounds": 20, "clients": 64, "local.epochs": 5, "local.lr": 1e-3, "local.schedule": "cosine", "tuner.length": 16,
}  # fmt: skip

# The PromptFL family's rate, 1e-3, hardly moves these on a CLIP whose scale is 22 and not 100, as the bundled one's.
BRISK: Settings = {"local.lr": 1e-2}

# Networks trained from scratch: larger steps than prompts take.
SCRATCH: Settings = {"tuner.width": 16, "local.lr": 0.1, "local.momentum": 0.0}  # a quarter of CReFF's width
CAPT_SCRATCH: Settings = {  # CAPT prints five epochs and 100 rounds, no rate: CReFF's
    "rounds": 100, "clients": 20, "fraction": 0.4, "local.epochs": 5, "local.batch": 32, "local.lr": 0.1,
    "local.momentum": 0.0, "tuner.width": 64,
}  # fmt: skip
SMALLER: Settings = {"local.lr": 0.03}  # what Fed-GraB and FedLoGe were released with

# FedPuReL's low-rank deltas.
FEDPUREL_LORA: Settings = {"tuner.towers": "image", "tuner.rank": 8, "tuner.alpha": 16.0, "tuner.dropout": 0.25}
