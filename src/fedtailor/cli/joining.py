"""`fedtailor flower join`, `add`, `remove` and `renew`: who may come in."""

from pathlib import Path
from typing import Annotated

import typer

from ..base.errors import UserError
from .output import say
from .stopping import command

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="the federation's folder, as init made it")]


def join(
    home: Annotated[Path, typer.Option(help="this site's folder; made if it is not there")],
    name: Annotated[str, typer.Option(help="how this site wants to be called")] = "",
    answer: Annotated[Path | None, typer.Option(help="the file that came back from the server")] = None,
    server: Annotated[
        str, typer.Option(help="HOST:PORT, if this site reaches the server elsewhere than the answer says")
    ] = "",
) -> None:
    """At a site: make its key, to be let in by the server; then, with --answer, take what came back."""
    from ..flower import joining

    if answer is None:
        if server:
            raise UserError("--server goes with --answer; to ask, this site needs no server yet")
        fingerprint = joining.request(home, name)
        say(f"{home / 'client.pub'} goes to whoever runs the server, {home / 'client.key'} to nobody")
        say(f"its fingerprint, to be read out to them: {fingerprint}")
        return
    known = joining.accept(home, answer, server)
    say(f"this site knows its server by {known}; have that read out to you, and compare")
    say(f"read {home / 'policy.toml'}, then: {command('flower', 'client', '--home', home, '--data')} FOLDER")


def add(
    folder: Folder,
    key: Annotated[
        Path | None, typer.Option(help="a site's client.pub; without one the site's key is made here, to be tried out")
    ] = None,
    name: Annotated[str, typer.Option(help="of the site; default: as it wants to be called, else client-N")] = "",
) -> None:
    """Let one more site in, also while the server runs."""
    if key is None:
        from ..flower.init import add_client

        if name:
            raise UserError("--name goes with --key; a site whose key is made here is called client-N")
        say(f"made {folder / 'clients' / f'client-{add_client(folder)}'}, with a key in it")
        return
    from ..flower.joining import admit

    admitted = admit(folder, key, name)
    say(f"{admitted.name} may come in, if its key is {admitted.key}: have the site read it out")
    say(f"{admitted.answer} goes back to it, and has no secrets; it will read out {admitted.ca}")


def remove(folder: Folder, name: Annotated[str, typer.Argument(help="the site")]) -> None:
    """Let a site in no more, also while the server runs. Its key stays out for good."""
    from ..flower.joining import remove as put_out

    put_out(folder, name)
    say(f"{name} is let in no more; if it is to come back, it makes a new key")


def renew(folder: Folder) -> None:
    """Make a new certificate for the server, which a running one shows from then on."""
    from ..flower.init import renew as make_anew

    make_anew(folder)
    say(f"made {folder / 'server' / 'server.pem'}; a server that runs here shows it within seconds")
