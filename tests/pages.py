"""Pages, read as a browser would, and data whose names are no names."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SCRIPT = "<script>alert('class')</script>"
CLASSES = (SCRIPT, 'green & "blue"', "{{ 7 * 7 }}")
SITES = ("<img src=x onerror=alert(1)>", "north' onclick='alert(2)")
EMPTY = {"meta", "link", "input", "img", "br", "option"}


def strange_data(root: Path) -> Path:
    """A `csv:` dataset of three colours at two sites. Its names are what somebody would write who means harm."""
    rng, rows = np.random.default_rng(0), []
    for channel, label in enumerate(CLASSES):
        for i in range(24):
            picture = rng.integers(0, 90, (32, 32, 3))
            picture[..., channel] += 130
            Image.fromarray(picture.astype(np.uint8)).save(root / f"{channel}-{i}.png")
            rows.append((f"{channel}-{i}.png", label, "test" if i % 3 == 0 else "train", SITES[i % 2]))
    with (root / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split", "site"), *rows])
    return root / "table.csv"


# In a background job a shell has SIGINT ignored, and so would the server have.
SERVER = """
import signal
from fedtailor.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@contextmanager
def served(root: Path, told: list[str] | None = None) -> Iterator[str]:
    """`fedtailor ui` as a process, by its address; at the end Ctrl-C, and what it tells then."""
    words = [sys.executable, "-c", SERVER, "ui", str(root), "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.send_signal(signal.SIGINT)
            lines = server.communicate(timeout=60)[0].splitlines()
            if told is not None:
                told += lines
    assert server.returncode == 0


class Page(HTMLParser):
    """What is in a page: elements with their attributes and texts, and tables by their id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[int, str] = {}
        self.tables: dict[str, list[list[str]]] = {}
        self.open: list[int] = []
        self.table = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.elements.append((tag, found))
        self.texts[len(self.elements) - 1] = ""
        if tag == "table":
            self.table = found.get("id", f"table {len(self.tables)}")
            self.tables[self.table] = []
        elif tag == "tr":
            self.tables[self.table].append([])
        elif tag in ("td", "th"):
            self.tables[self.table][-1].append("")
        if tag not in EMPTY:
            self.open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        while tag not in EMPTY and self.open and self.elements[self.open.pop()][0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for i in self.open:
            self.texts[i] += data
        if any(self.elements[i][0] in ("td", "th") for i in self.open):
            self.tables[self.table][-1][-1] += data.strip()

    def all(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        wanted = {key.strip("_").replace("_", "-"): value for key, value in attributes.items()}
        return [found for name, found in self.elements if name == tag and wanted.items() <= found.items()]

    def text(self, tag: str, **attributes: str) -> str:
        """Of the first such element."""
        here = self.all(tag, **attributes)[0]
        return next(self.texts[i] for i, (_, found) in enumerate(self.elements) if found is here)

    def ids(self) -> list[str]:
        return [found["id"] for _, found in self.elements if "id" in found]

    def column(self, table: str, name: str) -> list[str]:
        head, *rows = self.tables[table]
        return [row[head.index(name)] for row in rows]

    def grid(self, anchor: str) -> list[list[str]]:
        """The values of the matrix with this id."""
        i = next(i for i, (tag, found) in enumerate(self.elements) if tag == "svg" and found.get("id") == anchor)
        values: list[list[str]] = json.loads(self.elements[i - 1][1]["data-values"])
        return values


def numbers(texts: list[str]) -> list[float | None]:
    return [None if text == "–" else float(text.replace(",", "")) for text in texts]


def shown(values: list[Any]) -> list[float | None]:
    return [None if value is None else float(f"{value:.2f}") for value in values]
