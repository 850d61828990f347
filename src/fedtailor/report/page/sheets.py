"""Tables of a page. Every cell has a text and, where it is a number, the number to sort by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...base.sizes import size
from ...evaluation.metrics import METRICS
from ...settings.keys import SHORTER
from ..figures.record import PARTS
from ..tables import percent
from .facts import PageRun

CONFUSED = 25  # pairs of classes that are listed


class Column(NamedTuple):
    name: str
    number: bool = True


class Bar(NamedTuple):
    value: float
    tick: float | None


class Cell(NamedTuple):
    text: str
    value: float | None = None
    mark: str = ""  # a class of the style sheet
    link: str = ""
    bar: Bar | None = None


class Sheet(NamedTuple):
    anchor: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    sortable: bool = True


def number(value: float | None, mark: str = "") -> Cell:
    return Cell(percent(value), value, mark)


def count(value: int | None) -> Cell:
    return Cell("–" if value is None else f"{value:,}", value)


def gain(value: float | None, base: float | None) -> Cell:
    """With its sign, which says as much as its colour does."""
    if value is None or base is None:
        return Cell("–")
    by = round(value - base, 2) + 0.0  # + 0.0: there is no −0.00
    return Cell(f"{by:+.2f}", value - base, "up" if by > 0 else "down" if by < 0 else "")


def accuracy(value: float | None, tick: float | None) -> Cell:
    return Cell(percent(value), value, bar=None if value is None else Bar(value, tick))


def at(values: Sequence[Any], i: int) -> Any:
    return values[i] if i < len(values) else None


def score_sheet(run: PageRun, anchor: str) -> Sheet:
    """Before and after, for one model of all and for each client's own."""
    shown, rows = run.metrics(), []
    for part in PARTS:
        before, after = run.before(part), run.after(part)
        rows.append([Cell(f"{part} zero-shot"), *(number(before.get(name)) for name in shown)])
        if run.record.settings["rounds"]:
            tuned = [number(after.get(name), "strong") for name in shown]
            rows.append([Cell(f"{part} {run.record.method}", mark="strong"), *tuned])
            rows.append([Cell(f"{part} gain"), *(gain(after.get(name), before.get(name)) for name in shown)])
    columns = [Column("model", False), *(Column(METRICS[name].heading) for name in shown)]
    return Sheet(anchor, "Test accuracy in %, before and after", columns, rows, sortable=False)


def class_sheet(run: PageRun, anchor: str) -> Sheet:
    order, keys, names, groups, axis = run.classes
    counts = run.record.data.get("counts")
    train = np.array(counts).sum(0) if counts else None
    tested = next((table.sum(1) for table in run.answered.confusion.values()), None) if run.answered else None
    columns = [Column("class", False), *([Column("group", False)] if groups else []), Column("train"), Column("test")]
    parts = [part for part in PARTS if any(run.per_class(part)[1].values())]
    for part in parts:
        columns += [Column(f"{part} zero-shot"), Column(f"{part} tuned"), Column(f"{part} gain")]
    rows = []
    for c in order:
        cells = [Cell(names[c]), *([Cell(groups.get(c, ""))] if groups else [])]
        cells += [count(None if known is None else int(known[c])) for known in (train, tested)]
        for part in parts:
            before, after = (values.get(keys[c]) for values in run.per_class(part))
            cells += [number(before), accuracy(after, before), gain(after, before)]
        rows.append(cells)
    return Sheet(anchor, f"Each {axis}", columns, rows)


def site_sheet(run: PageRun, anchor: str) -> Sheet:
    """Every client: what it holds, how often it took part, how the shared model and its own do on its test pictures."""
    counts = np.array(run.record.data.get("counts") or ())
    rounds = Counter(name for row in run.record.rounds for name in row["cohort"])
    own = run.last["clients"] if run.last else {}
    shared = run.answered.shared if run.answered else ()
    columns = [Column("client", False), Column("train"), Column("classes"), Column("test"), Column("rounds")]
    columns += [Column("shared model"), Column("own model"), Column("difference")]
    rows = []
    for k, name in enumerate(run.record.clients):
        held = [int(counts[k].sum()), int((counts[k] > 0).sum())] if len(counts) else [None, None]
        tested = int(run.answered.tested[k]) if run.answered and k < len(run.answered.tested) else None
        mine, theirs = own.get(name), at(shared, k)
        numbers = [*map(count, held), count(tested), count(rounds[name])]
        rows.append([Cell(name), *numbers, number(theirs), accuracy(mine, theirs), gain(mine, theirs)])
    return Sheet(anchor, "Each client on its own test pictures, accuracy in %", columns, rows)


def curve_sheet(run: PageRun, anchor: str) -> Sheet:
    """The numbers that curves are drawn through."""
    shown = [(part, name) for part in PARTS for name in run.metrics()]
    columns = [Column("round"), *(Column(f"{part} {METRICS[name].heading}") for part, name in shown)]
    rows = [[Cell("zero-shot", 0), *(number(run.before(part).get(name)) for part, name in shown)]]
    rows += [[count(row["round"]), *(number(row[part].get(name)) for part, name in shown)] for row in run.record.tested]
    return Sheet(anchor, "Accuracy in % after each tested round", columns, rows)


def confused_sheet(run: PageRun, part: str, anchor: str) -> Sheet:
    """What is most often taken for what."""
    assert run.answered is not None
    table, names = run.answered.confusion[part].copy(), run.classes.names
    of = table.sum(1)
    np.fill_diagonal(table, 0)
    order = np.argsort(-table, axis=None, kind="stable")[:CONFUSED]
    rows = []
    for true, said in zip(*np.unravel_index(order, table.shape), strict=True):
        if n := int(table[true, said]):
            rows.append([Cell(names[true]), Cell(names[said]), count(n), number(100 * n / int(of[true]))])
    columns = [Column("class", False), Column("taken for", False), Column("pictures"), Column("% of the class")]
    return Sheet(anchor, "Most frequent confusions", columns, rows)


def cost_sheet(run: PageRun, anchor: str) -> Sheet:
    rounds = run.record.rounds
    up, down, seconds = (sum(row[key] for row in rounds) for key in ("bytes_up", "bytes_down", "seconds"))
    peak = max((row["peak_rss_mb"] for row in rounds), default=0.0)
    if run.result is not None:
        seconds, peak = run.result["seconds"], run.result["peak_rss_mb"]
    n = max(len(rounds), 1)
    rows = [
        [Cell("sent up by all clients"), Cell(size(up)), Cell(size(up / n))],
        [Cell("sent down to all clients"), Cell(size(down)), Cell(size(down / n))],
        [Cell("time"), Cell(f"{seconds:,.1f} s"), Cell(f"{sum(row['seconds'] for row in rounds) / n:,.2f} s")],
        [Cell("peak memory"), Cell(f"{peak:,.0f} MB"), Cell("")],
    ]
    return Sheet(anchor, "Cost", [Column("what", False), Column("in all"), Column("a round")], rows, sortable=False)


def setting_sheet(run: PageRun, anchor: str) -> Sheet:
    rows = [[Cell(typed(key)), Cell(setting(value))] for key, value in run.record.settings.items()]
    rows += [[Cell(f"about.{key}"), Cell(str(value))] for key, value in run.about.items() if key != "notes"]
    return Sheet(anchor, "Settings", [Column("key", False), Column("value", False)], rows)


def typed(key: str) -> str:
    """A key, as on the command line."""
    return SHORTER.get(key, key).replace("data.partition.", "data.")


def setting(value: Any) -> str:
    """As on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(setting, value))}]" if isinstance(value, tuple) else str(value)
