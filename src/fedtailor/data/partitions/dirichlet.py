import numpy as np
from pydantic import Field

from ...base.errors import UserError
from ..dataset import Dataset, Rng
from ..released import ReleasedDraws
from .base import NOTHING, TRIES, Alpha, Partition, Share, Shares, capped, cut, deal, members_for

# Where so many clients come short in each of the first draws, on average, waiting for a draw without any is in vain: by
# Poisson's law it is one in e¹⁴.
FIRST, HOPELESS = 20, 14


class Dirichlet(Partition):
    """CAPT: each class is dealt out by Dirichlet shares; a client that has its fair number of pictures gets no more."""

    alpha: Alpha = Field(
        0.1, description="Small is skewed. CAPT, implementation details (0.05, 0.1, 0.5); β in FedCoPL and FedPuReL."
    )
    min_size: int = Field(
        10, ge=0, title="n_min", description="Fewest pictures a client may hold: 10 in CAPT, 1 in FedPuReL."
    )
    min_test: int | None = Field(
        None, ge=0, title="n_min,test", description="The same for test pictures; as min_size if not given."
    )
    own_test_cap: bool = Field(
        False, description="FedCoPL: test shares are capped by test sizes instead of by train sizes."
    )

    def __call__(self, dataset: Dataset, clients: int, rng: Rng) -> Shares:
        size, test_size = len(dataset.train), len(dataset.test)
        min_test = (self.min_size if self.min_test is None else self.min_test) if test_size else 0
        members = members_for("dirichlet", dataset, clients, self.min_size, min_test)
        short = list[int]()  # clients without enough, in each draw
        while len(short) < TRIES and not (len(short) == FIRST and sum(short) > FIRST * HOPELESS):
            dealt = [NOTHING] * clients
            for ordered, test_ordered in members:
                train, test = rng.permutation(ordered), rng.permutation(test_ordered)
                sizes, test_sizes = np.array([[len(part) for part in share] for share in dealt]).T
                # A class nobody trains on fills nobody up: without this, all may be full already when it comes.
                room = sizes < (size / clients if len(train) else np.inf)
                test_room = test_sizes < test_size / clients if self.own_test_cap and len(test) else room
                shares = capped(self.alpha, room, test_room, rng)
                deal(dealt, range(clients), cut(train, shares * room), cut(test, shares * test_room))
            short.append(sum(len(train) < self.min_size or len(test) < min_test for train, test in dealt))
            if not short[-1]:
                return tuple(Share(*map(rng.permutation, share)) for share in dealt)
        raise UserError(
            f"partition dirichlet: in {len(short)} draws with alpha={self.alpha}, {min(short)} or more of {clients} "
            f"clients always had fewer than {self.min_size} training or {min_test} test pictures (of {size} and "
            f"{test_size}); take fewer clients, lower data.min_size or data.min_test, or raise data.alpha"
        )

    def released(self, dataset: Dataset, clients: int, draws: ReleasedDraws) -> Shares:
        return self(dataset, clients, draws.numpy)  # the order of draws is theirs
