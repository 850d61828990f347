"""Threads of this process that work side by side: on clients, or on chunks of pictures.

Each has one thread of torch's, as long as there is as much work as there are cores. So results have the same bits on
any number of cores, no thread waits for another within a matrix product, and nothing is copied between processes.
"""

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Submit = Callable[[Callable[[], Any]], Future[Any]]


@contextmanager
def pool(workers: int, threads: int) -> Iterator[Submit]:
    """Takes work while it is open, and waits for all of it; an error in here, or Ctrl-C, ends what is under way."""
    before, busy = torch.get_num_threads(), set[int]()  # ids of threads that are at work

    def run(work: Callable[[], Any]) -> Any:
        busy.add(me := threading.get_ident())
        try:
            return work()
        finally:
            busy.discard(me)

    def begin() -> None:
        torch.get_num_threads()  # at its first use a thread takes over what was set last, by whichever thread
        torch.set_num_threads(threads)

    made = ThreadPoolExecutor(workers, "worker", begin)
    try:
        yield lambda work: made.submit(run, work)
        made.shutdown()
    except BaseException:
        made.shutdown(wait=False, cancel_futures=True)
        for thread in list(busy):  # they end at their next line, not after minutes of training
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))
        raise
    finally:
        torch.set_num_threads(before)  # for threads to come


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Sums in another number of threads are added up in another order, and differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(work: Sequence[Callable[[], T]], threads: int, at_once: bool = True) -> list[T]:
    """Every result, in order; at most so many at a time. The first that fails ends all.

    Without `at_once` one after the other, each with as many of torch's threads as it would have had: the same bits.
    """
    workers = min(threads, len(work))
    inner = max(1, threads // max(1, workers))
    if workers <= 1 or not at_once:
        with torch_threads(inner):
            return [each() for each in work]
    with pool(workers, inner) as submit:
        futures = [submit(each) for each in work]
        wait(futures, return_when=FIRST_EXCEPTION)
        return [future.result() for future in futures if future.done()]  # raises what was raised


def in_order(work: Iterable[Callable[[], T]], threads: int) -> Iterator[T]:
    """Each result in its turn, while the next few are in the making, each in one thread of torch's.

    The first in order that fails is raised. To be closed by who does not take them all.
    """
    if threads == 1:
        yield from (each() for each in work)
        return
    with pool(threads, 1) as submit:
        ahead: deque[Future[T]] = deque()
        for each in work:
            ahead.append(submit(each))
            if len(ahead) == 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
