"""FPL: as many pseudo-labels for each class, CLIP's surest, on leaderboards that fill up picture by picture.

Menghini, Delworth and Bach, Enhancing CLIP with CLIP: Exploring Pseudolabeling for Limited-Label Prompt Tuning,
NeurIPS 2023.
Notation: K → k.
Departures: each client fills boards of its own, as FedCoPL's paper compares it. A picture that its own class refuses
goes to the first other board that takes it, and is compared with that board's least sure; the released code puts it on
every board that takes it, and does not sort a board before its first replacement (repeated=true). Of equally sure
pictures the earlier one stands higher; the released code goes by file name.
"""

import torch
from pydantic import Field
from torch import Tensor

from ..core import Params
from .base import INDEX, LABEL
from .zeroshot import SelfLabeler


class FPL(SelfLabeler):
    k: int = Field(16, ge=1, title="K", description="pseudo-labels for each class")
    repeated: bool = Field(False, description="a picture may stand on several boards, as released")

    def labels(self, probs: Tensor, t: int) -> Params:
        return dict(zip((INDEX, LABEL), leaderboards(probs, self.k, self.repeated), strict=True))


def leaderboards(probs: Tensor, k: int, repeated: bool = False) -> tuple[Tensor, Tensor]:
    """(index, y) of the k pictures on each class's board, board by board."""
    boards: list[list[tuple[float, int]]] = [[] for _ in range(probs.shape[1])]  # (−p, picture)
    bar = probs.new_full((len(boards),), -1.0)  # to beat: the last of a full board; below all while a board is not full
    for i, p in enumerate(probs):
        takers = (p > bar).nonzero().flatten()
        if not repeated or p.argmax() in takers:
            takers = takers[p[takers].argsort(descending=True, stable=True)[:1]]
        for c in takers.tolist():
            board = boards[c]
            board.append((-p[c].item(), i))
            if len(board) > k or not repeated:
                board.sort()
                del board[k:]
            if len(board) == k:
                bar[c] = -board[-1][0]
    index, y = [i for board in boards for _, i in board], [c for c, board in enumerate(boards) for _ in board]
    return torch.tensor(index, dtype=torch.int64), torch.tensor(y, dtype=torch.int64)
