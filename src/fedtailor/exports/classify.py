"""Classify pictures with what is in this folder: python classify.py photo.jpg

It needs torch, safetensors, pillow and numpy, and nothing else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from safetensors.torch import load_file
from torch import Tensor

Weights = dict[str, Tensor]


class Classifier:
    def __init__(self, folder: str | Path) -> None:
        self.facts: dict[str, Any] = json.loads((Path(folder) / "export.json").read_text())
        self.tower: Weights = load_file(Path(folder) / "image_tower.safetensors")
        self.head: Weights = load_file(Path(folder) / "classifier.safetensors")
        self.classes: list[str] = self.facts["classes"]

    def pixels(self, picture: Image.Image) -> Tensor:
        """(3, S, S) of a picture, resized, cropped and normalised as in training."""
        it = self.facts["preprocessing"]
        size, image = it["size"], ImageOps.exif_transpose(picture).convert("RGB")
        if it["resize"] == "bilinear":
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        elif it["resize"] == "bicubic":
            width, height = (size * side // min(image.size) for side in image.size)
            left, top = round((width - size) / 2), round((height - size) / 2)
            image = image.resize((width, height), Image.Resampling.BICUBIC)
            image = image.crop((left, top, left + size, top + size))
        mean, std = (torch.tensor(it[name])[:, None, None] for name in ("mean", "std"))
        x = (torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255 - mean) / std
        if it["resize"] == "late":
            x = F.interpolate(x[None], (size, size), mode="bilinear", antialias=True)[0]
        return x

    @torch.no_grad()
    def features(self, pixels: Tensor) -> Tensor:
        """(B, D) of (B, 3, S, S)."""
        tower = vit if self.facts["image_tower"]["kind"] == "vit" else resnet
        features = tower(self.tower, self.facts["image_tower"], pixels)
        for i in range(self.facts["image_tower"]["gates"]):
            inside, outside = (f"gate.{i}.{{}}_{way}" for way in ("in", "out"))
            hidden = torch.tanh(linear(self.tower, inside, features))
            features = linear(self.tower, outside, hidden).softmax(dim=-1) * features
        return features

    def logits(self, pixels: Tensor) -> Tensor:
        """(B, C)."""
        z = F.normalize(self.features(pixels), dim=-1)
        logits: Tensor = self.head["logit_scale"] * z @ self.head["weight"].T + self.head["bias"]
        return logits

    def probabilities(self, pictures: list[Image.Image]) -> Tensor:
        """(B, C), a row a picture; calibrated where the model is."""
        logits = self.logits(torch.stack([self.pixels(picture) for picture in pictures]))
        found: Tensor = (logits / self.facts["temperature"]).softmax(dim=1)
        return found


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, w[name.format("weight")], w[name.format("bias")])


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])


def heads_of(x: Tensor, heads: int) -> Tensor:
    """(B, L, H · d) → (B, H, L, d)."""
    parts: Tensor = x.unflatten(-1, (heads, -1))
    return parts.transpose(1, 2)


def vit(w: Weights, it: dict[str, Any], pixels: Tensor) -> Tensor:
    prompts = {prompt["layer"]: (w[f"prompt.{i}"], prompt) for i, prompt in enumerate(it["prompts"])}

    def enter(x: Tensor, layer: int) -> Tensor:
        """Learned tokens join a layer's input, or take the place of the last ones."""
        if layer not in prompts:
            return x
        tokens, how = prompts[layer]
        return torch.cat([x[:, : -len(tokens)] if how["replace"] else x, tokens.expand(len(x), -1, -1)], dim=1)

    x = F.conv2d(pixels, w["conv1.weight"], stride=w["conv1.weight"].shape[-1]).flatten(2).transpose(1, 2)
    x = torch.cat([w["class_embedding"].expand(len(x), 1, -1), x], dim=1) + w["positional_embedding"]
    x = norm(w, "ln_pre", enter(x, -1))  # -1: before the first layer, and before its norm
    for i in range(it["layers"]):
        block, x = f"transformer.resblocks.{i}", enter(x, i)
        stacked = linear(w, f"{block}.attn.in_proj_{{}}", norm(w, f"{block}.ln_1", x))
        q, k, v = (heads_of(part, it["heads"]) for part in stacked.chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + linear(w, f"{block}.attn.out_proj.{{}}", attended)
        wide = linear(w, f"{block}.mlp.c_fc.{{}}", norm(w, f"{block}.ln_2", x))
        active = F.gelu(wide) if it["act"] == "gelu" else wide * torch.sigmoid(1.702 * wide)
        x = x + linear(w, f"{block}.mlp.c_proj.{{}}", active)
        if i in prompts and not prompts[i][1]["keep"]:
            x = x[:, : -len(prompts[i][0])]
    return norm(w, "ln_post", x[:, 0]) @ w["proj"]


def resnet(w: Weights, it: dict[str, Any], pixels: Tensor) -> Tensor:
    def conv(x: Tensor, name: str, i: int | str, stride: int = 1) -> Tensor:
        kernel, bn = w[f"{name}conv{i}.weight"], f"{name}bn{i}"
        return normed(F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2), bn)

    def normed(x: Tensor, bn: str) -> Tensor:
        mean, var, weight, bias = (w[f"{bn}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, mean, var, weight, bias)

    x = pixels
    for i, stride in ((1, 2), (2, 1), (3, 1)):
        x = conv(x, "", i, stride).relu()
    x = F.avg_pool2d(x, 2)
    for stage, depth in enumerate(it["layers"], 1):
        for j in range(depth):
            name, pool = f"layer{stage}.{j}.", 2 if stage > 1 and j == 0 else 1
            inner = conv(conv(x, name, 1).relu(), name, 2).relu()
            if f"{name}downsample.0.weight" in w:
                x = normed(F.conv2d(F.avg_pool2d(x, pool), w[f"{name}downsample.0.weight"]), f"{name}downsample.1")
            x = (conv(F.avg_pool2d(inner, pool), name, 3) + x).relu()
    if it["prompts"]:
        x = x + w["prompt.0"].mean(dim=0)[:, None, None]
    tokens = x.flatten(2).transpose(1, 2)
    tokens = torch.cat([tokens.mean(dim=1, keepdim=True), tokens], dim=1) + w["attnpool.positional_embedding"]
    inputs = {"q": tokens[:, :1], "k": tokens, "v": tokens}
    q, k, v = (heads_of(linear(w, f"attnpool.{m}_proj.{{}}", x), it["heads"]) for m, x in inputs.items())
    attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return linear(w, "attnpool.c_proj.{}", attended).squeeze(1)


def main() -> None:
    model = Classifier(Path(__file__).parent)
    for path in sys.argv[1:]:
        (row,) = model.probabilities([Image.open(path)])
        best = row.argsort(descending=True)[:5].tolist()
        named = [f"{model.classes[c]} {row[c]:.1%}" for c in best]
        sys.stdout.write(f"{path}: {', '.join(named)}\n")


if __name__ == "__main__":
    main()
