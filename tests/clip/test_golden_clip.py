"""Our towers against numbers that the authors' public codes computed on one small random CLIP (tests/golden)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from clip_helpers import cosine_logits, difference, relative
from torch import Tensor

from fedtailor.clip.text import Layout, arrange, pack, tokens
from golden_numbers import EOT, GRADIENT, LOGITS, SOS, golden, golden_clip

TEXTS = ("photo", "photo_noperiod", "bare", "bare_raw", "X2", "X4", "X16")


def sentence(ids: Tensor) -> list[int]:
    """A row of 77 ids up to its end-of-text token."""
    return ids[: ids.argmax() + 1].tolist()


def test_image_features() -> None:
    """Broken: patches, the class token, pre-norm blocks, QuickGELU or the projection of the image tower."""
    got = golden_clip().vision(golden("inputs")["images"])
    assert difference(got, golden("plain_clip")["image_features"]) < LOGITS


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("path", ["plain", "fast"])
def test_text_features(text: str, path: str) -> None:
    """Broken: the text tower, or the fast path's cutting, sharing and packing of real sentences."""
    ids = golden("inputs")[f"tokens.{text}"].long()
    tower = golden_clip().text
    got = tower.plain(ids) if path == "plain" else tower(pack([tokens(sentence(row)) for row in ids]))
    assert difference(got, golden("plain_clip")[f"text_features.{text}"]) < LOGITS


def test_logits() -> None:
    """Broken: the logit scale, or the cosine's normalisation."""
    ids, images = golden("inputs")["tokens.photo"].long(), golden("inputs")["images"]
    logits = cosine_logits(golden_clip().vision(images), golden_clip().text.plain(ids), golden_clip().scale)
    assert difference(logits, golden("plain_clip")["logits_photo"]) < LOGITS


# --- CoOp's learned contexts ---------------------------------------------------------------------------------------

CASES = {  # the case → rows that all classes share, rows of each class's own, place of the class name
    "u4": (4, 0, "end"),
    "csc4": (0, 4, "end"),
    "mid4": (4, 0, "middle"),
    "front4": (4, 0, "front"),
}


def coop_layout(case: str) -> Layout:
    shared, own, position = CASES[case]
    names = [sentence(row)[1:-1] for row in golden("inputs")["tokens.bare"].long()]
    period = [sentence(golden("inputs")["tokens.photo"][0].long())[-2]]
    return pack([arrange(n, sos=SOS, eot=EOT, shared=shared, own=own, after=period, position=position) for n in names])


def features(case: str, ctx: Tensor) -> Tensor:
    layout = coop_layout(case)
    return golden_clip().text(layout, shared=ctx) if CASES[case][0] else golden_clip().text(layout, own=ctx)


def forward(case: str, ctx: Tensor) -> tuple[Tensor, Tensor]:
    inputs = golden("inputs")
    with torch.no_grad():
        images = golden_clip().vision(inputs["images"])
    logits = cosine_logits(images, features(case, ctx), golden_clip().scale)
    return logits, F.cross_entropy(logits, inputs["labels"])


@pytest.mark.parametrize("case", CASES)
def test_coop_forward_and_gradient(case: str) -> None:
    """Broken: where the learned rows stand, which class owns which, or the gradient through the fast path."""
    want = {key.removeprefix(f"{case}."): value for key, value in golden("coop_prompt").items() if key.startswith(case)}
    ctx = want["ctx"].clone().requires_grad_()
    logits, loss = forward(case, ctx)
    (gradient,) = torch.autograd.grad(loss, ctx)
    assert difference(features(case, ctx), want["text_features_unnormalised"]) < LOGITS
    assert difference(logits, want["logits"]) < LOGITS
    assert loss.item() == pytest.approx(want["loss_ce"].item(), abs=LOGITS)
    assert relative(gradient, want["grad.ctx"]) < GRADIENT


@pytest.mark.parametrize("case", CASES)
def test_coop_steps(case: str) -> None:
    """Broken: two SGD steps drift from the authors' (what moved is compared, not where it ended)."""
    want = golden("coop_prompt")
    start = want[f"{case}.ctx"]
    ctx = start.clone().requires_grad_()
    descent = torch.optim.SGD([ctx], lr=1e-3, momentum=0.9, weight_decay=5e-4)
    for step, key in enumerate(("ctx_after_1_step", "ctx_after_2_steps")):
        descent.zero_grad()
        loss = forward(case, ctx)[1]
        if step == 1:
            assert loss.item() == pytest.approx(want[f"{case}.loss_ce_step2"].item(), abs=LOGITS)
        loss.backward()
        descent.step()
        assert relative(ctx.detach() - start, want[f"{case}.{key}"] - start) < GRADIENT
