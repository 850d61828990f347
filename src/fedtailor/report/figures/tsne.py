"""Text features of every class with general and with class-aware prompts alone, in two dimensions by t-SNE.

Of the server's prompts and of those that each client trained last. Both kinds are laid out together, so that their
places can be compared; distances in a t-SNE are no distances between features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .record import RunRecord, Table, classes_of
from .style import NAMES, WIDTH, clipped

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

KINDS = {"general": "o", "class-aware": "^"}
SHADES = {"head": "#000000", "mid": "#0072B2", "tail": "#E69F00", "": "#009E73"}  # dark, middling and light in print


def table(runs: Sequence[RunRecord]) -> Table:
    from sklearn.manifold import TSNE  # here: scikit-learn takes a second to load

    run = runs[0]
    owners, general, aware = run.texts()
    both = np.concatenate([general, aware]).reshape(-1, general.shape[-1]).astype(np.float64)
    # What clients hold in common is one point, not a heap that t-SNE would spread out.
    unlike, which = np.unique(both.round(5), axis=0, return_inverse=True)
    flat = TSNE(perplexity=min(30.0, (len(unlike) - 1) / 3), init="pca", random_state=0).fit_transform(unlike)
    at = flat[which].reshape(2, *general.shape[:2], 2)
    _, _, names, groups, _ = classes_of(run)
    return [
        {
            "owner": owner, "prompt": kind, "class": c, "name": names[c], "group": groups.get(c, ""),
            "x": float(at[i, n, c, 0]), "y": float(at[i, n, c, 1]),
        }
        for i, kind in enumerate(KINDS)
        for n, owner in enumerate(owners)
        for c in range(len(names))
    ]  # fmt: skip


def paint(canvas: Canvas, table: Table) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Polygon
    from scipy.spatial import ConvexHull

    canvas.set_size_inches(WIDTH, 5)
    axes = canvas.subplots()
    for kind, marker in KINDS.items():
        for group, colour in SHADES.items():
            at = places(table, prompt=kind, group=group)
            face = colour if kind == "general" else "none"
            axes.scatter(at[:, 0], at[:, 1], 9, marker=marker, facecolor=face, edgecolor=colour, linewidth=0.6)
    general = places(table, prompt="general")
    if len(general) > 2:
        axes.add_patch(Polygon(general[ConvexHull(general).vertices], color="0.92", zorder=0))
    names = {row["class"]: row["name"] for row in table}
    for c in list(names)[:: -(-len(names) // NAMES)]:
        x, y = np.median(places(table, prompt="class-aware", **{"class": c}), axis=0)
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.6, "pad": 0.3}
        axes.annotate(
            clipped(names[c]), (x, y), (0, 5), textcoords="offset points", fontsize=5.5, ha="center", bbox=box
        )
    shown = [group for group in SHADES if group and any(row["group"] == group for row in table)]
    handles = [Line2D([], [], linestyle="", color="black", marker="o", label="general prompt")]
    handles += [Line2D([], [], linestyle="", color="black", marker="^", fillstyle="none", label="class-aware prompt")]
    handles += [Line2D([], [], linewidth=5, color=SHADES[group], label=f"{group} classes") for group in shown]
    canvas.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)


def places(table: Table, **which: Any) -> NDArray[np.float64]:
    """(n, 2) of the rows that have these values."""
    some = [(row["x"], row["y"]) for row in table if all(row[key] == value for key, value in which.items())]
    return np.array(some, np.float64).reshape(-1, 2)
