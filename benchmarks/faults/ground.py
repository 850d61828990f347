"""Where faults are tried: pictures, a CLIP, a cache and a finished run, of which each fault spoils a copy."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from itertools import count, product
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import fedtailor.runs.execute
import fedtailor.runs.finished
import fedtailor.use.load  # noqa: F401  # with all that is loaded here, each fault begins at once
from fedtailor.base.terminal import STEERING, visible

from .clips import CLIPS
from .folders import DOCUMENTS, Spoil, both, last_round
from .names import NAMES
from .settings import SETTINGS
from .tables import GOOD, TABLES
from .trial import Came, attempt, full, read_only

ROUNDS = 3
SAMPLE = 9  # with --quick, every so many
MENDED = re.compile(r"going back to|is damaged|cannot be written")
Tried = tuple[str, Callable[[], tuple[str, Came]]]  # a fault, and what comes of it


class Ground:
    def __init__(self, root: Path) -> None:
        self.root, self.numbers = root, count()
        self.pictures, self.clip, self.cache = root / "pictures", root / "clip", root / "cache"
        rng = np.random.default_rng(0)
        for (c, name), (part, size) in product(enumerate(("red", "green", "blue")), (("train", 8), ("test", 4))):
            (self.pictures / part / name).mkdir(parents=True)
            for i in range(size):
                pixels = rng.integers(0, 90, (32, 32, 3))
                pixels[..., c] += 130
                Image.fromarray(pixels.astype(np.uint8)).save(self.pictures / part / name / f"{i}.png")
        shutil.copytree(str(resources.files("fedtailor.clip") / "bundled"), self.clip)
        self.done = root / "done"
        came = self.go(*self.run("promptfl"), "--out", str(self.done))
        if came.code:
            raise RuntimeError(came.said)
        self.right = numbers_of(self.done)

    def run(self, method: str, *more: str) -> list[str]:
        """The words of a short run; what is said more takes the place of what is said here."""
        brief = {"data": f"folder:{self.pictures}", "backbone": str(self.clip), "clients": "2", "fraction": "1.0"}
        brief |= {"threads": "1", "rounds": str(ROUNDS), "every": "1", "batch": "4", "lr": "0.01", "data.alpha": "5.0"}
        brief |= {"data.min_size": "1", "data.min_test": "1"}
        said = [word.partition("=")[0] for word in more]
        return ["run", method, "--quiet", *(f"{k}={v}" for k, v in brief.items() if k not in said), *more]

    def go(self, *words: str, spoilt: Callable[[], object] = lambda: None) -> Came:
        return attempt(words, self.root, spoilt)

    def new(self) -> Path:
        return self.root / f"tried-{next(self.numbers)}"

    def copied(self, source: Path, *spoils: Spoil) -> Path:
        target = Path(shutil.copytree(source, self.new()))
        for spoil in spoils:
            spoil(target)
        return target

    def judged(self, came: Came, folder: Path) -> str:
        """What it is to end as if nothing had been wrong."""
        if came.outcome != "done":
            return came.outcome
        if numbers_of(folder) != self.right:
            return "other numbers"
        return "mended, and said" if MENDED.search(came.said) else "the same numbers"


def numbers_of(folder: Path) -> list[dict[str, object]]:
    """What a run came to, but for times and places."""
    lines = [(folder / "result.json").read_text(), *(folder / "rounds.jsonl").read_text().splitlines()]
    left_out = {"seconds", "peak_rss_mb", "run_dir", "checksum"}
    return [{key: value for key, value in json.loads(line).items() if key not in left_out} for line in lines]


def settings(ground: Ground) -> Iterator[Tried]:
    def go(method: str, *more: str) -> tuple[str, Came]:
        came = ground.go(*ground.run(method, *more), "--out", str(ground.new()))
        return came.outcome, came

    for words in SETTINGS:
        yield " ".join(words), partial(go, *words)


def clips(ground: Ground) -> Iterator[Tried]:
    def go(spoil: Spoil) -> tuple[str, Came]:
        folder = ground.copied(ground.clip, spoil)
        came = ground.go(*ground.run("promptfl", f"backbone={folder}"), "--out", str(ground.new()))
        shutil.rmtree(folder)
        return came.outcome, came

    for name, spoil in CLIPS.items():
        yield name, partial(go, spoil)


def table(ground: Ground, text: str | bytes) -> str:
    folder = ground.new()
    folder.mkdir()
    (folder / "pictures").symlink_to(ground.pictures)
    (folder / "loop").symlink_to("loop")
    (folder / "table.csv").write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
    return f"csv:{folder / 'table.csv'}"


def tables(ground: Ground) -> Iterator[Tried]:
    def go(text: str | bytes) -> tuple[str, Came]:
        came = ground.go(*ground.run("promptfl", f"data={table(ground, text)}"), "--out", str(ground.new()))
        return came.outcome, came

    for name, text in TABLES.items():
        yield name, partial(go, text)


def folders(ground: Ground) -> Iterator[Tried]:
    """A finished run that is resumed."""

    def go(spoils: list[Spoil]) -> tuple[str, Came]:
        folder = ground.copied(ground.done, *spoils)
        came = ground.go("run", "--resume", str(folder), "--quiet")
        return ground.judged(came, folder), came

    for name, spoils in {**last_round(ROUNDS), **both(ROUNDS)}.items():
        yield name, partial(go, spoils)


def documents(ground: Ground) -> Iterator[Tried]:
    """What other verbs read of a run's folder."""
    picture = str(ground.pictures / "test" / "red" / "0.png")

    def go(spoil: Spoil, verb: tuple[str, ...]) -> tuple[str, Came]:
        named = {"RUN": str(ground.copied(ground.done, spoil)), "PICTURE": picture}
        came = ground.go(*(named.get(word, word) for word in verb))
        return came.outcome, came

    for name, (spoil, verb) in DOCUMENTS.items():
        yield f"{verb[0]}, {name}", partial(go, spoil, verb)


