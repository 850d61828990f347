"""The cohort in groups whose clients train in step, so that their small matrices become one large one.

Equal to the loop within the rounding of fp32: the same sums in larger products. A group has the same clients whatever
the number of threads, so that the bits do not depend on it, unless there are more threads than groups.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from ..base.workers import side_by_side
from ..client.job import ClientState
from ..core.calls import TOGETHER
from ..core.lockstep import in_step
from ..core.types import Reply
from .build import Experiment
from .local import LocalEngine

GROUP = 4  # clients in step


class StackedEngine(LocalEngine):
    def carry_out(self, work: Sequence[Callable[[], Reply]], at_once: bool) -> list[Reply]:
        groups = [partial(in_step, work[i : i + GROUP]) for i in range(0, len(work), GROUP)]
        return list(chain.from_iterable(side_by_side(groups, self.threads, at_once)))


def pays(experiment: Experiment) -> bool:
    """Where all that is trained goes through the text tower, and few tokens do: a larger product is faster then. Image
    towers have many tokens already, and what works on cached features alone takes no time (docs/performance.md)."""
    model = experiment.job.model
    tokens = len(model.layout.row) * model.clip.text.width
    return model.tuner.touches() == {"text"} and tokens <= TOGETHER


def make_engine(experiment: Experiment, clients: Mapping[int, ClientState] | None, folder: Path | None) -> LocalEngine:
    return StackedEngine(experiment.job, experiment.client_data, clients, experiment.run.threads, folder)
