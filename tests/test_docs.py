"""The pages say what is so: code and commands work as written, tables name what is there, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
import typer

from fedtailor.cli import app
from fedtailor.cli.arguments import run_of
from fedtailor.client.job import Job
from fedtailor.core.method import Method
from fedtailor.core.types import LOCAL, Params
from fedtailor.labelers import Labeler
from fedtailor.labelers.zeroshot import probabilities
from fedtailor.methods import METHODS
from fedtailor.runs.comparison_plan import from_words
from fedtailor.runs.comparison_spec import every_method, split_words
from fedtailor.settings.run import make_run
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from fedtailor.tuners import TUNERS
from world import world

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
METHOD_PAGES = [ROOT / f"docs/methods/{name}.md" for name in ("capt", "fedcopl", "fedpurel")]
CONTENTS = ROOT / "docs/methods/README.md"
BASELINES = sorted({*(ROOT / "docs/methods").glob("*.md")} - {*METHOD_PAGES, CONTENTS})
by_name = pytest.mark.parametrize("page", METHOD_PAGES, ids=lambda page: page.stem)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def tables(page: Path, first: str, *rest: str) -> list[list[list[str]]]:
    """The cells of all tables whose head has these columns, among others."""
    found = []
    for part in page.read_text().split("\n\n"):
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if line.startswith("|")]
        if rows and rows[0][0] == first and set(rest) <= set(rows[0]):
            found.append(rows[2:])
    assert found, f"{page.name} has no table of {first}"
    return found


def table(page: Path, first: str, *rest: str) -> list[list[str]]:
    return tables(page, first, *rest)[0]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


def test_the_method_of_the_tutorial() -> None:
    """Its file runs; words are averaged, image tokens stay with their client, and both are learned."""
    page = (ROOT / "docs/adding-a-method.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    names: dict[str, Any] = {"__name__": "fedtailor.methods.fedkeep", "__package__": "fedtailor.methods"}
    exec(compile(code, "fedkeep.py", "exec"), names)
    made: type[Method] = names["FedKeep"]
    experiment = world(tuner="text_prompt+visual_prompt")
    job = Job(made(local=experiment.run.local), experiment.job.model, seed=3)
    assert job.scopes["visual.ctx"] == LOCAL
    experiment = replace(experiment, job=job)
    engine = make_engine(experiment)
    cohort = job.method.cohort(0, 4, 0.5, None)  # type: ignore[arg-type]  # everyone: nothing is drawn
    assert cohort == [0, 1, 2, 3]
    server = job.method.round(job.first_server(), cohort, engine)
    assert server.params.keys() == {"text.ctx"}
    assert (server.params["text.ctx"] != job.start["text.ctx"]).any()
    assert all((engine.clients[k].local["visual.ctx"] != job.start["visual.ctx"]).any() for k in cohort)


def test_the_labeler_of_the_page() -> None:
    """Its file runs: sums go up, labels stay, pictures above the average of all clients are trained on."""
    (code,) = blocks(ROOT / "docs/labelers.md", "python")
    names: dict[str, Any] = {"__name__": "fedtailor.labelers.sure", "__package__": "fedtailor.labelers"}
    exec(compile(code, "sure.py", "exec"), names)
    labeler: Labeler = names["Sure"]()
    experiment = world("fedavg", rounds=1, fraction=1.0, labels="zeroshot")
    experiment = replace(experiment, job=replace(experiment.job, labeler=labeler))
    engine = make_engine(experiment)
    engine.trace = []
    server, _ = run_round(experiment, experiment.job.first_server(), engine)
    assert (server.params["text.ctx"] != experiment.job.start["text.ctx"]).any()
    sent = {(seen.task.pass_name, *seen.reply.stats) for seen in engine.trace}
    assert sent == {("labels.measure", "sums"), ("labels.choose",), ("train",)}
    seen_by = [SimpleNamespace(round=0, data=experiment.client_data[k]) for k in range(4)]
    probs = [probabilities(experiment.job.model, me) for me in seen_by]  # type: ignore[arg-type]
    least = torch.cat(probs).amax(1).mean()
    for k in range(4):
        kept = engine.clients[k].memory
        assert kept["labels.index"].tolist() == [i for i, p in enumerate(probs[k]) if p.max() > least]
        assert kept["labels.y"].tolist() == [int(probs[k][i].argmax()) for i in kept["labels.index"]]


OTHERS = [ROOT / f"docs/{name}.md" for name in ("labelers", "tuners", "server-optimizers", "comparing", "runs")]


def commands(*pages: Path) -> list[str]:
    lines = [line for page in pages for block in blocks(page, "bash") for line in block.splitlines()]
    return list(dict.fromkeys(line for line in lines if not line.startswith("#")))


def shell_words(command: str) -> list[str]:
    if "{" not in command:
        return shlex.split(command, comments=True)
    spoken = subprocess.run(["bash", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True)
    return spoken.stdout.splitlines()


@pytest.mark.parametrize("command", commands(*METHOD_PAGES, CONTENTS, *BASELINES, *OTHERS))
def test_commands_of_the_methods(command: str) -> None:
    """Every key, value, row and preset is known, and rows differ. Only the README's and quickstart's are also run."""
    program, *words = shell_words(command)
    assert program == "fedtailor"
    verb, given = read(words)
    if verb == "compare":
        rows, settings = split_words(given["words"] or [])
        if given["resume"] or given["runs"]:
            return
        rows += every_method() if given["all_"] else []
        chosen = {"by": given["tune_by"], "seeds": given["tune_seeds"], "rounds": given["tune_rounds"]}
        plan = from_words(rows, settings, given["seeds"], given["over"] or [], given["tune"] or [], chosen)
        assert len(plan.first.rows) > 2  # zero-shot is always there
    else:
        assert verb == "run"
        run = run_of(given["words"])
        assert run.rounds > 0 or not METHODS[run.method.name].method.trains


def read(words: list[str]) -> tuple[str, dict[str, Any]]:
    """A command's verb, and its words and options as the command line takes them."""
    top: Any = typer.main.get_command(app)
    verb, command, rest = top.resolve_command(typer.Context(top), words)
    return verb, command.make_context(verb, rest).params


