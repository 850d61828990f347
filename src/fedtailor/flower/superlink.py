"""Flower's SuperLink as a process of ours: `python -m fedtailor.flower.superlink PARENT PUBLIC LIMIT KEYS TOKEN …`

PUBLIC is where sites come in, LIMIT bytes of a message, KEYS the folder of the sites' keys, TOKEN the file that opens
the control port; the rest is Flower's. Who gets what at which port is in gate.py, for how long in doors.py.
"""

import socket
import sys
from pathlib import Path

from .doors import Server
from .gate import Gate
from .health import Told, health, metrics
from .private.superlink import SuperLinkLifespan, create_app, parse_options, start_parent_process_monitor
from .site_keys import SiteKeys


def listen(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host.strip("[]"), int(port)))
    return listener


def main() -> None:
    _, parent, public, limit, keys, token, *options = sys.argv
    sys.argv = ["flower-superlink", *options]
    start_parent_process_monitor(int(parent))
    config = parse_options()
    control, outside = listen(f"{config.host}:{config.port}"), listen(public)
    folder = Path(keys).parent
    app = Told(create_app(config, SuperLinkLifespan), "/metrics", metrics, folder)
    gate = Gate(app, int(limit), SiteKeys(Path(keys)), Path(token).read_text())
    server = Told(gate, "/health", health, folder)
    Server(server, outside, str(config.ssl_keyfile), str(config.ssl_certfile)).run(sockets=[control])


if __name__ == "__main__":
    main()
