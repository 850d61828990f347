"""CLIP's text tower, plain and fast.

`plain` is the textbook path: C sentences of up to 77 tokens, each computed on its own. `forward` gives the same
features for C sentences that share a beginning, as prompts do, with fewer sums:

* what is behind the end-of-text token is cut: attention is causal and only that token is read;
* the shared beginning ([SOS] and the learned context) is computed once, not C times;
* what follows is packed end to end without padding;
* the last layer is computed for the end-of-text tokens only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .block import NO_DELTAS, Deltas, LayerDeltas, Rng, Transformer, attend, deltas_at

TOKEN, SHARED, OWN = "token", "shared", "own"
# (TOKEN, id): a frozen token · (SHARED, m): the m-th learned row, the same for all classes · (OWN, m): each class's own
Slot = tuple[str, int]
Ids = Sequence[int]
NO_DEEP: Mapping[int, Tensor] = {}


def tokens(ids: Ids) -> list[Slot]:
    return [(TOKEN, i) for i in ids]


def arrange(
    name: Ids,
    *,
    sos: int,
    eot: int,
    shared: int = 0,
    own: int = 0,
    before: Ids = (),
    after: Ids = (),
    position: str = "end",
) -> list[Slot]:
    """One class's sentence with its learned rows; `position` says where among them the class name is."""
    learned: list[Slot] = [(SHARED, m) for m in range(shared)] + [(OWN, m) for m in range(own)]
    head = {"end": len(learned), "middle": len(learned) // 2, "front": 0}[position]
    body = [*learned[:head], *tokens(before), *tokens(name), *learned[head:]]
    return [(TOKEN, sos), *body, *tokens(after), (TOKEN, eot)]


@dataclass(frozen=True)
class Layout:
    """The tokens of C sentences: P in a prefix that all share, then T packed ones.

    They are numbered 0…P−1 and P…P+T−1. `row` is a token's row in the table [frozen embeddings | shared | own].
    """

    ids: Tensor  # (U,) the distinct frozen tokens
    row: Tensor  # (P + T,)
    place: Tensor  # (P + T,) position in its sentence
    grid: Tensor  # (C, L) the packed tokens of each class, padded by repeating its last
    inside: Tensor  # (T,) where each packed token is in the flattened grid
    last: Tensor  # (C,) each class's end-of-text token
    prefix: int  # P
    context: tuple[int, ...]  # prefix positions of the shared rows: what deep prompts overwrite
    shared: int
    own: int

    @property
    def classes(self) -> int:
        return len(self.last)

    def to(self, device: torch.device) -> Layout:
        moved: dict[str, Any] = {name: v.to(device) for name, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def pack(sentences: Sequence[Sequence[Slot]]) -> Layout:
    """Find what all sentences begin with, and lay the rest end to end."""
    shortest = min(len(s) for s in sentences)
    prefix = 0  # up to the first OWN slot or difference; the last token of a sentence always stays with its class
    while prefix < shortest - 1 and all(s[prefix] == sentences[0][prefix] != (OWN, s[prefix][1]) for s in sentences):
        prefix += 1
    ids = sorted({i for s in sentences for kind, i in s if kind == TOKEN})
    row_of = {i: row for row, i in enumerate(ids)}
    shared, own = (1 + max((m for s in sentences for k, m in s if k == kind), default=-1) for kind in (SHARED, OWN))

    def row(slot: Slot, c: int) -> int:
        kind, i = slot
        if kind == TOKEN:
            return row_of[i]
        return len(ids) + i if kind == SHARED else len(ids) + shared + c * own + i

    rows = [row(slot, 0) for slot in sentences[0][:prefix]]
    places = list(range(prefix))
    longest = max(len(s) for s in sentences) - prefix
    grid, inside, last = [], [], []
    for c, sentence in enumerate(sentences):
        first = len(rows)
        rows += [row(slot, c) for slot in sentence[prefix:]]
        places += range(prefix, len(sentence))
        numbers = list(range(first, len(rows)))
        inside += [c * longest + j for j in range(len(numbers))]
        grid.append(numbers + [numbers[-1]] * (longest - len(numbers)))
        last.append(numbers[-1])
    context = tuple(j for j, (kind, _) in enumerate(sentences[0][:prefix]) if kind == SHARED)
    ids_, row_, place_, grid_, inside_, last_ = (torch.tensor(n) for n in (ids, rows, places, grid, inside, last))
    return Layout(ids_, row_, place_, grid_, inside_, last_, prefix, context, shared, own)


class TextTower(nn.Module):
    def __init__(self, embed: int, context: int, vocab: int, width: int, layers: int, heads: int, act: str) -> None:
        super().__init__()
        self.width, self.context = width, context
        self.token_embedding = nn.Embedding(vocab, width)
        self.positional_embedding = nn.Parameter(torch.empty(context, width))
        self.transformer = Transformer(width, layers, heads, act)
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, embed))
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.positional_embedding, std=0.01)
        nn.init.normal_(self.text_projection, std=width**-0.5)

    def leave(self, x: Tensor) -> Tensor:
        normed: Tensor = self.ln_final(x)
        return normed @ self.text_projection

    def plain(self, ids: Tensor, embeddings: Tensor | None = None, deltas: Deltas = NO_DELTAS) -> Tensor:
        """(C, L) token ids → (C, D) features, every token of every sentence. EOT is the largest id of a row.

        `embeddings` (C, L, W), if given, stand in for the tokens' own.
        """
        length = ids.shape[1]
        x = self.token_embedding(ids) if embeddings is None else embeddings
        x = x + self.positional_embedding[:length]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        for layer in range(len(self.transformer)):
            x = self.transformer[layer](x, mask, deltas_at(layer, deltas, None))
        return self.leave(x[torch.arange(len(ids), device=x.device), ids.argmax(dim=1)])

    def forward(
        self,
        layout: Layout,
        shared: Tensor | None = None,
        own: Tensor | None = None,
        deep: Mapping[int, Tensor] = NO_DEEP,
        deltas: Deltas = NO_DELTAS,
        rng: Rng = None,
    ) -> Tensor:
        """Features (C, D) of the sentences of a layout, or (N, C, D) if the learned rows have a leading axis N.

        These are shared (M, W) and own (C, M, W); deep[i] (M, W) overwrites the shared ones at the input of layer i.
        """
        batched = any(t is not None and t.dim() == d for t, d in ((shared, 3), (own, 4)))
        x = self.lay(layout, shared, own)  # (N, P + T, W)
        P, layers = layout.prefix, len(self.transformer)
        if deep:
            self.check_deep(layout, deep)
        device = x.device
        causal = torch.ones(P, P, dtype=torch.bool, device=device).tril()
        C, L = layout.grid.shape
        keys = torch.cat([torch.arange(P, device=device).expand(C, P), layout.grid], dim=1).flatten()  # (C · (P + L))
        behind = torch.ones(L, P + L, dtype=torch.bool, device=device).tril(P)  # the prefix and what stands before
        for layer in range(layers - 1):
            x = self.overwrite(x, layout, deep.get(layer))
            block, here = self.transformer[layer], deltas_at(layer, deltas, rng)
            q, k, v = block.attn.qkv(block.ln_1(x), here)
            own_q = q.index_select(1, layout.grid.flatten()).unflatten(1, (C, L))
            own_k, own_v = (t.index_select(1, keys).unflatten(1, (C, P + L)) for t in (k, v))
            own_out = attend(own_q, own_k, own_v, behind).flatten(1, 2).index_select(1, layout.inside)
            prefix_out = attend(q[:, :P], k[:, :P], v[:, :P], causal)
            x = block.finish(x, torch.cat([prefix_out, own_out], dim=1), here)
        x = self.overwrite(x, layout, deep.get(layers - 1))
        features = self.leave(self.last_layer(x, layout, keys, deltas_at(layers - 1, deltas, rng)))
        return features if batched else features.squeeze(0)

    def lay(self, layout: Layout, shared: Tensor | None, own: Tensor | None) -> Tensor:
        """Embeddings of all tokens, (N, P + T, W)."""
        table = [self.token_embedding(layout.ids)[None]]
        if shared is not None:
            table.append(shared if shared.dim() == 3 else shared[None])
        if own is not None:
            table.append((own if own.dim() == 4 else own[None]).flatten(1, 2))
        N = max(len(t) for t in table)
        rows = torch.cat([t.expand(N, -1, -1) for t in table], dim=1)
        if rows.shape[1] != len(layout.ids) + layout.shared + layout.classes * layout.own:
            raise ValueError(f"{layout.shared} shared and {layout.own} own rows are laid out, other shapes were given")
        return rows.index_select(1, layout.row) + self.positional_embedding[layout.place]

    @staticmethod
    def check_deep(layout: Layout, deep: Mapping[int, Tensor]) -> None:
        first = min(layout.context, default=0)
        if not layout.shared or layout.context != tuple(range(first, first + layout.shared)):
            raise ValueError("deep text prompts need their context, in one piece, at the beginning of the sentence")
        for layer, rows in deep.items():
            if (got := rows.shape[-2]) != layout.shared:
                raise ValueError(f"deep text prompts of layer {layer} are {got} rows; the context is {layout.shared}")

    @staticmethod
    def overwrite(x: Tensor, layout: Layout, rows: Tensor | None) -> Tensor:
        if rows is None:
            return x
        first, after = layout.context[0], layout.context[-1] + 1
        rows = (rows if rows.dim() == 3 else rows[None]).expand(len(x), -1, -1)
        return torch.cat([x[:, :first], rows.to(x.dtype), x[:, after:]], dim=1)

    def last_layer(self, x: Tensor, layout: Layout, keys: Tensor, deltas: LayerDeltas) -> Tensor:
        block = self.transformer[len(self.transformer) - 1]
        C, L = layout.grid.shape
        normed = block.ln_1(x)
        q = block.attn.project(normed.index_select(1, layout.last), "q", deltas).unsqueeze(2)  # one each
        k, v = (block.attn.project(normed, which, deltas) for which in "kv")
        k, v = (t.index_select(1, keys).unflatten(1, (C, -1)) for t in (k, v))
        ends = layout.last - layout.grid[:, 0]  # tokens of a class behind the prefix, less one
        reach = torch.arange(layout.prefix + L, device=x.device) <= (layout.prefix + ends)[:, None]
        attended = attend(q, k, v, reach[:, None, None, :]).squeeze(2)
        return block.finish(x.index_select(1, layout.last), attended, deltas)
