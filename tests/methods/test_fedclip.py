"""FedCLIP: both of its losses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedtailor.core.model import Words
from fedtailor.core.types import Reply, Server
from fedtailor.methods.fedclip import FedCLIP, contrastive
from golden_numbers import GoldenCase, close_gradient, golden
from world import make_tuner


def test_captions_as_released() -> None:
    """The gradient of the original's train(): each picture against its batch's captions, and the reverse."""
    g, inputs = golden("fedclip_original"), golden("inputs")
    case = GoldenCase(make_tuner("adapter", {}))
    captions = tuple(tuple(row[1 : row.argmax()].tolist()) for row in inputs["tokens.photo_noperiod"])
    words: Words = replace(case.model.words, sentences=captions)
    model = replace(case.model, words=words)
    theta = {
        f"adapter.{ours}.{end}": g[f"input.{theirs}.{end}"].clone().requires_grad_()
        for ours, theirs in (("in", 0), ("out", 2))
        for end in ("weight", "bias")
    }
    grads = FedCLIP(against="captions").gradient(model, theta)(theta, case.batch)
    for ours, theirs in (("in", 0), ("out", 2)):
        for end in ("weight", "bias"):
            close_gradient(grads[f"adapter.{ours}.{end}"], g[f"grad_contrastive.{theirs}.{end}"])


def test_contrastive_by_hand() -> None:
    """Logits [[ln 3, 0], [0, 0]]: pictures −ln ¾ and −ln ½, captions the same; the mean of the four."""
    logits = torch.tensor([[math.log(3), 0.0], [0.0, 0.0]])
    assert contrastive(logits).item() == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)
    lop = torch.tensor([[math.log(3), 0.0], [math.log(3), 0.0]])  # pictures: ¾, ¼; captions: ½, ½
    assert contrastive(lop).item() == pytest.approx(((math.log(4 / 3) + math.log(4)) / 2 + math.log(2)) / 2)


def test_equal_weights() -> None:
    """Weights 1 and 3 on 0 and 4: 3; the same weight for both: 2."""
    replies = {0: Reply({"a": torch.tensor(0.0)}, 1.0), 1: Reply({"a": torch.tensor(4.0)}, 3.0)}
    server = Server(0, {"a": torch.tensor(9.0)})
    assert FedCLIP().aggregate(server, replies).params["a"].item() == 3
    assert FedCLIP(equal=True).aggregate(server, replies).params["a"].item() == 2
