"""Tuners bend the golden CLIP as the authors' codes do: logits, losses and gradients (see tests/golden/README.md)."""

from __future__ import annotations

import torch

from fedtailor.core.model import Model
from fedtailor.core.optim import LocalTraining
from golden_numbers import GoldenCase, close, close_gradient, golden, golden_clip, golden_words
from torch_optimisers import torch_optimiser
from world import make_tuner


def test_fedcopl_text_and_deep_visual_prompts() -> None:
    """Visual tokens appended behind ln_pre, dropped after each block, none in the last; two optimisers, cosine lr."""
    g = golden("fedcopl_model_t4v2")
    options = {"text_prompt": {"length": 4}, "visual_prompt": {"length": 2, "depth": 0, "mode": "dropped"}}
    case = GoldenCase(make_tuner("text_prompt+visual_prompt", options))
    theta = {"text.ctx": g["input.text_ctx"], "visual.ctx": g["input.visual_ctx"]}
    close(case.logits(theta), g["logits"])
    close(case.model.image(theta, case.x), g["image_features_normalised"])
    loss, grads = case.gradients(theta)
    close(loss, g["loss_ce"])
    close_gradient(grads["text.ctx"], g["grad.text_ctx"])
    close_gradient(grads["visual.ctx"], g["grad.visual_ctx"])


def test_fedcopl_steps_with_cosine_rates() -> None:
    """Three steps at the rates of epochs 0, 1 and 19 of 20 (lr 0.1, momentum 0.9, weight decay 0.05)."""
    g = golden("fedcopl_model_t4v2")
    options = {"text_prompt": {"length": 4}, "visual_prompt": {"length": 2, "depth": 0, "mode": "dropped"}}
    case = GoldenCase(make_tuner("text_prompt+visual_prompt", options))
    local = LocalTraining(epochs=20, lr=0.1, weight_decay=0.05, schedule="cosine")
    now = {"text.ctx": g["input.text_ctx"].clone(), "visual.ctx": g["input.visual_ctx"].clone()}
    leaves = list(now.values())
    optimiser = torch_optimiser(local, leaves)
    for epoch in (0, 1, 19):
        _, grads = case.gradients(now)
        optimiser.param_groups[0]["lr"] = local.rate(0, epoch)
        for name, value in now.items():
            value.grad = grads[name]
        optimiser.step()
        for short in ("text", "visual"):
            theirs = g[f"after_epoch{epoch}.{short}_ctx"]
            assert (now[f"{short}.ctx"] - theirs).norm() <= 1e-3 * theirs.norm()


def test_capt_coupled_and_class_prompts() -> None:
    """General context, projected into an image token before ln_pre; class-aware rows behind it."""
    g = golden("capt_model_g1c3")
    case = GoldenCase(make_tuner("coupled+class_prompt", {"coupled": {"length": 1}, "class_prompt": {"length": 3}}))
    names = {
        "general.ctx": "prompt_learner.general_ctx",
        "couple.0.weight": "coupling_function.weight",
        "couple.0.bias": "coupling_function.bias",
        "class.ctx": "prompt_learner.class_aware_ctx",
    }
    theta = {ours: g[f"input.{theirs}"] for ours, theirs in names.items()}
    assert theta.keys() == case.model.init(torch.Generator()).keys()
    close(case.logits(theta), g["logits"])
    close(case.model.image(theta, case.x), g["image_features_normalised"])
    close(case.model.text(theta), g["text_features_normalised"])
    counts = g["input.cls_num_list"].float()
    loss, grads = case.gradients(theta, prior=counts / counts.sum())
    close(loss, g["loss_logit_adjusted_ce"])
    for ours, theirs in names.items():
        close_gradient(grads[ours], g[f"grad_la_ce.{theirs}"])


