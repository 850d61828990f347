"""Threads side by side: in order, a few ahead, and over when they have to be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest
import torch

from fedtailor.base.workers import in_order, side_by_side


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_results_come_in_order(threads: int) -> None:
    def work(i: int) -> int:
        time.sleep(0.002 * (i % 3))
        return i

    jobs = [partial(work, i) for i in range(30)]
    assert list(in_order(jobs, threads)) == side_by_side(jobs, threads) == list(range(30))
    assert list(in_order([], threads)) == side_by_side([], threads) == []


def test_only_a_few_are_ahead(threads: int) -> None:
    """Whoever takes results slowly is not buried in them."""
    asked: list[int] = []

    def jobs() -> Iterator[Callable[[], int]]:
        for i in range(100):
            asked.append(i)
            yield partial(int, i)

    with closing(in_order(jobs(), threads)) as results:  # type: ignore[type-var]
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        time.sleep(0.05)
        assert len(asked) <= 3 + 2 * threads


def test_each_has_one_thread_of_torch_s() -> None:
    """And who called keeps theirs, as do threads that come later."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert set(in_order([torch.get_num_threads] * 20, 3)) == {1}
        assert torch.get_num_threads() == 3
        assert side_by_side([torch.get_num_threads], 3) == [3]
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert later == [3]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("how", [side_by_side, lambda work, threads: list(in_order(work, threads))])
def test_an_error_ends_the_others(how: Callable[..., object]) -> None:
    """At their next line, and those that have not begun never begin."""
    begun: list[int] = []

    def endless(i: int) -> None:
        begun.append(i)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            time.sleep(0.01)

    def fail() -> None:
        while not begun:
            time.sleep(0.01)
        raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        how([fail, *(partial(endless, i) for i in range(5))], 2)
    until = time.monotonic() + 10
    while any(thread.name.startswith("worker") for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert len(begun) <= 2
