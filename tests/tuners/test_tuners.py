"""What tuners declare is what they do, on a ViT and on a ResNet; what can't go together is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedtailor.base.errors import UserError
from fedtailor.clip.model import Shape
from fedtailor.core.model import Model
from fedtailor.core.types import Params
from fedtailor.tuners import TUNERS
from tiny import RESNET, VIT
from world import JOINS, NAMES, checkpoint, make_tuner

CASES: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    ("text_prompt", {"length": 3}),
    ("text_prompt", {"length": 2, "words": "a cat"}),
    ("text_prompt", {"length": 3, "position": "middle"}),
    ("class_prompt", {"length": 2}),
    ("visual_prompt", {}),
    ("visual_prompt", {"first": 1, "depth": 2, "mode": "replaced"}),
    ("visual_prompt", {"first": 2}),
    ("visual_prompt", {"depth": 0, "mode": "dropped"}),
    ("coupled", {"length": 2}),
    ("coupled", {"length": 2, "depth": 3}),
    ("lora", {"matrices": "qkvo"}),
    ("lora", {"towers": "text"}),
    ("lora", {"towers": "image", "first": 1}),
    ("adapter", {"hidden": 5}),
    ("head", {"start": "text"}),
    ("meta_prompt", {"hidden": 3}),
    ("prompt_generator", {"length": 2}),
    ("coupled", {"length": 2, "depth": 0}),
    ("resnet", {"width": 4}),
    *((name, {}) for name in JOINS),
]
every = pytest.mark.parametrize(("name", "options"), CASES)


def model(name: str, options: dict[str, Any], shape: Shape = VIT) -> Model:
    return Model.of(checkpoint(shape), make_tuner(name, options), NAMES, "a photo of a {}.")


def moved(m: Model, seed: int = 1) -> Params:
    """Parameters away from their start, so that all of them act."""
    rng = torch.Generator().manual_seed(seed)
    start = m.init(torch.Generator().manual_seed(0))
    return {n: v + 0.3 * torch.randn(v.shape, generator=rng) for n, v in start.items()}


def images() -> torch.Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))


@every
def test_cutting_at_the_stage_changes_nothing(name: str, options: dict[str, Any]) -> None:
    """The logits from the cached stage are those from the pixels on: nothing below it is touched."""
    m = model(name, options)
    theta = moved(m)
    whole = m.clip.vision(images(), "pixels", "features", (b := m.bend(theta)).prompts, b.image_deltas)
    whole = whole if b.net is None else b.net(images(), None)
    for gate in b.gates:
        whole = gate(whole)
    whole = torch.nn.functional.normalize(whole, dim=-1)
    torch.testing.assert_close(m.image(theta, m.clip.vision(images(), "pixels", m.stage)), whole)


@every
def test_a_tuner_touches_what_it_says(name: str, options: dict[str, Any]) -> None:
    m = model(name, options)
    theta = moved(m)
    x = m.clip.vision(images(), "pixels", m.stage)
    plain = torch.nn.functional.normalize(m.clip.vision(images()), dim=-1)
    touched = m.tuner.touches()
    image_differs = not torch.allclose(m.image(theta, x), plain, atol=1e-5)
    text_differs = not torch.allclose(m.text(theta), m.zero_shot, atol=1e-5)
    assert image_differs == bool(touched & {"image", "features"})
    assert text_differs == ("text" in touched)
    assert (m.stage == "features") == ("image" not in touched)


@every
def test_every_parameter_acts(name: str, options: dict[str, Any]) -> None:
    """Each has a gradient: a parameter that does nothing would still be sent."""
    m = model(name, options)
    theta = {n: v.requires_grad_() for n, v in moved(m).items()}
    x = m.clip.vision(images(), "pixels", m.stage)
    if not theta:
        return
    loss = torch.nn.functional.cross_entropy(m.logits(theta, x), torch.tensor([0, 1, 2]))
    for n, grad in zip(theta, torch.autograd.grad(loss, list(theta.values())), strict=True):
        assert grad.abs().sum() > 0, n


def test_lora_begins_as_clip_itself() -> None:
    m = model("lora", {"dropout": 0.5})
    theta = m.init(torch.Generator().manual_seed(0))
    x = m.clip.vision(images(), "pixels", m.stage)
    torch.testing.assert_close(m.logits(theta, x, torch.Generator().manual_seed(1)), m.zero_shot_logits(x))


def test_lora_dropout_acts_in_training_only() -> None:
    m = model("lora", {"dropout": 0.5})
    theta, x = moved(m), m.clip.vision(images(), "pixels", m.stage)
    still = m.logits(theta, x)
    torch.testing.assert_close(m.logits(theta, x), still)
    once = m.logits(theta, x, torch.Generator().manual_seed(1))
    assert torch.equal(once, m.logits(theta, x, torch.Generator().manual_seed(1)))
    assert not torch.allclose(once, still)
    assert not torch.allclose(once, m.logits(theta, x, torch.Generator().manual_seed(2)))


def test_words_beyond_the_length_stay_frozen_in_place() -> None:
    """A context that starts as all of the template's words, untouched, is the template; so is one of its first rows."""
    ids = checkpoint().tokenizer("a photo of a")
    for length in (len(ids), 2):
        m = model("text_prompt", {"length": length, "words": "a photo of a"})
        torch.testing.assert_close(m.text(m.init(torch.Generator())), m.zero_shot)


