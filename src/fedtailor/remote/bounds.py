"""How far a remote client may go: nobody's update, statistics or weight is out of all proportion to the others'.

Not a defence against a client that lies with moderation, for which there is `robust=…`: this keeps one that is broken,
or lies without, from ending a run or taking it over. Honest clients stay far below these bounds, so that a run whose
clients are remote ends in the same bits as one in this process.
"""

import math
from collections.abc import Mapping

from ..client.job import Task
from ..core.types import Params, Reply
from ..robust.base import length, typical

FAR = 1e3  # root mean square of a change, in units of 1 + that of the parameters: where nothing is left to learn from


def changes(task: Task, reply: Reply) -> Params:
    return {name: value.double() - task.params[name].double() for name, value in reply.params.items()}


def too_far(task: Task, reply: Reply) -> str:
    """Why a reply is out of bounds, whatever the others are; empty: it is not."""
    change, numel = length(changes(task, reply)), sum(value.numel() for value in reply.params.values())
    start = length({name: task.params[name] for name in reply.params})
    most = FAR * (math.sqrt(numel) + start)
    return f"its update is {change:.3g} long, with {numel} parameters of length {start:.3g}" if change > most else ""


def outliers(tasks: Mapping[int, Task], replies: Mapping[int, Reply], times: float) -> dict[int, str]:
    """Whose update, or one of whose statistics, is more than so many times as long as is typical; 0: nobody's."""
    sizes = {"its update": {k: length(changes(tasks[k], reply)) for k, reply in replies.items()}}
    for name in sorted({name for reply in replies.values() for name in reply.stats}):
        sizes[name] = {k: length({name: reply.stats[name]}) for k, reply in replies.items() if name in reply.stats}
    found = {}
    for what, lengths in sizes.items() if times else ():
        usual = typical(lengths)
        for k, size in lengths.items():
            if size > times * usual:
                found[k] = f"{what} is {size / usual:.3g} times as long as is typical in this round (plan.longest)"
    return found
