import numpy as np
from pydantic import Field

from ...base.errors import UserError
from ..dataset import Dataset, Indices, Rng
from ..released import ReleasedDraws
from .base import NOTHING, Partition, Shares, deal, members_for


class Quantity(Partition):
    """FedCoPL's quantity skew: a client holds few classes, a class few clients, in uneven amounts."""

    share: float = Field(
        0.2, gt=0, le=1, title="s/C",
        description="FedCoPL, Table 2: a client has s = 0.2·C classes; as released, a class has 0.2·K clients.",
    )  # fmt: skip
    least: int = Field(10, ge=0, description="Pictures a client gets at least, spread over all classes.")

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        members = members_for("quantity", dataset, clients)
        C, holders = len(dataset.classes), int(self.share * clients)
        if holders == 0:
            needed = int(np.ceil(1 / self.share))
            raise UserError(f"partition quantity with share={self.share} needs {needed} clients or more, got {clients}")
        dealt, left = [NOTHING] * clients, np.full(clients, self.share * C)
        for label, both in enumerate(members):
            chosen = np.flatnonzero(left > 0)[:holders]  # a started quota is used up whole, as released
            if len(chosen) == 0:
                raise UserError(f"partition quantity: share={self.share} leaves class {label} to nobody; raise it")
            left[chosen] -= 1
            deal(dealt, chosen, *(self._cut(part, len(chosen), C, clients, rng) for part in both))
        if empty := [k for k, share in enumerate(dealt) if len(share.train) == 0]:
            facts = f"leaves client(s) {', '.join(map(str, empty))} of {clients} without pictures"
            todo = f"take {clients - len(empty)} clients, or another share than {self.share}"
            raise UserError(f"partition quantity {facts}; {todo}")
        return tuple(dealt)

    def _cut(self, members: Indices, holders: int, classes: int, clients: int, rng: Rng) -> list[Indices]:
        """Uneven consecutive pieces: all but the last get at most their even part, the last takes the rest."""
        even = len(members) / holders
        low, high = int(min(max(even / clients, self.least / classes), even)), int(even)
        if not isinstance(rng, np.random.RandomState):
            sizes = [int(rng.uniform(low, high)) for _ in range(holders - 1)]
        elif low < high or holders == 1:
            sizes = rng.randint(low, high, holders - 1).tolist()
        else:
            facts = f"a class of {len(members)} pictures for {holders} clients has none to draw from"
            raise UserError(f"data.draws=released: {facts}, and the released code fails here; take data.draws=own")
        return np.split(members, np.cumsum(sizes, dtype=np.int64))

    def released(self, dataset: Dataset, clients: int, draws: ReleasedDraws) -> Shares:
        return self(dataset, clients, draws.numpy)
