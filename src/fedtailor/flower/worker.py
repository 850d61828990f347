"""An executor that stays: it takes Flower's tasks one after the other in this process, where CLIP is loaded already.

Flower's own starts a process for each message and runs the code that came with the run in it. Here only the fedtailor
that is installed is ever run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import NamedTuple

import httpx
from flwr.clientapp import ClientApp
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushTaskOutputRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

log = logging.getLogger("fedtailor.flower")
PAUSE = 0.1  # seconds between two looks for a task: they go no further than this machine
PATIENCE = 30.0  # seconds in which the other side may come back
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


class Taken(NamedTuple):
    run: int
    token: str


class Runtime:
    """The Runtime API of a SuperLink or SuperNode on this machine. A secret lets us take tasks; each has a token."""

    def __init__(self, address: str, secret: bytes, root: bytes | None, kind: TaskType) -> None:
        self.address, self.root, self.kind = address, root, kind
        self.desk = self.client(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE}), 0.0)

    def client(self, interceptor: ProtobufClientInterceptor, patience: float = PATIENCE) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            self.address,
            self.root is None,
            self.root,
            [RuntimeVersionHttpInterceptor(component_name="SuperExec"), interceptor],
            # Not Flower's own, which ends this process by a signal when it gives up.
            retry_invoker=RetryInvoker(partial(exponential, max_delay=5), httpx.TransportError, None, patience),
        )

    def acquire(self) -> Taken | None:
        """The next task, if there is one."""
        found = self.desk.AcquireTask(AcquireTaskRequest(supported_task_types=[self.kind]))
        return Taken(found.task.run_id, found.token) if found.HasField("task") and found.token else None

    @contextmanager
    def task(self, token: str) -> Iterator[RuntimeHttpClient]:
        """A task in hand: it is kept alive meanwhile, and its outcome is told at the end."""
        client = self.client(RuntimeTokenHttpInterceptor(token))
        heart = HeartbeatSender(beat(client))
        heart.start()
        status, details = SubStatus.FAILED, "ended early"
        try:
            yield client
            status, details = SubStatus.COMPLETED, ""
        except Exception as error:
            details = f"{type(error).__name__}: {error}"
            raise
        finally:
            heart.stop()
            try:
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
            except httpx.HTTPError as error:
                log.warning("the outcome of a task could not be told: %s", error)
            client.close()


def beat(client: RuntimeHttpClient) -> Callable[[], bool]:
    def send() -> bool:
        try:
            return bool(client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
        except httpx.HTTPError:
            return False

    return send


def serve(runtime: Runtime, app: ClientApp, over: Event) -> None:
    """Carry out one task after the other until it is over. What fails is logged, and the next is taken."""
    while not over.is_set():
        try:
            taken = runtime.acquire()
        except httpx.HTTPError as error:  # the node is not up yet, or is being started again
            log.debug("no tasks: %s", error)
            over.wait(0.5)
            continue
        if taken is None:
            over.wait(PAUSE)
            continue
        try:
            with runtime.task(taken.token) as client:
                message, context, _, _ = pull_task_input(client)
                push_message(client, app(message, context), context)
        except Exception as error:
            log.warning("a task was not carried out", exc_info=error)
