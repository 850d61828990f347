"""MaPLe is FedAvg with a deep coupled prompt: equal to the authors' code, and as deep as a backbone allows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedtailor.clip.model import Shape
from fedtailor.clip.vision import EMBEDDED
from fedtailor.core.model import Model
from fedtailor.methods.fedavg import FedAvg
from fedtailor.simulation.engine import make_engine
from fedtailor.tuners.coupled import Coupled
from golden_numbers import EOT, SOS, GoldenCase, close, close_gradient, golden, golden_clip, golden_words
from tiny import RESNET, VIT
from world import NAMES, checkpoint, world

WORDS = "a photo of a"


class AsTokens:
    """The only words asked for."""

    def __call__(self, text: str) -> list[int]:
        assert text == WORDS
        ids: list[int] = golden("maple_nctx2")["tokens"][0, 1:5].tolist()
        return ids


def golden_model(depth: int) -> Model:
    tuner = Coupled(length=2, depth=depth, words=WORDS)
    return Model(golden_clip(), tuner, golden_words(), tokenizer=AsTokens())  # type: ignore[arg-type]


def theirs(depth: int) -> dict[str, str]:
    names = {"general.ctx": "ctx", "couple.0.weight": "proj.weight", "couple.0.bias": "proj.bias"}
    for i in range(1, depth):
        names[f"general.deep{i}"] = f"compound_prompts_text.{i - 1}"
        for end in ("weight", "bias"):
            names[f"couple.{i}.{end}"] = f"compound_prompt_projections.{i - 1}.{end}"
    return names


def test_golden_gradient_of_the_method() -> None:
    """What a client of FedAvg follows is the authors' gradient."""
    g, m = golden("maple_nctx2"), golden_model(depth=3)
    batch = GoldenCase(m.tuner).batch
    theta = {ours: g[f"input.prompt_learner.{name}"].clone().requires_grad_() for ours, name in theirs(3).items()}
    assert theta.keys() == m.init(torch.Generator()).keys()
    method = FedAvg()
    close(method.loss(m, theta, batch, {}).detach(), g["loss"])
    found = method.gradient(m, {})(theta, batch)
    for ours, name in theirs(3).items():
        close_gradient(found[ours], g[f"grad.prompt_learner.{name}"])


def test_the_sentence_reads_a_photo_of_a_name() -> None:
    """Two learned rows, which begin as "a photo"; "of a" stays frozen between them and the name."""
    g, m = golden("maple_nctx2")["tokens"], golden_model(depth=3)
    layout = m.layout
    frozen = [*layout.ids.tolist(), "learned 0", "learned 1"]
    rows = [frozen[i] for i in layout.row.tolist()]
    a, photo, of, a_too = g[0, 1:5].tolist()
    assert a == a_too
    for c, (name, length) in enumerate(zip(m.words.names, g.argmax(dim=1) + 1, strict=True)):
        own = [rows[i] for i in layout.grid[c, : int(layout.last[c] - layout.grid[c, 0]) + 1].tolist()]
        sentence = rows[: layout.prefix] + own
        assert sentence == [SOS, "learned 0", "learned 1", of, a_too, *name, *m.words.period, EOT]
        assert [a, photo, *sentence[3:]] == g[c, 1 : int(length)].tolist()
    table = m.clip.text.token_embedding.weight
    assert torch.equal(m.init(torch.Generator())["general.ctx"], table[torch.tensor([a, photo])])


@pytest.mark.parametrize(
    ("shape", "depth"),
    [
        (replace(VIT, text_layers=12, vision_layers=12), 9),  # MaPLe's own
        (replace(VIT, text_layers=12, vision_layers=24), 9),
        (replace(VIT, text_layers=12, vision_layers=6), 4),
        (VIT, 2),
        (replace(VIT, vision_layers=1), 1),
        (RESNET, 1),
    ],
)
def test_depth_0_is_three_quarters_of_the_smaller_tower(shape: Shape, depth: int) -> None:
    m = Model.of(checkpoint(shape), Coupled(length=2, depth=0), NAMES, "{}")
    theta = m.init(torch.Generator().manual_seed(0))
    explicit = replace(m, tuner=Coupled(length=2, depth=depth))
    other = explicit.init(torch.Generator().manual_seed(0))
    assert theta.keys() == other.keys()
    assert sum(name.startswith("couple.") for name in theta) == 2 * depth
    bend = m.bend(theta)
    assert list(bend.deep) == list(range(1, depth))
    assert list(bend.prompts) == [EMBEDDED, *range(1, depth)]
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    x = m.clip.vision(pixels, "pixels", m.stage)
    leaves = {name: value.requires_grad_() for name, value in theta.items()}
    logits = m.logits(leaves, x)
    assert torch.equal(logits, explicit.logits(other, x))
    grads = torch.autograd.grad(logits.square().sum(), list(leaves.values()))
    assert all(grad.abs().sum() > 0 for grad in grads)


@pytest.mark.parametrize("shape", [VIT, RESNET])
def test_a_round(shape: Shape) -> None:
    experiment = world("fedavg", "coupled", shape, **{"tuner.length": 2, "tuner.depth": 0, "tuner.words": WORDS})
    server = experiment.job.method.round(experiment.job.first_server(), [0, 1], make_engine(experiment))
    assert ("general.deep1" in server.params) == (shape is VIT)
    assert all(not torch.equal(value, experiment.job.start[name]) for name, value in server.params.items())
