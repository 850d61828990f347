"""The command line: verbs only. What they do is elsewhere; how it looks is in report/ and progress.py."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from . import __version__
from .errors import UserError

app = typer.Typer(
    name="fedtailor",
    help="Tailor a frozen CLIP to many sites at once, without their images leaving them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Look at datasets and at who holds what.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Words = Annotated[
    list[str] | None, typer.Argument(metavar="[METHOD] [KEY=VALUE]...", help="a method or a run.toml, then settings")
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object on stdout, nothing else")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress")]


def waiting(what: str, quiet: bool = False) -> AbstractContextManager[object]:
    """Something to look at while torch is imported or a dataset opened."""
    console = Console(stderr=True)
    return console.status(what) if console.is_terminal and not quiet else nullcontext()


def emit(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    if version:
        sys.stdout.write(f"fedtailor {__version__}\n")
        raise typer.Exit


@app.command()
def run(
    words: Words = None,
    out: Annotated[Path | None, typer.Option(help="the run's folder; default: a new one under runs/")] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with the run in this folder")] = None,
    seed: Annotated[int | None, typer.Option(help="short for seed=N")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a method: fedtailor run promptfl data=drawn-lt data.alpha=0.1 rounds=40"""
    with waiting("starting", quiet):
        from . import api
        from .progress import Progress

    if resume:
        if words or out or seed is not None:
            raise UserError("--resume takes all settings from the run's folder; give no others")
        folder = resume
    else:
        settings = run_of(words or [], seed)
        folder = out or new_folder(f"{settings.method.name}-{data_word(settings)}-s{settings.seed}")
    with Progress(enabled=not quiet) as progress:
        try:
            result = api.resume(folder, watcher=progress) if resume else api.run(settings, out=folder, watcher=progress)
        except KeyboardInterrupt:
            begun = (folder / "run.toml").is_file()
            told = f"go on with: fedtailor run --resume {folder}" if begun else "no round was begun, and no folder made"
            raise UserError(f"stopped; {told}") from None
    if as_json:
        emit(result.summary)
        return
    print_result(result.summary, leak=result.run.data.server == "test")


def print_result(s: dict[str, Any], leak: bool = False) -> None:
    from .report.tables import pseudo_line, result_table, size

    console = Console()
    console.print(result_table(s))
    if s["pseudo_labels"]:
        console.print(pseudo_line(s["labels"], s["pseudo_labels"]), highlight=False)
    if leak:
        console.print("the server had the test set to validate on (data.server=test): no fair result", style="yellow")
    console.print(
        f"{s['rounds']} rounds in {s['seconds']:.0f} s · up {size(s['bytes_up'])}, down {size(s['bytes_down'])} · "
        f"peak memory {s['peak_rss_mb']:.0f} MB · [bold]{s['run_dir']}[/]",
        highlight=False,
    )


def run_of(words: list[str], seed: int | None = None) -> Any:
    """The run that a command line's words describe."""
    from .config import make_run, parse, read_toml

    method = words[0] if words and "=" not in words[0] else None
    settings = parse(words[1:] if method else words)
    if seed is not None:
        if "seed" in settings:
            raise UserError("seed is given twice, as seed= and as --seed")
        settings["seed"] = seed
    if method and method.endswith(".toml"):
        return read_toml(Path(method), settings)
    return make_run(method, settings)


def data_word(settings: Any) -> str:
    """A run's data, as part of a folder's name."""
    form, colon, path = settings.data.name.partition(":")
    return f"{form}-{Path(path).resolve().stem}" if colon else form


def new_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2 and so on if that is taken."""
    base = Path("runs") / name
    folder, n = base, 1
    while folder.exists():
        n += 1
        folder = base.with_name(f"{base.name}-{n}")
    return folder


@app.command()
def compare(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD[:KEY=VALUE,...]... [KEY=VALUE]...", help="rows, then settings")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="how many (3: 0, 1, 2) or which (5,7); default: 1")] = None,
    number: Annotated[str | None, typer.Option(metavar="last|last10|best", help="of each run; default: last")] = None,
    out: Annotated[Path | None, typer.Option(help="the folder; one with this comparison is gone on with")] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with the comparison in this folder")] = None,
    all_: Annotated[bool, typer.Option("--all", help="every method, each with its own settings")] = False,
    sort: Annotated[str | None, typer.Option(help="by a column, best first: overall, tail …")] = None,
    jobs: Annotated[int, typer.Option(help="runs at a time; best with threads=1")] = 1,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods on one federation: fedtailor compare promptfl promptprox:method.mu=0.1 rounds=20 --seeds 3"""
    with waiting("starting", quiet):
        from . import lineup
        from .comparison import carry_out
        from .progress import Comparing
        from .report.comparison import comparison_table

    if resume:
        if words or out or seeds or all_:
            raise UserError("--resume takes all settings from the comparison's folder; give no others")
        compared, noted, column = lineup.read_lineup(resume)
        folder, number, sort = resume, number or noted, sort or column
    else:
        rows, settings = lineup.split_words(words or [])
        rows = [*(name for name in lineup.every_method() if all_ and name not in rows), *rows]
        compared = lineup.make_lineup(rows, settings, seeds)
        folder = out or new_folder(f"compare-{data_word(compared.rows[0].run)}")
    with Comparing(enabled=not quiet) as progress:
        try:
            by = sort or ("overall" if all_ else None)
            result = carry_out(compared, folder, number or "last", progress, by, jobs)
        except KeyboardInterrupt:
            begun = (folder / lineup.NOTE).is_file()
            told = f"go on with: fedtailor compare --resume {folder}" if begun else "no run was begun"
            raise UserError(f"stopped; {told}") from None
    if as_json:
        emit(result.summary)
        return
    console = Console()
    console.print(comparison_table(result.summary))
    console.print(str(folder / "table.md"), style="bold", markup=False, highlight=False)


