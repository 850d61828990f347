"""CLIP's text tower, plain and fast.

`plain` is the textbook path: C sentences of up to 77 tokens, each computed on its own. `forward` gives the same
features for C sentences that share a beginning, as prompts do, with fewer sums:

* what is behind the end-of-text token is cut: attention is causal and only that token is read;
* the shared beginning ([SOS] and the learned context) is computed once, not C times;
* what follows is packed end to end without padding;
* the last layer is computed for the end-of-text tokens only, and has no keys and values (`attend_one`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile

import torch
from torch import Tensor, nn

from .block import (
    KEPT,
    NO_DELTAS,
    Block,
    LayerDeltas,
    Rngs,
    Several,
    TowerDeltas,
    Transformer,
    attend,
    deltas_at,
    normal,
    recomputed,
)

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
    """The tokens of C sentences: P in a prefix that all share, or begin with, then T packed ones.

    They are numbered 0…P−1 and P…P+T−1. `row` is a token's row in the table [frozen embeddings | shared | own].
    """

    ids: Tensor  # (U,) the distinct frozen tokens
    row: Tensor  # (P + T,)
    place: Tensor  # (P + T,) position in its sentence
    grid: Tensor  # (C, L) the packed tokens of each sentence, padded by repeating its last
    inside: Tensor  # (T,) where each packed token is in the flattened grid
    sees: Tensor  # (C,) how many tokens of the prefix each sentence begins with
    prefix: int  # P
    context: tuple[int, ...]  # prefix positions of the shared rows: what deep prompts overwrite
    shared: int
    own: int  # rows of each class
    classes: int  # C, or fewer: classes may be in several sentences

    @property
    def sets(self) -> int:
        return len(self.grid) // self.classes

    @property
    def last(self) -> Tensor:
        """(C,) each sentence's end-of-text token."""
        return self.grid[:, -1]

    @cached_property
    def keys(self) -> Tensor:
        """(C · (P + L),) what each sentence's tokens may look at: the prefix, then their own."""
        prefix = torch.arange(self.prefix, device=self.grid.device).expand(len(self.grid), -1)
        return torch.cat([prefix, self.grid], dim=1).flatten()

    @cached_property
    def causal(self) -> Tensor:
        """(P, P), for the prefix."""
        return torch.ones(self.prefix, self.prefix, dtype=torch.bool, device=self.grid.device).tril()

    @cached_property
    def behind(self) -> Tensor:
        """(C | 1, 1, L, P + L), for the others: what each sentence sees of the prefix, and what stands before."""
        P, L, device = self.prefix, self.grid.shape[1], self.grid.device
        before = torch.ones(L, P + L, dtype=torch.bool, device=device).tril(P)
        sees = self.sees if self.sets > 1 else self.sees[:1]
        column = torch.arange(P + L, device=device)
        return before & ((column < sees[:, None]) | (column >= P))[:, None, None]

    @cached_property
    def reach(self) -> Tensor:
        """(C, 1, 1, P + L), for the end-of-text tokens alone."""
        column, ends = (
            torch.arange(self.prefix + self.grid.shape[1], device=self.grid.device),
            self.last - self.grid[:, 0],
        )
        visible = (column < self.sees[:, None]) | (column >= self.prefix)
        return (visible & (column <= self.prefix + ends[:, None]))[:, None, None, :]


def pack(sentences: Sequence[Sequence[Slot]], device: torch.device | None = None, classes: int = 0) -> Layout:
    """Find what all sentences begin with, and lay the rest end to end.

    They may be several sets, of so many classes each: the prefix is that of the set with the longest, and the others
    share as much of it as they begin with.
    """
    classes = classes or len(sentences)
    sets = [sentences[i : i + classes] for i in range(0, len(sentences), classes)]
    prefix = max((common_prefix(s) for s in sets), key=len)
    sees = [n for s in sets for n in [alike(common_prefix(s), prefix)] * classes]
    longest = max(len(s) - n for s, n in zip(sentences, sees, strict=True))
    ids = sorted({i for s in sentences for kind, i in s if kind == TOKEN})
    shared, own = (1 + max((m for s in sentences for k, m in s if k == kind), default=-1) for kind in (SHARED, OWN))
    row_of = {(TOKEN, i): row for row, i in enumerate(ids)} | {(SHARED, m): len(ids) + m for m in range(shared)}

    def row(slot: Slot, c: int) -> int:
        return row_of[slot] if slot[0] != OWN else len(ids) + shared + c % classes * own + slot[1]

    rows, places = [row_of[slot] for slot in prefix], list(range(len(prefix)))
    grid, inside = [], []
    for c, (sentence, seen) in enumerate(zip(sentences, sees, strict=True)):
        numbers = list(range(len(rows), len(rows) + len(sentence) - seen))
        rows += [row(slot, c) for slot in sentence[seen:]]
        places += range(seen, len(sentence))
        inside += [c * longest + j for j in range(len(numbers))]
        grid.append(numbers + numbers[-1:] * (longest - len(numbers)))
    context = tuple(j for j, (kind, _) in enumerate(prefix) if kind == SHARED)
    ids_, row_, place_, grid_, inside_, sees_ = (
        torch.tensor(n, device=device) for n in (ids, rows, places, grid, inside, sees)
    )
    return Layout(ids_, row_, place_, grid_, inside_, sees_, len(prefix), context, shared, own, classes)


