"""Several clients' passes at once, in step: where they ask for the same computation, it is made once for all of them.

A method is written for one client. To train several together, each client's pass runs in a thread of its own, one
thread at a time, until it asks for something expensive: a tower, or a gradient. When all are waiting, what can be put
on one batch axis is computed together, and each goes on with its part. A pass notices nothing of it, clients that have
fewer batches just end earlier, and what cannot be put together is computed one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch

T = TypeVar("T")
HERE = threading.local()  # .client: the one whose pass this thread runs


class Call(Protocol[T]):
    """Something that a pass asks for."""

    @property
    def key(self) -> Hashable:
        """Calls with equal keys can be answered together."""

    @property
    def last(self) -> bool:
        """Whether it ends what earlier answers began, so that it has to wait until all clients have got there."""

    def answer(self, calls: Sequence[Any]) -> list[T]:
        """Of calls with this key, one or several."""


def ask(call: Call[T]) -> T:
    """The answer, found together with other clients' where they are run in step."""
    client: Client[Any] | None = getattr(HERE, "client", None)
    return call.answer([call])[0] if client is None else client.ask(call)


class Ended(BaseException):
    """Ends the passes of the other clients when one has failed."""


@dataclass(eq=False)
class Client(Generic[T]):
    """One client's pass, in a thread that runs only while the others wait."""

    work: Callable[[], T]
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    waits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    call: tuple[bool, Call[Any]] | None = None  # what it waits for, and whether gradients are on
    answer: Any = None
    results: list[T] = field(default_factory=list)
    failure: BaseException | None = None
    ended: bool = False

    def run(self) -> None:
        HERE.client = self
        try:
            self.results.append(self.work())
        except BaseException as error:
            self.failure = error
        self.call = None
        self.waits.release()

    def ask(self, call: Call[Any]) -> Any:
        if not self.ended:
            self.call = torch.is_grad_enabled(), call
            self.waits.release()
            self.turn.acquire()
        if self.ended:
            raise Ended
        answer, self.answer = self.answer, None
        return answer

    def go_on(self) -> None:
        """Until it asks for something again, or is done."""
        self.turn.release()
        self.waits.acquire()


def in_step(work: Sequence[Callable[[], T]]) -> list[T]:
    """Every result, in order. The first that fails ends all."""
    clients = [Client(each) for each in work]
    for client in clients:
        threading.Thread(target=client.run, daemon=True).start()
        client.waits.acquire()
    try:
        while waiting := [client for client in clients if client.call is not None]:
            if any(client.failure for client in clients):
                break
            for client in answered(waiting):
                client.go_on()
    finally:
        for client in clients:
            client.ended = True
            if client.call is not None:
                client.go_on()
    for client in clients:
        if client.failure and not isinstance(client.failure, Ended):
            raise client.failure
    return [client.results[0] for client in clients]


def answered(waiting: Sequence[Client[Any]]) -> list[Client[Any]]:
    """Those that can go on. A call that ends what others still need waits for them."""
    calls = {client: client.call for client in waiting if client.call is not None}
    now = [client for client in calls if not calls[client][1].last] or list(waiting)
    groups: dict[tuple[bool, Hashable], list[Client[Any]]] = {}
    for client in now:
        grads, call = calls[client]
        groups.setdefault((grads, (type(call), call.key)), []).append(client)
    for (grads, _), members in groups.items():
        asked = [calls[client][1] for client in members]
        with torch.set_grad_enabled(grads):
            for client, answer in zip(members, asked[0].answer(asked), strict=True):
                client.answer, client.call = answer, None
    return now
