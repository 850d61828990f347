"""CoOp's learned context: M rows before every class name, the same for all classes."""

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ..base.errors import UserError
from ..core import Bend, Context, Model, Params, Tuner, normal


class SharedContext(Tuner):
    """What tuners with M context rows for all classes have in common."""

    acts_on = frozenset({"text"})

    length: int = Field(4, ge=1, title="M", description="context rows shared by all classes")
    words: str = Field("", description="start as these words; those beyond M stay frozen. Empty: N(0, 0.02²)")

    def context(self, model: Model) -> Context:
        return Context(shared=self.length, before=tuple(word_ids(model, self.words)[self.length :]))


class TextPrompt(SharedContext):
    position: Literal["end", "middle", "front"] = Field("end", description="where the class name stands")

    def context(self, model: Model) -> Context:
        return replace(super().context(model), position=self.position)

    def init(self, model: Model, rng: torch.Generator) -> Params:
        return {"text.ctx": context_rows(model, self.length, self.words, rng)}

    def bend(self, theta: Params, model: Model) -> Bend:
        return Bend(shared=theta["text.ctx"])


def word_ids(model: Model, words: str) -> list[int]:
    if not words:
        return []
    if model.tokenizer is None:
        raise UserError("a context that starts as words needs a tokenizer; leave `words` empty")
    return model.tokenizer(words)


def context_rows(model: Model, length: int, words: str, rng: torch.Generator) -> Tensor:
    """(M, W) to start from: random rows, or the first M of the words'."""
    ids = word_ids(model, words)[:length]
    if not ids:
        return normal((length, model.clip.text.width), rng)
    if len(ids) < length:
        raise UserError(
            f"{words!r} is {len(ids)} tokens, fewer than length={length}; use more words or a smaller length"
        )
    table = model.clip.text.token_embedding.weight
    return table[torch.tensor(ids, device=table.device)].detach().float().cpu().clone()