def test_maple_deep_coupling() -> None:
    """Two learned rows of "a photo of a", the rest frozen; deep rows replaced in both towers at layers 1 and 2."""
    g = golden("maple_nctx2")

    class AsTokens:
        """The only words asked for."""

        def __call__(self, text: str) -> list[int]:
            assert text == "a photo of a"
            return g["tokens"][0, 1:5].tolist()

    case = GoldenCase(make_tuner("coupled", {"length": 2, "depth": 3, "words": "a photo of a"}))
    model = Model(golden_clip(), case.model.tuner, golden_words(), tokenizer=AsTokens())  # type: ignore[arg-type]
    case.model = model
    names = {"general.ctx": "ctx", "couple.0.weight": "proj.weight", "couple.0.bias": "proj.bias"}
    for i in (1, 2):
        names[f"general.deep{i}"] = f"compound_prompts_text.{i - 1}"
        for end in ("weight", "bias"):
            names[f"couple.{i}.{end}"] = f"compound_prompt_projections.{i - 1}.{end}"
    theta = {ours: g[f"input.prompt_learner.{theirs}"] for ours, theirs in names.items()}
    start = model.init(torch.Generator().manual_seed(0))
    assert theta.keys() == start.keys()
    assert torch.equal(start["general.ctx"], golden_clip().text.token_embedding.weight[g["tokens"][0, 1:3].long()])
    close(case.logits(theta), g["logits"])
    loss, grads = case.gradients(theta)
    close(loss, g["loss"])
    for ours, theirs in names.items():
        close_gradient(grads[ours], g[f"grad.prompt_learner.{theirs}"])


def test_clip_lora_on_the_image_tower() -> None:
    """q, k, v, o of all layers, scaled by α/√r, dropout 0: logits in training and merged, gradients of A and B."""
    g = golden("cliplora_vision")
    options = {"rank": int(g["r"]), "alpha": float(g["alpha"]), "dropout": 0.0, "towers": "image", "matrices": "qkvo"}
    case = GoldenCase(make_tuner("lora", options))
    theirs_of = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "proj"}

    def theirs(name: str) -> str:
        _, block, matrix, half = name.split(".")
        return f"visual.transformer.resblocks.{block.removeprefix('block')}.attn.{theirs_of[matrix]}.w_lora_{half}"

    start = case.model.init(torch.Generator())
    theta = {name: g[f"input.{theirs(name)}"] for name in start}
    assert len(theta) == sum(key.startswith("input.") for key in g)
    close(case.logits(theta), g["logits"])
    close(case.logits(theta), g["logits_eval_merged"])
    loss, grads = case.gradients(theta)
    close(loss, g["loss"])
    for name in theta:
        close_gradient(grads[name], g[f"grad.{theirs(name)}"])


def test_fedclip_gate() -> None:
    g = golden("fedclip_original")
    case = GoldenCase(make_tuner("adapter", {}))
    theta = {
        f"adapter.{ours}.{end}": g[f"input.{theirs}.{end}"]
        for ours, theirs in (("in", 0), ("out", 2))
        for end in ("weight", "bias")
    }
    assert theta.keys() == case.model.init(torch.Generator()).keys()
    close(case.logits(theta), g["logits_classwise_photo"])
    (gate,) = case.model.bend(theta).gates
    close(gate(case.x), g["adapted_features"])


def test_coop_context_through_the_model() -> None:
    """The whole way of PromptFL: tuner, model, loss, two steps of the family's SGD."""
    g = golden("coop_prompt")
    for prefix, name, options in (
        ("u4", "text_prompt", {}),
        ("mid4", "text_prompt", {"position": "middle"}),
        ("front4", "text_prompt", {"position": "front"}),
        ("csc4", "class_prompt", {}),
    ):
        case = GoldenCase(make_tuner(name, {"length": 4, **options}))
        (key,) = case.model.init(torch.Generator())
        now = {key: g[f"{prefix}.ctx"].clone()}
        close(case.logits(now), g[f"{prefix}.logits"])
        optimiser = torch_optimiser(LocalTraining(), list(now.values()))
        for step in (1, 2):
            _, grads = case.gradients(now)
            now[key].grad = grads[key]
            optimiser.step()
            theirs = g[f"{prefix}.ctx_after_{step}_step" + "s" * (step > 1)]
            torch.testing.assert_close(now[key], theirs, atol=1e-5, rtol=0)
