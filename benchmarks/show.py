"""Tables on the terminal, a JSON file, and a line on stderr that says what is being measured."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedtailor.base.terminal import Terminal, visible

from .options import Options
from .rows import Row

FORMS = {
    "cpu_s": ("CPU s", "{:.3f}"),
    "wall_s": ("wall s", "{:.3f}"),
    "peak_mb": ("peak MB", "{:.0f}"),
    "gflop": ("GFLOP", "{:.1f}"),
    "of_peak": ("of peak", "{:.0%}"),
    "ratio": ("×", "{:.1f}"),
    "off": ("off", "{:.0e}"),
}
PROGRESS = Console(stderr=True, highlight=False)


def note(what: str) -> None:
    PROGRESS.print(what, markup=False)


def machine() -> dict[str, Any]:
    """What the figures were measured on, and how busy it was."""
    import torch

    load = os.getloadavg() if hasattr(os, "getloadavg") else ()
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load before": [round(each, 2) for each in load],
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def show(name: str, idea: str, rows: Sequence[Row]) -> None:
    fields = [field for field in FORMS if any(getattr(row, field) is not None for row in rows)]
    extra = list(dict.fromkeys(key for row in rows for key, value in row.more.items() if not isinstance(value, list)))
    table = Table(title=f"{name}: {idea}", title_justify="left")
    for head in ("", "", *(FORMS[field][0] for field in fields), *extra):
        table.add_column(head, justify="right" if head else "left", overflow="fold")
    before = ""
    for row in rows:
        if before and row.case != before:
            table.add_section()
        figures = [figure(field, getattr(row, field)) for field in fields]
        variant = Text(visible(row.variant), "red" if row.wrong else "")
        case, before = "" if row.case == before else row.case, row.case
        table.add_row(case, variant, *figures, *(plain(row.more.get(key, "")) for key in extra))
    Terminal(width=None if Terminal().is_terminal else 160).print(table)


def figure(field: str, value: float | None) -> str:
    return "" if value is None else FORMS[field][1].format(value)


def plain(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write(options: Options, about: dict[str, Any], rows: Sequence[Row]) -> None:
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    document = {"machine": about, "options": asked, "rows": [row.json() for row in rows]}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=1, default=str) + "\n")
