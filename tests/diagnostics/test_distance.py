"""How far the server's model is from zero-shot CLIP."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from seen_rounds import seen_round

from fedtailor.algorithms.alignment import alignment
from fedtailor.evaluation.diagnostics import predictions
from fedtailor.evaluation.diagnostics import round as round_module
from fedtailor.evaluation.diagnostics.predictions import tkl
from world import world


def test_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over all test pictures, in whatever pieces they are taken."""
    seen = seen_round(world("fedpurel", "text_prompt"), number=2)
    x, theta = seen.tests.features.fetch(seen.tests.everything), seen.after.params
    with torch.no_grad():
        z = seen.job.model.zero_shot_logits(x)
        f = seen.job.model.logits({"text.ctx": theta["global.text.ctx"]}, x)  # the global branch
    monkeypatch.setattr(round_module, "CHUNK", 4)
    found = tkl(seen)
    assert found == {
        "tkl": pytest.approx(float(alignment("tkl", z, f)), rel=1e-4),
        "kl": pytest.approx(float(alignment("kl", z, f)), rel=1e-4),
        "pictures": len(x),
    }
    assert len(x) % 4
    assert found["kl"] > 0
    assert found["tkl"] != found["kl"]


def test_some_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than asked for, the same ones in every round, and not simply the first ones."""
    seen, asked = seen_round(world("fedavg", "text_prompt")), []
    fetch = type(seen.tests.features).fetch

    def listening(pool: object, indices: object, rng: object = None) -> torch.Tensor:
        asked.append(list(indices))  # type: ignore[call-overload]
        return fetch(pool, indices, rng)  # type: ignore[arg-type]

    monkeypatch.setattr(type(seen.tests.features), "fetch", listening)
    monkeypatch.setattr(predictions, "PICTURES", 5)
    assert tkl(seen)["pictures"] == 5
    tkl(seen_round(world("fedavg", "text_prompt"), number=2))
    assert asked[0] == asked[-1] != [0, 1, 2, 3, 4]


def test_an_untrained_lora_is_zero_shot_clip() -> None:
    """No distance at all; there is some once it has been trained."""
    seen = seen_round(world("fedavg", "lora"))
    assert tkl(seen)["kl"] > 1e-7
    untrained = replace(seen, after=seen.before)
    assert tkl(untrained)["kl"] == pytest.approx(0, abs=1e-7)
