"""CoOp's learned context: M rows before every class name, the same for all classes."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ..base.errors import UserError
from ..core.bend import Bend, Context
from ..core.initial import normal
from ..core.model import Model, Tuner
from ..core.types import Params


class TextPrompt(Tuner):
    length: int = Field(4, ge=1, title="M", description="context rows shared by all classes")
    words: str = Field("", description="start as these words; those beyond M stay frozen. Empty: N(0, 0.02²)")
    position: Literal["end", "middle", "front"] = Field("end", description="where the class name stands")

    def touches(self) -> frozenset[str]:
        return frozenset({"text"})

    def plan(self, model: Model) -> Context:
        return Context(shared=self.length, before=frozen_words(model, self.words, self.length), position=self.position)

    def init(self, model: Model, rng: torch.Generator) -> Params:
        return {"text.ctx": context(model, self.length, self.words, rng)}

    def bend(self, theta: Params, model: Model) -> Bend:
        return Bend(shared=theta["text.ctx"])


def word_ids(model: Model, words: str) -> list[int]:
    if not words:
        return []
    if model.tokenizer is None:
        raise UserError("a context that starts as words needs a tokenizer; leave `words` empty")
    return model.tokenizer(words)


def frozen_words(model: Model, words: str, length: int) -> tuple[int, ...]:
    return tuple(word_ids(model, words)[length:])


def context(model: Model, length: int, words: str, rng: torch.Generator) -> Tensor:
    """(M, W): random rows, or the first M of the words'."""
    width = model.clip.text.width
    ids = word_ids(model, words)[:length]
    if not ids:
        return normal((length, width), rng)
    if len(ids) < length:
        raise UserError(
            f"{words!r} is {len(ids)} tokens, fewer than length={length}; use more words or a smaller length"
        )
    table = model.clip.text.token_embedding.weight
    return table[torch.tensor(ids, device=table.device)].detach().float().cpu().clone()
