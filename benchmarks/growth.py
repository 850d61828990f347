"""How cost grows: exponents fitted to log-log points, with the points themselves and a plot.

classes    a text step from 10 to 4,000 classes, and the layout of their sentences, which is made once a run
tokens     a text step from 1 to 32 learned tokens, 100 classes: they are shared, so they should hardly be felt
pictures   a step from 1 to 64 pictures, with a tuner in the image tower and with one that lets the cache do the rest
clients    a round, its test and its checkpoint from 20 to 10,000 clients, of which eight take part: none should grow

Each point is a process of its own, so that its memory is its own. The exponent is the slope of a straight line through
all points, `end` that of the last two: small sizes have costs that do not grow, which flatten the line. No variants are
compared here; what must be small are the exponents, the ratio of 10,000 clients to 20 and the memory they add.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .child import call
from .options import Options
from .plot import Curve, plot
from .rows import Row, figures
from .show import note

SIZES = {  # what grows: full, and quick
    "classes": ((10, 40, 100, 400, 1000, 4000), (3, 6, 12)),
    "tokens": ((1, 2, 4, 8, 16, 32), (1, 4)),
    "pictures": ((1, 4, 16, 64), (1, 4)),
    "clients": ((20, 100, 1000, 10_000), (20, 60)),
}
MOST_MB = 100.0  # that 10,000 clients may add to 20


def fit(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The exponent over all points, and between the last two."""
    x, y = np.log(np.asarray(sizes, float)), np.log(np.maximum(np.asarray(values, float), 1e-9))
    return float(np.polyfit(x, y, 1)[0]), float((y[-1] - y[-2]) / (x[-1] - x[-2]))


def curve(what: str, label: str, sizes: Sequence[int], found: Sequence[dict[str, Any]], key: str) -> Curve:
    values = [each[key] for each in found]
    return Curve(what, label, list(sizes), values, *fit(sizes, values))


def row(curve: Curve) -> Row:
    more: dict[str, Any] = {"from": curve.sizes[0], "to": curve.sizes[-1], "exponent": curve.exponent, "end": curve.end}
    more |= {"last ÷ first": curve.values[-1] / max(curve.values[0], 1e-9)}
    more |= {"sizes": curve.sizes, "values": curve.values}
    return Row("growth", f"in {curve.what}: exponents", curve.label, more=more)


def points(options: Options, what: str, module: str, function: str, **more: Any) -> tuple[list[int], list[Any]]:
    sizes, found = list(SIZES[what][options.quick]), []
    for size in sizes:
        note(f"growth: {function}, {size} {what}")
        found.append(call(options, module, function, size=size, **more))
    return sizes, found


def point_rows(case: str, sizes: Sequence[int], found: Sequence[dict[str, Any]], peak: float) -> list[Row]:
    rows = []
    for size, each in zip(sizes, found, strict=True):
        count = each.get("gflop")
        of = count / each["cpu_s"] / peak if count and each["cpu_s"] else None
        rows.append(Row("growth", case, str(size), **figures([each]), gflop=count, of_peak=of))
    return rows


def run(options: Options) -> list[Row]:
    peak = call(options, "flops", "matmul_peak", 1, seconds=0.2 if options.quick else 4)["gflops"]
    rows, curves = list[Row](), list[Curve]()
    for function, what, label in (
        ("in_classes", "classes", "text step"),
        ("in_tokens", "tokens", "text step"),
        ("in_pictures", "pictures", "step, image tower tuned"),
        ("in_pictures_cached", "pictures", "step, features cached"),
    ):
        sizes, found = points(options, what, "sizes", function, clip=options.clip)
        curves.append(curve(what, label, sizes, found, "cpu_s"))
        if what == "classes":
            curves.append(curve(what, "layout, once a run", sizes, found, "pack_s"))
        rows += point_rows(f"{what}: {label}", sizes, found, peak)
    sizes, found = points(options, "clients", "crowd", "some_rounds", rounds_=2 if options.quick else 5)
    curves += [curve("clients", name, sizes, found, name) for name in ("round", "test", "checkpoint", "build")]
    rows += point_rows("clients: round + test + checkpoint", sizes, found, peak)
    rows += [row(curve) for curve in curves]
    grown = found[-1]["peak_mb"] - found[0]["peak_mb"]
    times = found[-1]["cpu_s"] / found[0]["cpu_s"]
    more = {"last ÷ first": times, "MB more": grown, "from": sizes[0], "to": sizes[-1], "MB allowed": MOST_MB}
    rows.append(Row("growth", "in clients: exponents", "round + test + checkpoint, all", more=more))
    picture = options.json.with_name(f"{options.json.stem}-growth.png")
    plot(curves, picture)
    note(f"growth: {picture}")
    return rows
