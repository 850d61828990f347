"""An executor that stays: it takes Flower's tasks one after the other in this process, where CLIP is loaded already.

Flower's own starts a process for each message, which runs the code that came with the run. Here only the installed
fedtailor is ever run.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import httpx
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ..base.errors import UserError
from ..base.polling import Backoff
from .private import tasks, wire
from .private.tasks import RuntimeHttpClient
from .process import BrokenOff, Over

log = logging.getLogger("fedtailor.flower")
PAUSES = 0.1, 1.0, 1.05  # seconds between two looks for a task: at first, at most (after some 20 s), and their growth
PATIENCE = 30.0  # seconds in which the other side may come back
OURS = {"Message", "RecordDict", "ConfigRecord"}  # what our messages are made of (messages.py)
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
SERVER_APP, CLIENT_APP = "flwr-serverapp", "flwr-clientapp"  # kinds of tasks, as Flower writes them
COMPLETED = "completed"  # how one ended


class FlowerTask(NamedTuple):
    run: int
    token: str


class Runtime:
    """The Runtime API of a SuperLink or SuperNode on this machine. A secret lets us take tasks; each has a token."""

    def __init__(self, address: str, secret: bytes, root: bytes | None, kind: str) -> None:
        self.address, self.root, self.kind = address, root, kind
        login = tasks.SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})
        self.control = self.client(login, 0.0)

    def client(self, interceptor: tasks.ProtobufClientInterceptor, patience: float = PATIENCE) -> RuntimeHttpClient:
        both = [tasks.RuntimeVersionHttpInterceptor(component_name="SuperExec"), interceptor]
        # Not Flower's own, which ends this process by a signal when it gives up.
        retry = tasks.RetryInvoker(partial(tasks.exponential, max_delay=5), httpx.TransportError, None, patience)
        address, root = self.address, self.root
        return RuntimeHttpClient.from_server_address(address, root is None, root, both, retry_invoker=retry)

    def acquire(self) -> FlowerTask | None:
        found = self.control.AcquireTask(wire.AcquireTaskRequest(supported_task_types=[self.kind]))
        return FlowerTask(found.task.run_id, found.token) if found.HasField("task") and found.token else None

    @contextmanager
    def task(self, token: str) -> Iterator[RuntimeHttpClient]:
        """A task in hand: kept alive meanwhile, and reported as completed at the end."""
        client = self.client(tasks.RuntimeTokenHttpInterceptor(token))
        heart = tasks.HeartbeatSender(partial(beat, client))
        heart.start()
        try:
            yield client
            client.PushTaskOutput(wire.PushTaskOutputRequest(sub_status=COMPLETED))
        finally:
            # A failure is not reported: Flower would wait for ever for the reply to a message whose task failed, but
            # replies itself once it finds that the heartbeat has stopped.
            heart.stop()
            client.close()


def beat(client: RuntimeHttpClient) -> bool:
    try:
        return bool(client.SendTaskHeartbeat(wire.SendTaskHeartbeatRequest()).success)
    except httpx.HTTPError:
        return False


class Superseded(Exception):  # noqa: N818  # as it reads
    def __init__(self, by: FlowerTask) -> None:
        self.by = by


def serve(runtime: Runtime, app: ClientApp, over: Over) -> None:
    """Carry out one task after the other until told to stop, also in the middle of one. What fails is logged, and the
    next is taken."""
    task, pause = None, Backoff(*PAUSES)
    while not over.is_set():
        try:
            task = task or runtime.acquire()
        except httpx.HTTPError as error:  # the node is not up yet, or is being started again
            log.debug("no tasks: %s", error)
        if task is None:
            over.wait(pause.next())
            continue
        this, task = task, None
        try:
            with over.may_break_off(), runtime.task(this.token) as client:
                message, context = task_input(client, runtime)
                tasks.push_message(client, app(message, context), context)
        except BrokenOff:
            log.info("what was under way is broken off, and leaves no trace; the server asks again")
        except Superseded as superseded:
            task = superseded.by
        except Exception as error:
            log.warning("a task was not carried out", exc_info=error)
        pause.reset()


def task_input(client: RuntimeHttpClient, runtime: Runtime) -> tuple[Message, Context]:
    """The message that a task is about. A node makes the task first, and then gets the message, piece by piece."""
    given = client.PullTaskInput(wire.PullTaskInputRequest())
    context = Context(given.context.run_id, given.context.node_id, {}, RecordDict(), {})  # no more of it is read
    tasks.act_as(given.task_id, context.run_id, context.node_id)
    while not (trees := client.PullMessages(wire.PullAppMessagesRequest()).message_object_trees):
        await_more(runtime)
    node, run, name = wire.Node(node_id=context.node_id), context.run_id, trees[0].object_id
    pull = tasks.make_pull_object_fn_protobuf(client.PullObject, node, run)
    pieces = [piece.object_id for piece in wire.iterate_object_tree(trees[0])]
    contents: dict[str, bytes] = {}
    while missing := [piece for piece in pieces if piece not in contents]:
        try:
            contents |= tasks.pull_objects(missing, pull, max_time=0.0)
        except tasks.ObjectPullError:
            await_more(runtime)
    tasks.make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run)(name)
    check_kinds(contents.values())
    message = tasks.inflate_object_from_contents(name, contents)
    assert isinstance(message, Message)
    return tasks.named(message, name), context


def check_kinds(contents: Iterable[bytes]) -> None:
    """Flower would put its own arrays together at once, and a short one may name the same piece ten thousand times."""
    if other := {wire.get_object_type_from_object_content(content) for content in contents} - OURS:
        raise UserError(f"a message with {', '.join(sorted(other))} in it, which is not of ours")


def await_more(runtime: Runtime) -> None:
    """If the connection breaks, nobody says so. But a node has one message in hand: a newer task ends this one."""
    if newer := runtime.acquire():
        raise Superseded(newer)
    time.sleep(PAUSES[0])
