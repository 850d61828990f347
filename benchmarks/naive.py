"""One training step as the authors' codes compute it, written plainly: what `step` compares with.

Each step encodes the batch's pixels by the whole image tower, every token in every layer, and each class's sentence
with all its 77 tokens, each on its own. Nothing is kept from step to step, but for the zero-shot sentences, which these
codes too encode once. The blocks of the towers are ours, so what they save by themselves is not in the comparison; and
where zero-shot CLIP needs the image features of an untouched tower, they are not computed a second time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.algorithms.alignment import alignment
from fedtailor.clip.block import deltas_at
from fedtailor.clip.model import Clip
from fedtailor.clip.text import TOKEN
from fedtailor.clip.vision import EMBEDDED, VisionTransformer, enter
from fedtailor.core.losses import log_prior
from fedtailor.core.method import branch
from fedtailor.core.model import PLAIN, Bend, Model
from fedtailor.core.optim import gradients
from fedtailor.core.types import Params
from fedtailor.methods.capt import CAPT, masked
from fedtailor.methods.fedpurel import FedPuReL, purified

from .cases import Scene


def encode_images(clip: Clip, pixels: Tensor, bend: Bend = PLAIN) -> Tensor:
    """(B, D) from pixels; only the read-out is of one token."""
    tower = clip.vision
    assert isinstance(tower, VisionTransformer)
    x = tower.ln_pre(enter(tower.embed(pixels), bend.prompts.get(EMBEDDED)))
    for layer in range(tower.layers):
        prompt = bend.prompts.get(layer)
        x = tower.transformer[layer](enter(x, prompt), deltas=deltas_at(layer, bend.image_deltas, None))
        if prompt and not prompt.keep:
            x = x[:, : -prompt.tokens.shape[-2]]
    return tower.leave(x[:, 0])


def normalised(features: Tensor, bend: Bend) -> Tensor:
    for gate in bend.gates:
        features = gate(features)
    return F.normalize(features, dim=-1)


def encode_texts(model: Model, bend: Bend, rows: str = "both", shared: Tensor | None = None) -> Tensor:
    """(C, D) normalised, of all 77 tokens; `shared` stands in for the bend's, where each image has its own."""
    sentences, text = model.sentences(rows), model.clip.text
    ids = torch.zeros(len(sentences), text.context, dtype=torch.long)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = torch.tensor([i if kind == TOKEN else 0 for kind, i in sentence])
    shared = bend.shared if shared is None else shared
    parts = [] if shared is None or rows == "own" else [shared.expand(len(ids), -1, -1)]
    parts += [] if bend.own is None or rows == "shared" else [bend.own]
    learned = sum(part.shape[1] for part in parts)  # they follow the first token
    frozen = text.token_embedding(ids)
    x = torch.cat([frozen[:, :1], *parts, frozen[:, 1 + learned :]], dim=1)
    return F.normalize(with_deep(model, ids, x, bend) if bend.deep else text.plain(ids, x, bend.text_deltas), dim=-1)


def with_deep(model: Model, ids: Tensor, x: Tensor, bend: Bend) -> Tensor:
    """`TextTower.plain`, with prompts that are overwritten at the input of later layers."""
    text, length = model.clip.text, ids.shape[1]
    x = x + text.positional_embedding
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    for layer in range(len(text.transformer)):
        if layer in bend.deep:
            rows = bend.deep[layer].expand(len(x), -1, -1)
            x = torch.cat([x[:, :1], rows, x[:, 1 + rows.shape[1] :]], dim=1)
        x = text.transformer[layer](x, mask, deltas_at(layer, bend.text_deltas, None))
    return text.leave(x[torch.arange(len(ids)), ids.argmax(dim=1)])


def logits(model: Model, bend: Bend, features: Tensor) -> Tensor:
    z = normalised(features, bend)
    if bend.for_image is None:
        return model.clip.scale * z @ encode_texts(model, bend).T
    pairs = zip(z, bend.for_image(z), strict=True)  # the text tower anew for each picture
    return model.clip.scale * torch.stack([each @ encode_texts(model, bend, shared=rows).T for each, rows in pairs])


def plain_step(scene: Scene, pixels: Tensor) -> tuple[Tensor, Params]:
    bend = scene.model.bend(scene.theta)
    scores = logits(scene.model, bend, encode_images(scene.model.clip, pixels, bend))
    loss = F.cross_entropy(scores, scene.labels[: len(pixels)])
    return loss.detach(), gradients(loss, scene.theta)


def capt_step(scene: Scene, pixels: Tensor) -> tuple[Tensor, Params]:
    """Three times every class: with the general prompt, with the classes' own, with both."""
    method, model, y = scene.method, scene.model, scene.labels[: len(pixels)]
    assert isinstance(method, CAPT)
    bend, log_pi = model.bend(scene.theta), log_prior(scene.start["counts"])
    z = normalised(encode_images(model.clip, pixels, bend), bend)
    weights = {"shared": (method.ge, 0.0), "own": (method.lam, 1.0), "both": (method.la, 1.0)}
    loss = z.new_zeros(())
    for rows, (weight, prior) in weights.items():
        scores = model.clip.scale * z @ encode_texts(model, bend, rows).T
        loss = loss + weight * F.cross_entropy(scores + prior * log_pi, y)
    grads = gradients(loss, scene.theta)
    return loss.detach(), grads | {"class.ctx": masked(grads["class.ctx"], scene.batch(pixels))}


def purified_step(scene: Scene, pixels: Tensor) -> tuple[Tensor, Params]:
    method, model, theta = scene.method, scene.model, scene.theta
    assert isinstance(method, FedPuReL)
    bend = model.bend(branch(theta, "global."))
    features = encode_images(model.clip, pixels, bend)
    with torch.no_grad():
        untouched = encode_images(model.clip, pixels) if bend.prompts or bend.image_deltas else features
    f = logits(model, bend, features)
    loss = F.cross_entropy(f, scene.labels[: len(pixels)])
    distance = alignment(method.align, model.plain_logits(untouched), f)
    g_align = gradients(distance, theta, retain_graph=True)
    return loss.detach(), purified(gradients(loss, theta), g_align, method.projection)


def naive_step(scene: Scene, pixels: Tensor) -> tuple[Tensor, Params]:
    kinds = {CAPT: capt_step, FedPuReL: purified_step}
    return kinds.get(type(scene.method), plain_step)(scene, pixels)
