"""One training step, loss and gradient: ours against what the authors' codes do, in ViT-B/16 shapes, 100 classes.

naive   `naive.py`: pixels through the whole image tower, every class's 77 tokens, three times over for CAPT; by torch's
        own matrix products, as those codes call them
ours    the real method's gradient, on what the feature cache holds for its tuner
cache   what `ours` was spared and paid once for all steps and rounds: the pictures up to the tuner's stage

It is fair since both give the same loss and the same gradient: this is checked, and a difference is an error. Each
variant runs in a process of its own, in turns, after a small step in which torch sets itself up; operations are
counted in a run of their own, since counting takes time. One thread by default: CPU seconds then are arithmetic, where
two threads on busy cores also count their waiting for each other. Dropout is off: two ways would drop different
numbers.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from fedtailor.client.features import CachedFeatures
from fedtailor.clip import product
from fedtailor.core.types import Params

from .arrays import difference, save
from .cases import CASES, make_scene
from .child import call
from .clips import make_clip
from .flops import gflop
from .measure import measured
from .naive import naive_step
from .options import Options
from .rows import Row, median, ratio
from .show import note

ALLOWED = 1e-4  # of the gradient's norm, and of the loss; fp32 in another order of sums
VARIANTS = ("naive", "ours")


def pixels_of(clip: str, images: int, size: int) -> Tensor:
    return torch.randn(images, 3, size, size, generator=torch.Generator().manual_seed(3))


def one(case: str, variant: str, clip: str, classes: int, images: int, folder: str, count: bool) -> dict[str, Any]:
    """Take one step, write its loss and gradient to the folder, and say what it took; or count its operations."""
    frozen, where = make_clip(clip), Path(folder)
    scene, small = make_scene(case, frozen, classes), make_scene(case, frozen, 2)
    stage = scene.model.stage
    if variant == "ours":
        x, plain = (CachedFeatures(np.load(where / f"{case}-{name}.npy")) for name in (stage, "features"))
        which = np.arange(images)
        spare = plain if stage != "features" and scene.method.teacher else None
        scene.model.zero_shot, scene.model.layout  # noqa: B018  # made once a run, as the layouts of CAPT's three sets
        scene.loss(x.fetch(which[:1]), None)
        small.gradient(x.fetch(which[:1]), None if spare is None else spare.fetch(which[:1]))

        def work() -> tuple[Tensor, Params]:
            data = x.fetch(which), None if spare is None else spare.fetch(which)
            return torch.zeros(()), scene.gradient(*data)
    else:
        pixels = pixels_of(clip, images, frozen.shape.image_size)
        scene.model.zero_shot, small.model.zero_shot  # noqa: B018  # theirs too is made once
        naive_step(small, pixels[:1])

        def work() -> tuple[Tensor, Params]:
            with patch.object(product, "FASTER", False):
                return naive_step(scene, pixels)

    if count:
        return {"gflop": gflop(work)}
    (loss, grads), cost = measured(work)
    if variant == "ours":
        loss = scene.loss(x.fetch(which), None)
    save(where / f"{case}-{variant}.npz", {name: grad.numpy() for name, grad in grads.items()})
    save(where / f"{case}-{variant}-loss.npz", {"loss": loss.numpy()})
    return asdict(cost)


def fill_cache(case: str, clip: str, images: int, folder: str) -> dict[str, Any]:
    """The pictures as the feature cache has them: at the tuner's stage, and CLIP's own features."""
    frozen = make_clip(clip)
    model, pixels = make_scene(case, frozen, 2).model, pixels_of(clip, images, frozen.shape.image_size)
    with torch.no_grad():
        frozen.vision(pixels[:1])
        staged, cost = measured(lambda: frozen.vision(pixels, "pixels", model.stage))
        np.save(Path(folder) / f"{case}-{model.stage}.npy", staged.numpy())
        features = staged if model.stage == "features" else frozen.vision(pixels)
        np.save(Path(folder) / f"{case}-features.npy", features.numpy())
    return {**asdict(cost), "stage": model.stage}


def apart(folder: Path, case: str) -> float:
    """The larger of the losses' and the gradients' relative difference."""
    ends = (".npz", "-loss.npz")
    return max(difference(*(folder / f"{case}-{variant}{end}" for variant in VARIANTS)) for end in ends)


def rows_of(case: str, options: Options, peak: float, folder: Path) -> list[Row]:
    classes, images = (5, min(4, CASES[case].batch)) if options.quick else (100, CASES[case].batch)
    common: dict[str, Any] = {"case": case, "clip": options.clip, "folder": str(folder)}
    cache = call(options, "step", "fill_cache", images=images, **common)
    found: dict[str, list[dict[str, Any]]] = {variant: [] for variant in VARIANTS}
    off = 0.0
    for again in range(options.times):
        for variant in VARIANTS:
            note(f"step: {case}, {variant}, {again + 1} of {options.times}")
            given = {"variant": variant, "classes": classes, "images": images, "count": False, **common}
            found[variant].append(done := call(options, "step", "one", **given))
            note(f"    {done['cpu_s']:.2f} CPU s, {done['peak_mb']:.0f} MB")
        off = max(off, apart(folder, case))
    rows = []
    for variant in VARIANTS:
        note(f"step: {case}, {variant}, operations")
        given = {"variant": variant, "classes": classes, "images": images, "count": True, **common}
        count = call(options, "step", "one", **given)["gflop"]
        cpu, wall, memory = (median(found[variant], name) for name in ("cpu_s", "wall_s", "peak_mb"))
        faster = ratio(median(found["naive"], "cpu_s"), cpu)
        of = count / cpu / peak if cpu else None
        checked = {"off": off, "allowed": ALLOWED} if variant == "ours" else {}
        more = {"classes": classes, "images": images}
        rows.append(Row("step", case, variant, cpu, wall, memory, count, of, faster, more=more, **checked))
    return [*rows, Row("step", case, f"cache: {cache['stage']}", *(cache[n] for n in ("cpu_s", "wall_s", "peak_mb")))]


def run(options: Options) -> list[Row]:
    peak = call(options, "flops", "matmul_peak", 1, seconds=0.2 if options.quick else 4)["gflops"]
    rows = [Row("step", "matmul peak", "one thread", more={"GFLOP/s": peak})]
    with tempfile.TemporaryDirectory() as folder:
        for case in options.cases or CASES:
            if case in CASES:
                rows += rows_of(case, options, peak, Path(folder))
    return rows
