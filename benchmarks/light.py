"""Sites without CLIP and pictures, many in a process: `python -m benchmarks.light DIR FIRST END`, until it is ended.

Each is a thread with a key and a TLS connection of its own. It looks for messages as often as a real site does, and
has a reply ready: to a pass the parameters that it was sent, to a test no score.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supernode.fleet_http_connection import http_request_response

from fedtailor.base.polling import Backoff
from fedtailor.data.groups import Groups
from fedtailor.evaluation.metrics import score
from fedtailor.flower.client import SiteFolder
from fedtailor.flower.messages import unwrap, wrap
from fedtailor.flower.supernode import PAUSES
from fedtailor.remote.messages import EvaluateReply, Invitation, PassReply, Ready, Request, decode, encode

SAMPLES = 10
HEADING = {"run", "client", "request_id"}


class LightSite:
    def __init__(self, home: SiteFolder) -> None:
        self.home, self.classes = home, 0

    def reply(self, data: bytes) -> bytes:
        message, tensors = decode(data)
        if isinstance(message, Invitation):
            self.classes = len(message.classes)
            return encode(Ready(samples=SAMPLES, tests=0))
        assert isinstance(message, Request)
        about = message.model_dump(include=HEADING)
        if "params" in tensors and "inbox" in tensors:
            done = PassReply(**about, version=message.version + 1, samples=SAMPLES, seconds=0.0, weight=SAMPLES)
            return encode(done, params=tensors["params"], stats={})
        empty = np.empty(0, np.int64)
        none = score(empty, empty, Groups.nowhere(self.classes))
        return encode(EvaluateReply(**about, personal=none, shared=none, zero_shot=none, pseudo=None))

    def serve(self) -> None:
        key: Any = load_ssh_private_key((self.home.folder / "client.key").read_bytes(), None)
        root = (self.home.folder / "ca.pem").read_bytes()
        with http_request_response(self.home.server, False, root, (key, key.public_key())) as connection:
            _, receive, send, _, _, pull_object, push_object, confirm = connection
            pause = Backoff(*PAUSES)
            pause.seconds = PAUSES[1]  # as one that has been there for a while
            time.sleep(random.uniform(0, PAUSES[1]))
            while True:
                found = receive()
                if found is None:
                    time.sleep(pause.next())
                    continue
                pause.reset()
                message, tree = found
                run, name = message.metadata.run_id, tree.object_id
                names = [piece.object_id for piece in iterate_object_tree(tree)]
                contents = pull_objects(names, lambda piece, run=run: pull_object(run, piece))  # type: ignore[misc]
                confirm(run, name)
                whole: Any = inflate_object_from_contents(name, contents)
                whole.metadata.__dict__["_message_id"] = name
                self.answer(whole, run, send, push_object)

    def answer(self, message: Message, run: int, send: Any, push_object: Any) -> None:
        reply = Message(wrap(self.reply(unwrap(message.content))), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = get_all_nested_objects(reply)
        wanted, session = send(reply, get_object_tree(reply), 0.0)
        for name in wanted:
            push_object(run, session, name, objects[name].deflate())


def main() -> None:
    folder, first, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    sites = [LightSite(SiteFolder.open(folder, k)) for k in range(first, end)]
    threads = [threading.Thread(target=site.serve, daemon=True) for site in sites]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
