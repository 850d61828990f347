"""Whatever is read, of whatever comes from outside: an object that was checked, or one sentence; and soon."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from targets import TARGETS, try_out

SOON = 20  # seconds, on however busy a machine
NASTY = [
    *(
        b"",
        b"\0",
        b"\xff",
        b"\n",
        b"\r",
        b"[",
        b"{",
        b'"',
        b"=",
        b",",
        b".",
        b"/",
        b"null",
        b"true",
        b"[]",
        b"{}",
        b"[1]",
    ),
    *(
        b"-1",
        b"0",
        b"1e999",
        b"NaN",
        b"9" * 30,
        b"99999999999",
        b"1e300",
        b"2147483648",
        b"inf",
        b"-0.0",
        b"3.5",
        b'"x"',
    ),
    *(b"[" * 3000, b"a." * 3000, b"~nobody/x", b"\\ud800", b"\xed\xa0\x80", b"\x1b[31m", "\u202e".encode()),
]
EXAMPLES = [pytest.param(20, id="few"), pytest.param(1500, id="many", marks=pytest.mark.slow)]


@contextmanager
def soon() -> Iterator[None]:
    def end(*_: object) -> None:
        raise TimeoutError(f"more than {SOON} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SOON)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@st.composite
def damaged(draw: Any, seeds: list[bytes]) -> bytes:
    """Something that is right, with a few things wrong: bits, cuts, repetitions, other values in place of values."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.integers(0, 12)))
        piece = draw(st.sampled_from(NASTY) | st.binary(max_size=8))
        how = draw(st.sampled_from(["put", "put", "value", "value", "bit", "cut", "twice"]))
        values = list(re.finditer(rb'"[^"]*"|-?\d[\d.e+-]*|[a-z_.]+', data))
        if how == "put":
            data = data[:begin] + piece + data[end:]
        elif how == "value" and values:
            value = draw(st.sampled_from(values))
            data = data[: value.start()] + piece + data[value.end() :]
        elif how == "bit" and begin < len(data):
            data = data[:begin] + bytes([data[begin] ^ 1 << draw(st.integers(0, 7))]) + data[begin + 1 :]
        elif how == "cut":
            data = data[:begin]
        else:
            data = data[:end] + data[begin:]
    return bytes(data[:200_000])


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_right_is_taken(target: str) -> None:
    """Broken: a seed is refused, so that nothing behind the first check is ever tried."""
    for seed in TARGETS[target][1]():
        assert try_out(target, seed) or target == "table"  # whose pictures are not there


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("target", TARGETS)
def test_an_object_or_a_sentence(target: str, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(damaged(TARGETS[target][1]()))
    def check(data: bytes) -> None:
        with soon():
            try_out(target, data)

    check()


@pytest.mark.parametrize("target", TARGETS)
def test_anything_at_all(target: str) -> None:
    """Bytes that were never right."""

    @settings(max_examples=5, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=300))
    def check(data: bytes) -> None:
        with soon():
            try_out(target, data)

    check()
