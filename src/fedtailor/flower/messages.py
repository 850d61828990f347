"""Our messages inside Flower's: a transport over a Grid, and the ClientApp that hands messages to a client."""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from ..base.errors import UserError
from ..remote.client import Order
from ..remote.engine import Received
from ..remote.refusal import Refused
from .pieces import PIECE
from .private.wire import ErrorCode as Code
from .private.wire import NodeInfo

log = logging.getLogger("fedtailor.flower")
KINDS = (
    "query.who", "query.invite", "train.keys", "train.shares", "train.pass", "train.open", "evaluate.test",
    "query.model",
)  # fmt: skip
DATA = "data"
TTL = 86400.0  # seconds
GONE = {Code.NODE_UNAVAILABLE, Code.MESSAGE_UNAVAILABLE, Code.REPLY_MESSAGE_UNAVAILABLE, Code.CLIENT_APP_CRASHED}
FOR_GOOD = {Code.CLIENT_APP_RAISED_EXCEPTION, Code.LOAD_CLIENT_APP_EXCEPTION}  # asked again, it would be the same
WHO = 20  # bytes: a client's number
NumberOf = Callable[[NodeInfo], int | None]  # which client a node is, if one of ours


def wrap(data: bytes) -> RecordDict:
    """In pieces, each a record of its own: Flower sends a record in one request, however long it is."""
    pieces = [data[begin : begin + PIECE] for begin in range(0, len(data), PIECE)] or [b""]
    return RecordDict({str(n): ConfigRecord({DATA: piece}) for n, piece in enumerate(pieces)})


def unwrap(content: RecordDict, most: float = math.inf, key: str = "plan.limit") -> bytes:
    """The bytes; an error if there are too many, before they are put together.

    Flower's own arrays are put together first: a short message that names one piece ten thousand times fills memory.
    """
    records = content.config_records
    pieces = [records[str(n)][DATA] for n in range(len(records))]
    if not all(isinstance(piece, bytes) for piece in pieces):
        raise TypeError("a message is made of bytes")
    if (size := sum(map(len, pieces))) > most:  # type: ignore[arg-type]
        raise UserError(f"a message of {size / 1e6:.0f} MB, more than the {most / 1e6:.0f} allowed ({key})")
    return b"".join(pieces)  # type: ignore[arg-type]


def read(content: RecordDict, most: float) -> Order:
    try:
        return unwrap(content, most, "megabytes_in")
    except UserError as error:
        return Refused("too-large", str(error))
    except (KeyError, AttributeError, TypeError) as error:
        return Refused("unreadable", f"not a message of ours ({error!r})")


def client_app(reply: Callable[[str, Order, Context], bytes], most: float = math.inf) -> ClientApp:
    """A ClientApp that passes every message of at most so many bytes on, or why it does not, and the reply back.
    Flower's own state of a client stays empty."""
    app = ClientApp()

    def handle(kind: str, message: Message, context: Context) -> Message:
        return Message(wrap(reply(kind, read(message.content, most), context)), reply_to=message)

    for kind in KINDS:
        category, action = kind.split(".")
        getattr(app, category)(action)(partial(handle, kind))
    return app


class Sent(NamedTuple):
    kind: str
    node: int
    since: str  # when that node had come online


class GridTransport:
    """Nodes have numbers of Flower's making; which client a node is, its key says or the node itself."""

    def __init__(self, grid: Grid, number: NumberOf | None = None, limit: float = math.inf) -> None:
        """`limit`: bytes of a reply."""
        self.grid, self.number, self.limit = grid, number, limit
        self.nodes: dict[int, NodeInfo] = {}  # that are online
        self.client_of: dict[int, int] = {}  # node → client
        self.asked: set[tuple[int, str]] = set()  # nodes that were asked who they are, and since when each was online
        self.sent: dict[str, Sent] = {}  # by message id

    def online(self) -> Collection[int]:
        self.nodes = {node.node_id: node for node in self.grid.get_nodes()}
        if self.number is not None:
            known = {node: self.number(info) for node, info in self.nodes.items()}
            self.client_of |= {node: client for node, client in known.items() if client is not None}
        else:
            there = {(node, info.last_activated_at) for node, info in self.nodes.items()}
            self.push("query.who", 0, dict.fromkeys(sorted(node for node, _ in there - self.asked), b""))
            self.asked |= there
        return {self.client_of[node] for node in self.nodes if node in self.client_of}

    def send(self, kind: str, round_: int, data: Mapping[int, bytes]) -> None:
        online = [(client, node) for node, client in self.client_of.items() if node in self.nodes]
        node_of = dict(reversed(online))  # of two that say they are the same, the first
        nodes = {node_of[k]: message for k, message in data.items()}
        self.sent = {name: sent for name, sent in self.sent.items() if sent.node not in nodes}  # what is new counts
        self.push(kind, round_, nodes)

    def push(self, kind: str, round_: int, data: Mapping[int, bytes]) -> None:
        for node, content in data.items():
            message = Message(wrap(content), node, kind, ttl=TTL, group_id=str(round_ + 1))
            for name in self.grid.push_messages([message]):
                self.sent[name] = Sent(kind, node, self.nodes[node].last_activated_at)

    def receive(self) -> Iterable[Received]:
        arrivals = []
        for message in self.grid.pull_messages(list(self.sent)) if self.sent else ():
            if (sent := self.sent.pop(message.metadata.reply_to_message_id, None)) is None:
                continue
            if sent.kind == "query.who":
                self.introduced(sent, message)
            else:
                arrivals.append(self.arrival(self.client_of[sent.node], message))
        return arrivals + self.restarted()

    def introduced(self, sent: Sent, message: Message) -> None:
        """Which client a node is, as it says itself; whatever else it says, it is none."""
        try:
            if message.has_error():
                if message.error.code not in FOR_GOOD:
                    self.asked.discard((sent.node, sent.since))
                raise UserError(message.error.reason)
            client = int(unwrap(message.content, WHO))
        except (UserError, KeyError, AttributeError, TypeError, ValueError) as error:
            log.warning("SuperNode %d did not say which client it is (%s)", sent.node, error)
            return
        if client in {other for node, other in self.client_of.items() if node in self.nodes and node != sent.node}:
            log.warning("SuperNode %d says that it is client %d, as another does that is online", sent.node, client)
        else:
            log.info("client %d is there, SuperNode %d", client, sent.node)
        self.client_of[sent.node] = client

    def restarted(self) -> list[Received]:
        """A node that has come online again since it was sent to may have lost the message, and nobody would say so:
        as of the last look at who is online."""
        if not self.sent:
            return []
        since = {node: info.last_activated_at for node, info in self.nodes.items()}
        names = [name for name, sent in self.sent.items() if since.get(sent.node, sent.since) != sent.since]
        lost = [self.sent.pop(name) for name in names]  # who it is, it has been asked anew
        return [Received(self.client_of[sent.node], gone=True) for sent in lost if sent.kind != "query.who"]

    def arrival(self, client: int, message: Message) -> Received:
        if message.has_error():
            return Received(client, trouble=f"Flower: {message.error.reason}", gone=message.error.code in GONE)
        try:
            return Received(client, unwrap(message.content, self.limit))
        except UserError as error:
            return Received(client, trouble=str(error))
        except (KeyError, AttributeError, TypeError) as error:
            return Received(client, trouble=f"not a message of ours ({error!r})")

    def close(self) -> None:
        pass