@pytest.mark.parametrize(
    "page", [*METHOD_PAGES, *BASELINES, ROOT / "docs/server-optimizers.md"], ids=lambda page: page.stem
)
def test_equations_point_to_code_and_tests_that_exist(page: Path) -> None:
    code = [path.read_text() for path in (ROOT / "src/fedtailor").rglob("*.py")]
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    heads = ("paper", "code", "test") if page in METHOD_PAGES else ("formula", "where", "test")
    rows = [row for part in tables(page, *heads) for row in part]
    assert len(rows) >= (9 if page in METHOD_PAGES else 1)
    for *_, where, checked in rows:
        assert quoted(where)
        assert quoted(checked)
        for name in quoted(where):
            owner, _, function = name.rpartition(".")
            homes = [text for text in code if not owner or re.search(rf"^class {owner}\b", text, re.MULTILINE)]
            assert any(re.search(rf"^ *def {function}\(", text, re.MULTILINE) for text in homes), name
        for name in quoted(checked):
            assert f"def {name}(" in tests, name


def test_the_contents_name_every_method() -> None:
    """The tables say of each what `fedtailor list methods` does, and lead to the method's page."""
    told = {}
    rows = [row for part in tables(CONTENTS, "name", "paper", "presets") for row in part]
    for name, paper, family, _, tuner, presets in rows:
        (target,) = re.findall(r"\((.*)\)", name)
        assert (CONTENTS.parent / target).is_file(), target
        ((it,), kinds, sets) = (re.findall(r"`([\w+-]+)`", cell) for cell in (name, tuner, presets))
        assert target == f"{it}.md"
        told[it] = paper, family, kinds, "any" in tuner, [name for name in sets if name != "released"]
    variants = {name for name in METHODS if name.endswith("-released")}
    assert all(f"`{name}`" in CONTENTS.read_text() for name in variants)
    due = {
        name: (
            f"{entry.paper} {entry.year}" if entry.paper else "–",
            entry.family,
            [entry.tuner],
            not entry.tuners,
            [preset for preset in entry.presets if preset != "released"],  # which is a method of its own
        )
        for name, entry in METHODS.items()
        if name not in variants
    }
    assert told == due


@pytest.mark.parametrize("page", [*METHOD_PAGES, *BASELINES], ids=lambda page: page.stem)
def test_every_method_has_a_page_with_a_command(page: Path) -> None:
    assert page.stem in METHODS
    assert any(line.startswith(f"fedtailor run {page.stem}") for line in commands(page))


def test_tuners_names_every_tuner() -> None:
    rows = table(ROOT / "docs/tuners.md", "name", "parameters")
    assert [quoted(row[0])[0] for row in rows[:-1]] == list(TUNERS)  # the last is the join


def vit_b_16(name: str, **settings: Any) -> Params:
    """What a method begins with on ViT-B/16 and 100 classes; of CLIP only its widths are needed."""
    run = make_run(name, settings)
    tuner = run.tuner.value
    clip = SimpleNamespace(
        text=SimpleNamespace(width=512, transformer=range(12), token_embedding=torch.nn.Embedding(1, 512)),
        vision=SimpleNamespace(width=768, prompt_width=768, layers=12, later_prompts=True, delta_matrices="qkvo"),
        shape=SimpleNamespace(embed=512, text_width=512),
    )
    model: Any = SimpleNamespace(clip=clip, classes=100, tokenizer=lambda words: [0 for _ in words.split()])
    model.init = lambda rng: tuner.init(model, rng)
    return run.method.value.init(model, torch.Generator())


