"""A CLIP so small that every method can be run in a test, with a tokenizer that takes any text."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers

from fedtailor.clip.load import save_folder
from fedtailor.clip.model import Clip, Shape
from fedtailor.clip.tokenizer import EOT, SOS

VIT = Shape(
    embed=16, image_size=32, patch=16, vision_width=32, vision_layers=3, vision_heads=2,
    context=77, vocab=66, text_width=24, text_layers=3, text_heads=2,
)  # fmt: skip
RESNET = Shape(
    embed=16, image_size=32, patch=0, vision_width=4, vision_layers=(1, 1, 1, 1), vision_heads=2,
    context=77, vocab=66, text_width=64, text_layers=2, text_heads=1,
)  # fmt: skip


def tiny_clip(shape: Shape = VIT, seed: int = 0) -> Clip:
    """Random weights, large enough that features differ."""
    rng = torch.Generator().manual_seed(seed)
    clip = Clip(shape)
    with torch.no_grad():
        for name, value in clip.named_parameters():
            if value.dim() > 1:
                value.copy_(torch.randn(value.shape, generator=rng) * 0.2)
            elif "ln" in name and name.endswith("weight"):
                value.copy_(1 + 0.1 * torch.randn(value.shape, generator=rng))
            elif name != "logit_scale":
                value.copy_(0.1 * torch.randn(value.shape, generator=rng))
        clip.logit_scale.fill_(3.0)
    return clip.freeze()


def tokenizer() -> tokenizers.Tokenizer:
    """Characters, with the two markers as the largest ids, as CLIP has them."""
    letters = [chr(c) for c in range(33, 65)] + [chr(c) for c in range(91, 123)]
    vocab = {letter: i for i, letter in enumerate(letters)}
    vocab |= {SOS: len(letters), EOT: len(letters) + 1}
    out = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="!"))
    out.normalizer = normalizers.Lowercase()
    out.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    out.add_special_tokens([SOS, EOT])
    return out


def tiny_folder(folder: Path, shape: Shape = VIT, seed: int = 0) -> Path:
    """The checkpoint on disk, in Hugging Face's layout (a ResNet in OpenAI's)."""
    clip, words = tiny_clip(shape, seed), tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    words.save(str(folder / "tokenizer.json"))
    save_folder(clip, folder, words.token_to_id(EOT), words.token_to_id(SOS))
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.25] * 3}))
    return folder
