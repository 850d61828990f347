"""What the tests of the towers share: small random CLIPs, a small tokenizer, a checkpoint folder, golden numbers."""

from __future__ import annotations

from pathlib import Path

import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers
from torch import Tensor, nn

from fedtailor.clip.block import LowRank
from fedtailor.clip.load import save_folder
from fedtailor.clip.model import Clip, Shape

SMALL = Shape(
    embed=24,
    image_size=32,
    patch=8,
    vision_width=48,
    vision_layers=4,
    vision_heads=3,
    context=77,
    vocab=120,
    text_width=32,
    text_layers=3,
    text_heads=2,
)


def shake(model: nn.Module, seed: int = 0) -> None:
    """Move every vector (bias, gain, embedding) off its neutral start: a swapped or forgotten one must show."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() == 1:
                value.add_(0.2 * torch.randn(value.shape, generator=rng))


def small_clip(shape: Shape = SMALL, seed: int = 0, double: bool = False) -> Clip:
    """A random CLIP; in double precision two ways of computing the same thing differ by rounding only, near 1e-14."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        clip = Clip(shape)
    shake(clip, seed)
    return (clip.double() if double else clip).freeze()


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def low_rank(width: int, seed: int, rank: int = 2, dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> LowRank:
    """A delta large enough to matter, with B away from the zeros that training starts from."""
    A, B = 0.3 * normal(rank, width, seed=seed, dtype=dtype), 0.3 * normal(width, rank, seed=seed + 1, dtype=dtype)
    return LowRank(A.requires_grad_(), B.requires_grad_(), scale=1.5, dropout=dropout)


def difference(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference; shapes must be equal."""
    assert a.shape == b.shape
    return (a - b).abs().max().item()


def relative(a: Tensor, b: Tensor) -> float:
    """Distance as a share of b's norm, for gradients."""
    assert a.shape == b.shape
    assert b.norm() > 0
    return ((a - b).norm() / b.norm()).item()


def cosine_logits(images: Tensor, texts: Tensor, scale: float | Tensor = 100.0) -> Tensor:
    return scale * nn.functional.normalize(images, dim=-1) @ nn.functional.normalize(texts, dim=-1).T


# --- a checkpoint folder -------------------------------------------------------------------------------------------

WORDS = ("cat", "a", "photo", "of")  # merged to one token each; any other word falls apart into letters
SPLIT = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def small_tokenizer() -> tokenizers.Tokenizer:
    """Made like CLIP's: lower case, one token per digit, byte pairs with </w> at a word's end, two markers last."""
    letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    vocab = {token: i for i, token in enumerate([*letters, *(f"{letter}</w>" for letter in letters)])}
    merges = []
    for word in WORDS:
        parts = [*word[:-1], f"{word[-1]}</w>"]
        while len(parts) > 1:
            merges.append((parts[0], parts[1]))
            parts = [parts[0] + parts[1], *parts[2:]]
            vocab.setdefault(parts[0], len(vocab))
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, end_of_word_suffix="</w>"))
    inner.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(tokenizers.Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(SPLIT), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.add_special_tokens(["<|startoftext|>", "<|endoftext|>"])
    return inner


VOCAB = small_tokenizer().get_vocab_size()


def write_tokenizer(folder: Path) -> None:
    small_tokenizer().save(str(folder / "tokenizer.json"))


def small_folder(folder: Path, shape: Shape, seed: int = 0) -> Clip:
    """A whole checkpoint in Hugging Face's layout, and the CLIP that was written there."""
    clip = small_clip(shape, seed)
    save_folder(clip, folder, eot=shape.vocab - 1, sos=shape.vocab - 2)
    write_tokenizer(folder)
    return clip