@by_name
def test_sizes_of_what_is_sent(page: Path) -> None:
    theta = vit_b_16(page.stem)
    rows = {quoted(name)[0]: cells[:3] for name, *cells in table(page, "parameter") if quoted(name)}
    due = {n: [" × ".join(map(str, v.shape)), f"{v.numel():,}", f"{4 * v.numel():,}"] for n, v in theta.items()}
    assert rows == due


def test_sums_of_what_is_sent() -> None:
    pages = {page.stem: page.read_text() for page in METHOD_PAGES}
    published, released = (sum(v.numel() for v in vit_b_16(name).values()) for name in ("capt", "capt-released"))
    assert f"| {published:,} | {4 * published:,} |" in pages["capt"]
    assert f"{released:,} in all" in pages["capt"]
    for tuner in ("lora", "adapter"):
        theta = vit_b_16("fedpurel", tuner=tuner)
        assert f"{sum(v.numel() for n, v in theta.items() if n.startswith('global.')):,}" in pages["fedpurel"]


@by_name
def test_messages(page: Path) -> None:
    """A federation sends what the page's table says: these passes, and by name all that goes down and up in them."""
    tuner = make_run(page.stem).tuner.name
    experiment = world(page.stem, tuner, rounds=3, fraction=1.0)
    engine, server = make_engine(experiment), experiment.job.first_server()
    engine.trace = []
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
    sent: dict[str, tuple[set[str], set[str]]] = {}
    for seen in engine.trace:
        down, up = sent.setdefault(seen.task.pass_name, (set(), set()))
        down.update(seen.task.inbox)
        up.update(seen.reply.params, seen.reply.stats)
    told = {quoted(row[0])[0]: (set(quoted(row[2])), set(quoted(row[3]))) for row in table(page, "pass", "up")}
    assert told == sent


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda picture: picture.name)
def test_pictures_stand_alone(picture: Path) -> None:
    """Well-formed, 800 wide, on a ground of their own, with words for who cannot see them, and nothing to fetch."""
    root = ElementTree.parse(picture).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("viewBox", "").split()[:3] == ["0", "0", "800"]
    ground = root.find(f"{space}rect")
    assert ground is not None
    assert [ground.get("width"), ground.get("height")] == ["800", root.get("viewBox", "").split()[3]]
    assert all(root.findtext(f"{space}{name}") for name in ("title", "desc"))
    assert not re.search(r"href|url\(['\"]?http|@import|<script", picture.read_text())


def test_the_page_on_the_bundled_model() -> None:
    """Its lines of Python give the dataset that it describes."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/bundled.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert (len(names["data"].classes), len(names["data"].train), len(names["data"].test)) == (40, 12000, 2000)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_parity_names_what_exists_and_its_code_runs() -> None:
    page = ROOT / "docs/parity.md"
    rows = table(page, "what", "function", "golden file", "test")
    assert len(rows) > 8
    source = "".join(path.read_text() for path in (ROOT / "src/fedtailor").rglob("*.py"))
    for _, functions, files, test in rows:
        for name in quoted(functions):
            assert re.search(rf"(def|class) {name.split('.')[-1]}\b", source), name
        assert all(list((ROOT / "tests/golden").glob(f"{file}.*")) for file in quoted(files)), files
        assert (ROOT / test.strip("`")).is_file(), test
        assert all(file in (ROOT / test.strip("`")).read_text() for file in quoted(files)), (files, test)
    found = {
        path.stem for path in (ROOT / "tests/golden").iterdir() if path.stem not in ("README", "weights", "inputs")
    }
    assert {file for row in rows for file in quoted(row[2])} == found  # a file that is kept is used, and told
    (code,) = blocks(page, "python")
    assert '"rounds": 3' in code
    exec(compile(code.replace('"rounds": 3', '"rounds": 1'), str(page), "exec"), {})  # one round tells as much


def test_parity_lists_every_method() -> None:
    """Broken: a method of which nobody can tell what it was held against, or a claim that no file or test backs."""
    rows = table(ROOT / "docs/parity.md", "method", "golden", "loop", "else")
    told = {name.strip("`"): (golden, loop, other) for name, golden, loop, other in rows}
    assert told.keys() == METHODS.keys()
    loops = (ROOT / "tests/methods/test_released_loops.py").read_text()
    for name, (golden, loop, other) in told.items():
        assert {golden, loop, other} != {"–"}, name
        for word in re.findall(r"`([^`]+)`", golden):
            assert word in METHODS or list((ROOT / "tests/golden").glob(f"{word}.*")), word
        if name.endswith("-released"):
            assert loop != "–"
            assert f"def test_{name.removesuffix('-released')}()" in loops
        else:
            assert loop == "–" or any(f"`{other}`" in loop for other in METHODS), name
