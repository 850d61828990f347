"""`fedtailor flower …`: a federation of real sites, from its keys to its results."""

from pathlib import Path
from typing import Annotated

import typer

from ..base.errors import UserError
from .arguments import ANY_OPTION, Json, Quiet, Words, run_of
from .joining import Folder, add, join, remove, renew
from .logs import logging_to
from .output import display, emit, print_result, say, waiting
from .stopping import command

flower_app = typer.Typer(help="A federation of real sites over Flower: TLS, a key for each.", no_args_is_help=True)
PolicyFile = Annotated[
    Path | None, typer.Option(help="what the server may ask of this site; default: policy.toml in its folder")
]
Log = Annotated[str, typer.Option(help="text, or json: one object a line, for programs")]


@flower_app.command("init")
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a new folder")],
    clients: Annotated[int, typer.Option(help="how many sites to make keys for; 0: each makes its own (join, add)")],
    host: Annotated[list[str], typer.Option(help="a name or address that sites reach the server by; may be repeated")],
    port: Annotated[int, typer.Option(help="where sites come in")] = 9092,
    control: Annotated[int, typer.Option(help="for commands, on the server's machine only")] = 9093,
) -> None:
    """Make a federation: certificates, a key for each site, and all that an administrator needs."""
    from ..flower.init import init

    init(folder, clients, host, port, control)
    say(f"made {folder}; {folder / 'README.md'} says what goes where")


for verb in (join, add, remove, renew):
    flower_app.command()(verb)


@flower_app.command("app")
def app_command(folder: Annotated[Path, typer.Argument(metavar="DIR", help="a new folder")]) -> None:
    """Write an app for `flwr run`, for a SuperLink that is there already, or for Flower's simulation."""
    from ..flower.app_folder import write_app

    write_app(folder)
    say(f"made {folder}; {folder / 'README.md'} says how to run it")


@flower_app.command()
def server(
    folder: Folder,
    listen: Annotated[
        str, typer.Option(help="where to listen: 0.0.0.0 is all of this machine; with :PORT if not at the federation's")
    ] = "127.0.0.1",
    limit: Annotated[int, typer.Option(help="MB; no site may send a longer message")] = 300,
    log: Log = "text",
) -> None:
    """Be the federation's server until stopped. Unfinished runs go on."""
    with waiting("starting"):
        from ..flower.deployment import Deployment
        from ..flower.server import run_server
    deployment = Deployment(folder)
    with logging_to(deployment.folder / "log" / "server.log", log):
        run_server(deployment, listen, limit)


@flower_app.command()
def client(
    data: Annotated[str, typer.Option(help="this site's pictures: a folder, or csv:PATH")],
    home: Annotated[Path, typer.Option(help="this site's folder, or the federation's (then with --client)")] = Path(),
    client: Annotated[int | None, typer.Option(help="this site's number")] = None,
    backbone: Annotated[str, typer.Option(help="the CLIP checkpoint here, where it is not bundled")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps; default: as the run says")] = "",
    policy: PolicyFile = None,
    log: Log = "text",
) -> None:
    """Be one site until stopped. Only messages to the server leave it; pictures never do."""
    with waiting("starting"):
        from ..flower.client import SiteFolder, run_client
        from ..settings.run import absolute_data
    pictures, site = data if ":" in data else f"folder:{data}", SiteFolder.open(home, client)
    with logging_to(site.folder / "log" / "site.log", log):
        run_client(site, absolute_data(pictures), backbone, device, policy)


@flower_app.command("log")
def log_command(
    home: Annotated[Path, typer.Option(help="this site's folder")] = Path(),
    since: Annotated[str, typer.Option(help="a day or a moment, in UTC: 2026-11-18, 2026-11-18T09:30")] = "",
    verify: Annotated[bool, typer.Option("--verify", help="only say whether the log is whole")] = False,
    as_json: Json = False,
) -> None:
    """Show what left this site, when and to whom, and what it refused; and whether anybody has changed the log."""
    from . import site_log

    lines = site_log.lines_of(home)
    broken = site_log.verdict(lines)
    if as_json:
        rows = [] if verify else site_log.since(lines, since)
        emit({"whole": not broken, "broken": broken, "last": lines[-1].hash, "lines": rows})
    elif not verify:
        display(site_log.log_table(site_log.since(lines, since)))
    if broken:
        raise UserError(f"this log is broken: {broken}")
    if not as_json:
        say(site_log.whole(lines))


@flower_app.command("site")
def site_command(
    home: Annotated[Path, typer.Option(help="this site's folder")] = Path(),
    run: Annotated[str, typer.Option(help="the name of one run: how its model does, class by class")] = "",
    policy: PolicyFile = None,
    as_json: Json = False,
) -> None:
    """Show this site's own view: the runs it took part in, what it sent and spent, its models and how they do here."""
    with waiting("looking"):
        from . import site
    found = site.look(home, policy)
    if as_json:
        emit(found)
    elif run:
        display(site.class_table(found["runs"], run))
    else:
        display(site.runs_table(found["runs"]))
        say(site.budget(found["spent"]))


@flower_app.command(context_settings=ANY_OPTION)
def run(
    folder: Folder,
    words: Words = None,
    name: Annotated[str | None, typer.Option(help="of the run; default: the method's, and a number")] = None,
    resume: Annotated[str | None, typer.Option(help="go on with the run of this name")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="do not wait for the end")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a method on the sites: fedtailor flower run DIR capt data=folder:TESTS rounds=20"""
    with waiting("starting", quiet):
        from ..flower.deployment import Deployment
        from ..flower.status import follow
        from .progress import Progress
    deployment, given = Deployment(folder), words or []
    name = deployment.resume(resume, given) if resume else deployment.submit(given, name, run_of)
    if detach:
        say(f"asked for {name}; fedtailor flower status {folder} tells how it goes")
        return
    with Progress(enabled=not quiet) as progress:
        summary = follow(deployment, name, progress)
    emit(summary) if as_json else print_result(summary)


@flower_app.command()
def status(
    folder: Folder,
    watch: Annotated[bool, typer.Option("--watch", help="go on looking, until Ctrl-C")] = False,
    as_json: Json = False,
) -> None:
    """Show which sites are online, which runs are asked for, and how they go."""
    with waiting("looking"):
        from ..flower.deployment import Deployment
        from ..flower.status import collect, render
        from .watching import show
    deployment = Deployment(folder)
    if watch:
        show(deployment, as_json)
        return
    found = collect(deployment)
    emit(found) if as_json else display(render(found))


@flower_app.command()
def stop(folder: Folder, name: Annotated[str | None, typer.Argument(help="default: the one that runs")] = None) -> None:
    """Stop a run once its sites have finished what they are doing; it can be resumed."""
    from ..flower.deployment import Deployment

    deployment = Deployment(folder)
    going_on = deployment.waiting()
    if name is None and not going_on:
        raise UserError("no run is going on")
    name = name or going_on[0]
    if name not in going_on:
        raise UserError(f"{name} is not going on; these are: {', '.join(going_on) or 'none'}")
    deployment.done(name)
    say(f"stopped {name}; go on with: {command('flower', 'run', folder, '--resume', name)}")