def cache(ground: Ground) -> Iterator[Tried]:
    """A bit of every file: in the header, in features, in the checksums behind them; or no cache at all."""

    def go(place: float) -> tuple[str, Came]:
        folder, out = ground.copied(ground.cache), ground.new()
        for path in folder.glob("*.npy"):
            data = bytearray(path.read_bytes())
            data[int(place * len(data))] ^= 1
            path.write_bytes(data)
        return without(folder, out, lambda: None)

    def without(folder: Path, out: Path, spoilt: Callable[[], object]) -> tuple[str, Came]:
        def here() -> None:
            os.environ["FEDTAILOR_CACHE"] = str(folder)
            spoilt()

        came = ground.go(*ground.run("promptfl"), "--out", str(out), spoilt=here)
        return ground.judged(came, out), came

    for place in (0.0, 0.001, 0.1, 0.5, 0.9, 0.9995):
        yield f"a bit at {place:.2%} of each file", partial(go, place)
    yield "where nothing can be written", lambda: without(it := ground.new(), ground.new(), read_only(it))
    yield "below a file", lambda: without(ground.clip / "config.json" / "x", ground.new(), lambda: None)


def disks(ground: Ground) -> Iterator[Tried]:
    """That can only be read, or take no more."""

    def verbs(here: Path, done: Path) -> dict[str, list[str]]:
        brief = ground.run("zeroshot")[3:]
        return {
            "a run": [*ground.run("promptfl"), "--out", str(here / "run")],
            "resuming": ["run", "--resume", str(done), "rounds=5", "--quiet"],
            "a comparison": ["compare", "zeroshot", *brief, "--out", str(here / "compared")],
            "a report": ["report", str(done), "--out", str(here / "report.html")],
            "a figure": ["plot", str(done), "--figure", "curves", "--out", str(here / "curves.png")],
            "an export": ["export", str(done), "--to", "classifier", "--out", str(here / "exported")],
            "sites": ["data", "split", f"folder:{ground.pictures}", "clients=2", "--out", str(here / "sites")],
            "a proposal": ["start", str(ground.pictures), "--no-run", "--out", str(here / "it.toml")],
        }

    def go(verb: str, can_write: bool) -> tuple[str, Came]:
        here, done = ground.new(), ground.copied(ground.done)
        here.mkdir()
        spoilt = full(200) if can_write else read_only(done if verb == "resuming" else here)
        came = ground.go(*verbs(here, done)[verb], spoilt=spoilt)
        return came.outcome, came

    for verb, can_write in product(verbs(Path(), Path()), (False, True)):
        yield f"{verb}, where nothing {'has room' if can_write else 'can be written'}", partial(go, verb, can_write)


def names(ground: Ground) -> Iterator[Tried]:
    def go(words: list[str]) -> tuple[str, Came]:
        came = ground.go(*words)
        if came.outcome not in ("done", "a sentence"):
            return came.outcome, came
        return "raw text" if STEERING.search(came.said) else "shown as it is", came

    for what, name in NAMES.items():
        told = table(ground, GOOD.replace(",red\n", f',"{name}"\n'))
        verbs = {
            "a class": ["data", "show", told, "clients=2", "data.partition=iid"],
            "a class that is trained": [*ground.run("promptfl", f"data={told}"), "--out", str(ground.new())],
            "a run's folder": [*ground.run("promptfl"), "--out", str(ground.new() / name)],
            "no run's folder": ["report", name],
            "no picture": ["predict", str(ground.done), name],
            "no option": ["report", f"--{name}"],
        }
        for verb, words in verbs.items():
            yield f"{what}, {verb}", partial(go, words)


GROUPS = {
    "settings": settings,
    "a CLIP's folder": clips,
    "a table of pictures": tables,
    "a run that is resumed": folders,
    "a run that is read": documents,
    "the feature cache": cache,
    "disks": disks,
    "names": names,
}


def try_all(quick: bool) -> None:
    torch.set_num_threads(1)  # this process is copied, and a copy would wait for threads that it lacks
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        os.environ.update(FEDTAILOR_CACHE=str(root / "cache"), FEDTAILOR_DATA=str(root / "data"))
        ground = Ground(root)
        for group, faults in GROUPS.items():
            for i, (name, go) in enumerate(faults(ground)):
                if not quick or i % SAMPLE == 0:
                    outcome, came = go()
                    told = visible(came.sentence.replace(str(root), "…"))
                    sys.stdout.write(json.dumps([group, visible(name)[:70], outcome, told]) + "\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    try_all("--quick" in sys.argv)
