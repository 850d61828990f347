"""The texts of a new federation's folder: file → text, in which $version, $address, $port, $control and $number stand
for the federation's own."""

from __future__ import annotations

HEAD = """\
# A federation of fedtailor. The commands that change it write it anew, without comments of yours.
# After a change of hosts: fedtailor flower renew. After a change of hosts or port, also tell the sites (site.toml).
"""

README = """\
# A federation

Made by `fedtailor flower init`. The sites reach the server at $address. Commands below are given in this folder.

| part | goes to | what stays secret in it |
|---|---|---|
| `federation.toml`, `app/`, `server/` | the server, into one folder | `server/server.key` |
| `clients/client-N/` | site N, and to nobody else | `client.key` |
| `ca/` | no machine of the federation: keep it offline | `ca.key`; who has it can pose as the server |

Keep file modes when copying (`scp -p`, `tar`), and let the account that fedtailor runs under own the files. Take a
site's folder to it on a way that you trust. Once the sites have theirs, delete `clients/*` here: the server needs none.

## Start

Install the same version everywhere: `pip install "fedtailor[flower]==$version"`.

On the server, with port $port open to the sites:

    fedtailor flower server . --listen 0.0.0.0

Port $control is for the server's machine alone: whoever reaches it can start and stop runs, so never open it.
At a site, which opens no port and only needs to reach $address:

    fedtailor flower client --home client-0 --data FOLDER

To start at boot, edit and use `server/fedtailor-server.service` and each site's `fedtailor-client.service` (systemd),
or the `compose.yaml` beside them (containers).

## Run

On the server:

    fedtailor flower status .
    fedtailor flower run . METHOD KEY=VALUE…
    fedtailor flower stop .

## Add a site

    fedtailor flower add .

makes `clients/client-N/`. Copy `federation.toml` and `server/keys/` to the server, restart it, hand the folder over.

## Remove a site

On the server, and here, delete `server/keys/client-N.pub` and the line of client-N under `[keys]` in `federation.toml`;
restart the server. It takes only keys in that folder. Leave `clients = …` as it is: numbers are not given twice. Do the
same if a `client.key` was lost or seen by others, then add the site anew.

## Renew the server's certificate

It lasts two years; `openssl x509 -noout -enddate -in server/server.pem` tells the end. Put `ca/ca.key` back in its
place, then

    fedtailor flower renew .

Copy `server/server.pem` and `server/server.key` to the server and restart it. The sites need nothing new. After ten
years the CA itself ends: make a new federation.
"""

SERVER_UNIT = """\
# Edit: the account (User), where fedtailor is installed (/opt/fedtailor), and this federation's folder (/srv/fedtailor,
# three times), which holds federation.toml, app/ and server/ and belongs to that account. Then:
#   useradd --system fedtailor; chown -R fedtailor: /srv/fedtailor
#   cp fedtailor-server.service /etc/systemd/system/; systemctl enable --now fedtailor-server
[Unit]
Description=fedtailor server
Wants=network-online.target
After=network-online.target

[Service]
User=fedtailor
ExecStart=/opt/fedtailor/bin/fedtailor flower server /srv/fedtailor --listen 0.0.0.0
Environment=FEDTAILOR_CACHE=/srv/fedtailor/server/cache
ReadWritePaths=/srv/fedtailor/server
"""

CLIENT_UNIT = """\
# Edit: the account (User), where fedtailor is installed (/opt/fedtailor), this folder (/etc/fedtailor, three times),
# which must belong to that account, and the pictures (/srv/pictures), which it need only be able to read. Then:
#   useradd --system fedtailor; chown -R fedtailor: /etc/fedtailor
#   cp fedtailor-client.service /etc/systemd/system/; systemctl enable --now fedtailor-client
[Unit]
Description=fedtailor client $number
Wants=network-online.target
After=network-online.target

[Service]
User=fedtailor
ExecStart=/opt/fedtailor/bin/fedtailor flower client --home /etc/fedtailor --data /srv/pictures
Environment=FEDTAILOR_CACHE=/etc/fedtailor/cache
ReadWritePaths=/etc/fedtailor
"""

GUARDED = """\
Restart=always
RestartSec=5
UMask=0077

# It may write nowhere else, and gain no rights. Pictures under /home need ProtectHome=read-only.
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
LockPersonality=yes
SystemCallArchitectures=native
CapabilityBoundingSet=

[Install]
WantedBy=multi-user.target
"""

IMAGE = """\
    build:
      # Edit: where fedtailor comes from, if not from your package index.
      dockerfile_inline: |
        FROM python:3.12-slim
        RUN pip install --no-cache-dir "fedtailor[flower]==$version"
    image: fedtailor:$version
    user: "1000:1000"  # Edit: who owns this folder (id -u, id -g); keys are readable to their owner only
    restart: always
    init: true
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
"""

SERVER_COMPOSE = f"""\
# docker compose up -d, then for example: docker compose exec server fedtailor flower status /srv/fedtailor
services:
  server:
{IMAGE}\
    command: [fedtailor, flower, server, /srv/fedtailor, --listen, 0.0.0.0]
    environment:
      HOME: /tmp
      FEDTAILOR_CACHE: /srv/fedtailor/server/cache
    ports: ["$port:$port"]  # never $control: whoever reaches it can start and stop runs
    volumes:
      - ../federation.toml:/srv/fedtailor/federation.toml:ro
      - ../app:/srv/fedtailor/app:ro
      - .:/srv/fedtailor/server
      # Edit: test pictures, if the server has some; a run finds them under data=folder:/srv/pictures
      # - /srv/pictures:/srv/pictures:ro
"""

CLIENT_COMPOSE = f"""\
# docker compose up -d
services:
  client:
{IMAGE}\
    command: [fedtailor, flower, client, --home, /etc/fedtailor, --data, /srv/pictures]
    environment:
      HOME: /tmp
      FEDTAILOR_CACHE: /etc/fedtailor/cache
    volumes:
      - .:/etc/fedtailor
      - /srv/pictures:/srv/pictures:ro  # Edit: the part before the first colon is where your pictures are
"""

SITE_README = """\
# Client $number of a federation

Pictures never leave the site. `client.key` is its password: show it to nobody, and tell the federation's administrator
at once if somebody may have seen it. What the site remembers between rounds is kept in this folder too.

    pip install "fedtailor[flower]==$version"
    fedtailor flower client --home . --data FOLDER

FOLDER has `train/<class>/` with the site's pictures, or `train/` with unlabelled ones. No port has to be opened; the
machine must reach $address. To start at boot, edit and use `fedtailor-client.service` or `compose.yaml`.
"""

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedtailor-app"
version = "$version"
description = "Names fedtailor's server and client to Flower."
license = "Apache-2.0"
dependencies = [] # each machine has its own fedtailor; Flower is to install nothing

[tool.flwr.app]
publisher = "fedtailor"
fab-include = ["fedtailor_app/__init__.py"]

[tool.flwr.app.components]
serverapp = "fedtailor_app:server"
clientapp = "fedtailor_app:client"

[tool.flwr.app.config]
run = ""
"""

MODULE = """\
from fedtailor.flower.app import client, server

__all__ = ["client", "server"]
"""

ROOT = {"README.md": README}
SERVER = {"fedtailor-server.service": SERVER_UNIT + GUARDED, "compose.yaml": SERVER_COMPOSE}
CLIENT = {"fedtailor-client.service": CLIENT_UNIT + GUARDED, "compose.yaml": CLIENT_COMPOSE, "README.md": SITE_README}
APP = {"pyproject.toml": PYPROJECT, "fedtailor_app/__init__.py": MODULE}