def common_prefix(sentences: Sequence[Sequence[Slot]]) -> Sequence[Slot]:
    """Up to the first OWN slot or difference; the last token of a sentence always stays with its class."""
    first, shortest = sentences[0], min(map(len, sentences))
    length = min([alike(s[: shortest - 1], first) for s in sentences])
    return list(takewhile(lambda slot: slot[0] != OWN, first[:length]))


def alike(one: Sequence[Slot], other: Sequence[Slot]) -> int:
    """How many slots two beginnings have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


class TextTower(nn.Module):
    def __init__(self, embed: int, context: int, vocab: int, width: int, layers: int, heads: int, act: str) -> None:
        super().__init__()
        self.width, self.context = width, context
        self.token_embedding = nn.Embedding(vocab, width, _weight=normal(vocab, width, std=0.02))
        self.positional_embedding = normal(context, width, std=0.01)
        self.transformer = Transformer(width, layers, heads, act)
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = normal(width, embed, std=width**-0.5)

    def leave(self, x: Tensor) -> Tensor:
        return torch.matmul(self.ln_final(x), self.text_projection)

    def plain(self, ids: Tensor, embeddings: Tensor | None = None, deltas: TowerDeltas = NO_DELTAS) -> Tensor:
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
        deltas: TowerDeltas = NO_DELTAS,
        rng: Rngs = None,
        recompute: bool = False,
    ) -> Tensor:
        """Features (C, D) of the sentences of a layout, or (N, C, D) if the learned rows have a leading axis N,
        or the deltas are N clients'.

        These are shared (M, W) and own (C, M, W); deep[i] (M, W) overwrites the shared ones at the input of layer i.
        """
        learned = [rows for rows in (shared, None if own is None else own.flatten(-3, -2)) if rows is not None]
        clients = next((len(delta.sizes) for delta in deltas.values() if isinstance(delta, Several)), 0)
        x = self.lay(layout, learned, clients)
        for i in range(len(self.transformer)):
            layer = partial(self.layer, i, layout, deep.get(i), deltas)
            x = recomputed(layer, x, rng) if recompute else layer(x, rng)
        features = self.leave(x)
        return features if clients or any(rows.dim() == 3 for rows in learned) else features.squeeze(0)

    def layer(self, i: int, layout: Layout, deep: Tensor | None, deltas: TowerDeltas, x: Tensor, rng: Rngs) -> Tensor:
        """(N, P + T, W) → the same, or behind the last layer (N, C, W)."""
        block, here, P, (C, L) = self.transformer[i], deltas_at(i, deltas, rng), layout.prefix, layout.grid.shape
        if deep is not None:
            x = overwrite(x, layout, i, deep)
        if i == len(self.transformer) - 1:
            return last_layer(block, x, layout, here)
        q, k, v = block.attn.qkv(block.ln_1(x), here)
        own_q = q.index_select(1, layout.grid.flatten()).unflatten(1, (C, L))
        own_k, own_v = (t.index_select(1, layout.keys).unflatten(1, (C, P + L)) for t in (k, v))
        own_out = attend(own_q, own_k, own_v, layout.behind).flatten(1, 2).index_select(1, layout.inside)
        prefix_out = attend(q[:, :P], k[:, :P], v[:, :P], layout.causal)
        return block.finish(x, torch.cat([prefix_out, own_out], dim=1), here)

    def kept(self, layout: Layout) -> int:
        """Bytes of activations that a gradient needs."""
        (C, L), P = layout.grid.shape, layout.prefix
        copied = 2 * C * (P + 2 * L)  # for attention: each class's k and v, q and what comes out
        return 4 * len(self.transformer) * self.width * (KEPT * len(layout.row) + copied)

    def lay(self, layout: Layout, learned: Sequence[Tensor], clients: int) -> Tensor:
        """Embeddings of all tokens, (N, P + T, W)."""
        table = [self.token_embedding(layout.ids), *learned]
        N = max([clients or 1, *(len(rows) for rows in learned if rows.dim() == 3)])
        rows = torch.cat([each.expand(N, -1, -1) for each in table], dim=1)
        if rows.shape[1] != len(layout.ids) + layout.shared + layout.classes * layout.own:
            raise ValueError(f"{layout.shared} shared and {layout.own} own rows are laid out, other shapes were given")
        return rows.index_select(1, layout.row) + self.positional_embedding[layout.place]


def overwrite(x: Tensor, layout: Layout, layer: int, rows: Tensor) -> Tensor:
    """Deep prompts in place of the shared rows."""
    first = min(layout.context, default=0)
    after = first + layout.shared
    if not layout.shared or layout.context != tuple(range(first, after)):
        raise ValueError("deep text prompts need their context, in one piece, at the beginning of the sentence")
    if (got := rows.shape[-2]) != layout.shared:
        raise ValueError(f"deep text prompts of layer {layer} are {got} rows; the context is {layout.shared}")
    return torch.cat([x[:, :first], rows.expand(len(x), -1, -1).to(x.dtype), x[:, after:]], dim=1)


def last_layer(block: Block, x: Tensor, layout: Layout, deltas: LayerDeltas) -> Tensor:
    """(N, P + T, W) → (N, C, W), of the end-of-text tokens."""
    normed = block.ln_1(x)
    ends = normed.index_select(1, layout.last).unsqueeze(2)

    def lay(x: Tensor) -> Tensor:
        sentences: Tensor = x.index_select(1, layout.keys).unflatten(1, (len(layout.grid), -1))
        return sentences

    attended = block.attn.ask(ends, normed, deltas, layout.reach, lay).squeeze(2)
    return block.finish(x.index_select(1, layout.last), attended, deltas)