def test_too_few_words() -> None:
    m = model("text_prompt", {"length": 40, "words": "a cat"})
    with pytest.raises(UserError, match="fewer than length=40"):
        m.init(torch.Generator())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("text_prompt", {}),
        ("class_prompt", {}),
        ("visual_prompt", {"length": 2}),
        ("coupled", {"length": 2}),
        ("lora", {}),
        ("adapter", {}),
        ("coupled+class_prompt", {}),
    ],
)
def test_on_a_resnet(name: str, options: dict[str, Any]) -> None:
    m = model(name, options, RESNET)
    theta = {n: v.requires_grad_() for n, v in moved(m).items()}
    x = m.clip.vision(images(), "pixels", m.stage)
    logits = m.logits(theta, x)
    assert logits.shape == (3, len(NAMES))
    grads = torch.autograd.grad(logits.square().sum(), list(theta.values()))
    assert all(g.abs().sum() > 0 for g in grads)


def test_one_prompt_in_place_of_many_on_a_resnet() -> None:
    """Broken: what stands in is another tuner than depth=1 mode=kept, or does not say so; or a ViT gets it too."""
    deep = {"length": 2, "depth": 0, "mode": "dropped", "resnet": "kept"}
    fitted, plain = model("visual_prompt", deep, RESNET), model("visual_prompt", {"length": 2}, RESNET)
    assert fitted.tuner.note(fitted.clip).startswith("a ResNet has no layers for visual prompts")
    assert plain.tuner.note(plain.clip) == ""
    theta, x = moved(plain), plain.clip.vision(images(), "pixels", plain.stage)
    assert {n: v.shape for n, v in moved(fitted).items()} == {n: v.shape for n, v in theta.items()}
    assert torch.equal(fitted.logits(theta, x), plain.logits(theta, x))
    vit = model("visual_prompt", deep, VIT)
    assert vit.tuner.note(vit.clip) == ""
    assert len(moved(vit)["visual.ctx"]) == 2  # all of three layers but the last


@pytest.mark.parametrize(
    ("name", "options", "shape", "message"),
    [
        ("visual_prompt", {"depth": 9}, VIT, "has 3 layers"),
        ("visual_prompt", {"depth": 2}, VIT, "mode=kept"),
        ("visual_prompt", {"mode": "dropped"}, RESNET, "no layers for visual prompts.*take a ViT, or .*resnet=kept"),
        ("visual_prompt", {"depth": 0}, RESNET, "no layers for visual prompts"),
        ("coupled", {"depth": 4}, VIT, "the smaller has 3"),
        ("coupled", {"depth": 2}, RESNET, "the smaller has 1"),
        ("lora", {"first": 3}, VIT, "has 3 layers"),
        ("lora", {"matrices": "qo"}, RESNET, "q, k and v only"),
        ("coupled+text_prompt", {}, VIT, "same kind of context"),
        ("coupled+visual_prompt", {}, VIT, "same layer"),
        ("text_prompt+class_prompt", {"class_prompt": {"position": "front"}}, VIT, "different positions"),
    ],
)
def test_impossible_tuners_are_refused_before_any_work(
    name: str, options: dict[str, Any], shape: Shape, message: str
) -> None:
    m = model(name, options, shape)
    with pytest.raises(UserError, match=message):
        m.init(torch.Generator())


def test_unknown_names_and_options() -> None:
    with pytest.raises(UserError, match="did you mean 'lora'"):
        make_tuner("lroa", {})
    with pytest.raises(ValueError, match="q, k, v, o"):
        make_tuner("lora", {"matrices": "qx"})
    assert {name.split("+")[0] for name, _ in CASES} == set(TUNERS)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("text_prompt+head", "class sentences"),
        ("lora+head", "class sentences"),
        ("resnet+class_prompt", "class sentences"),
        ("resnet+visual_prompt", "image tower"),
        ("resnet+head", "same parameters"),
        ("adapter+head", ""),
    ],
)
def test_a_tuner_that_would_do_nothing_is_refused(name: str, told: str) -> None:
    m = model(name, {})
    if told:
        with pytest.raises(UserError, match=told):
            m.init(torch.Generator())
    else:
        assert m.init(torch.Generator())
