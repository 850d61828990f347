"""Threads of this process that do clients' work side by side.

Each works in one thread of torch's, as long as there are as many clients as cores. So a run has the same bits on any
number of cores, no thread waits for another within a matrix product, and nothing is copied from process to process.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Sums in another number of threads are added up in another order, and differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(work: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """Every result, in order; at most so many at a time. The first that fails ends all."""
    workers = min(threads, len(work))
    if workers <= 1:
        with torch_threads(threads):
            return [each() for each in work]
    begun: list[int] = []  # thread ids

    def begin() -> None:
        torch.set_num_threads(max(1, threads // workers))
        begun.append(threading.get_ident())

    pool = ThreadPoolExecutor(workers, "client", begin)
    futures = [pool.submit(each) for each in work]
    try:
        wait(futures, return_when=FIRST_EXCEPTION)
        results = [future.result() for future in futures if future.done()]  # raises what was raised
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for thread in begun:  # the others end at their next line, not after minutes of training
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))
        raise
    pool.shutdown()
    return results
