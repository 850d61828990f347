"""Words to token ids, by the tokenizer.json that every CLIP folder carries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tokenizers

from ..base.errors import UserError
from .model import Shape

SOS, EOT = "<|startoftext|>", "<|endoftext|>"


@dataclass(frozen=True)
class Tokenizer:
    """Ids without the two markers; who builds a sentence puts `sos` and `eot` around it."""

    inner: tokenizers.Tokenizer
    sos: int
    eot: int
    context: int

    @classmethod
    def open(cls, folder: Path, shape: Shape) -> Tokenizer:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise UserError(
                f"no tokenizer.json in {folder}; copy it there from the checkpoint's Hugging Face repository"
            )
        try:
            inner = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{file} is not a readable tokenizer: {error}") from error
        sos, eot = inner.token_to_id(SOS), inner.token_to_id(EOT)
        if sos is None or eot is None:
            raise UserError(f"{file} has no {SOS} or {EOT}: not a CLIP tokenizer")
        if (tokens := 1 + max(inner.get_vocab().values())) > shape.vocab:
            raise UserError(f"{file} has {tokens} tokens, the text tower only {shape.vocab}")
        return cls(inner, sos, eot, shape.context)

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = self.inner.encode(text, add_special_tokens=False).ids
        if len(ids) + 2 > self.context:
            raise UserError(
                f"{text[:60]!r} … is {len(ids) + 2} tokens long, this text tower holds {self.context}; shorten the "
                "class name, or the sentence around it (data.template)"
            )
        return ids