@app.command("list")
def list_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="methods, tuners, labelers, rebalancers, servers, datasets, partitions, backbones, engines, "
            "diagnostics",
        ),
    ] = "methods",
    as_json: Json = False,
) -> None:
    """List methods, tuners and whatever else can be chosen."""
    with waiting("starting"):
        from . import catalogue
    rows = catalogue.rows(what)
    if as_json:
        emit(rows)
        return
    Console().print(catalogue.table(rows))


@app.command()
def show(
    method: Annotated[str, typer.Argument(help="fedtailor list methods")],
    as_json: Json = False,
) -> None:
    """Show a method: its paper, what it shares, and all its settings with symbols, defaults and equations."""
    with waiting("starting"):
        from . import catalogue
    facts = catalogue.method(method)
    if as_json:
        emit(facts)
        return
    Console().print(catalogue.method_page(facts))


@data_app.command("show")
def data_show(
    words: Annotated[list[str] | None, typer.Argument(metavar="[NAME] [KEY=VALUE]...")] = None,
    png: Annotated[Path | None, typer.Option(help="also draw the heatmap into this PNG file")] = None,
    seed: Annotated[int | None, typer.Option(help="short for seed=N")] = None,
    as_json: Json = False,
) -> None:
    """Count a dataset's images by class and client: fedtailor data show cifar100-lt data.alpha=0.05 clients=20"""
    with waiting("opening the data"):
        from .report.heatmap import counts_table, save_heatmap, terminal_heatmap
        from .setup import deal

        settings = run_of(data_words(words or []), seed)
        federation, groups = deal(settings)
    labelled = federation.dataset.train.labels is not None
    if png:
        if not labelled:
            raise UserError("there are no training labels to draw")
        try:
            save_heatmap(federation.counts, png)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot draw into {png}: {error}") from error
    if as_json:
        dataset = federation.dataset
        emit(
            {
                "data": settings.data.name,
                "classes": dataset.classes,
                "clients": federation.clients,
                "train": len(dataset.train),
                "test": len(dataset.test),
                "groups": {name: members.tolist() for name, members in groups.items()} if labelled else None,
                "counts": federation.counts.tolist() if labelled else None,
                "sizes": federation.sizes.tolist(),
                "test_sizes": federation.test_sizes.tolist(),
            }
        )
        return
    console = Console()
    console.print(counts_table(federation, groups))
    if labelled:
        console.print(terminal_heatmap(federation.counts))


def data_words(words: list[str]) -> list[str]:
    """`NAME key=value …` as settings of a run."""
    if words and "=" not in words[0]:
        words = [f"data={words[0]}", *words[1:]]
    return words


@data_app.command("check")
def data_check(
    name: Annotated[str, typer.Argument(help="fedtailor list datasets")],
    root_folder: Annotated[Path | None, typer.Option("--root", help="where the files are")] = None,
    as_json: Json = False,
) -> None:
    """Open a dataset, count it, decode every image; exit code 1 if anything is wrong."""
    from .data.check import check
    from .progress import Progress

    findings = []
    with Progress(enabled=True) as progress:
        for step in check(name, root_folder):
            progress.working("reading images", step.done, step.total)
            findings += [step.finding] if step.finding else []
    if as_json:
        emit({"data": name, "findings": findings, "ok": not findings})
    else:
        Console().print("\n".join(findings) if findings else f"{name}: nothing wrong", highlight=False)
    if findings:
        raise typer.Exit(1)


@data_app.command("split")
def data_split(
    out: Annotated[Path, typer.Option(metavar="DIR", help="a new folder for the sites' folders")],
    words: Annotated[list[str] | None, typer.Argument(metavar="[NAME] [KEY=VALUE]...")] = None,
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="training images in one heap, no labels")] = False,
    seed: Annotated[int | None, typer.Option(help="short for seed=N")] = None,
    as_json: Json = False,
) -> None:
    """Deal a dataset out into image files, a folder a site: fedtailor data split drawn-lt clients=3 --out sites"""
    with waiting("opening the data"):
        from .data.export import write_sites
        from .progress import Progress
        from .setup import deal

        federation, _ = deal(run_of(data_words(words or []), seed))
    with Progress(enabled=True) as progress:
        summary = write_sites(federation, out, unlabelled, progress.working)
    if as_json:
        emit(summary)
        return
    console = Console(soft_wrap=True, highlight=False)
    train, test = sum(summary["train"]), sum(summary["test"])
    console.print(f"{federation.clients} sites with {train} training and {test} test images, in {out}", markup=False)
    console.print(f"try them in one process: {summary['run']}", markup=False)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Look at this installation: versions, device, folders, datasets found, the bundled CLIP; exit code 1 if unfit."""
    with waiting("looking around"):
        from . import doctor as office

        findings = office.examine()
    if as_json:
        emit([vars(finding) for finding in findings])
    else:
        Console().print(office.table(findings))
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(1)


def main() -> None:
    from .cli_flower import flower_app

    app.add_typer(flower_app, name="flower")
    try:
        app(standalone_mode=True)
    except UserError as error:
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print("[bold red]error:[/]", end=" ")
        console.print(str(error), markup=False)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
