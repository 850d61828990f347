"""What a compiler, fewer bits or another runtime would bring: on the image tower's forward pass and on a text step.

ours            fp32, as it is
torch.compile   the same by torch's own matrix products, which it may choose anew, compiled
bf16            under torch's autocast
ONNX Runtime    exported; only if it is installed, and only forwards, since it has no gradient

Each in a process of its own, in turns: the CPU and wall seconds to the first result, with all that has to be made for
it, and those of a steady one (the median of several); and how far its result is from ours, the largest difference of
any number over the largest number. It is fair since all are given the same module, inputs and number of threads. What
does not work says why.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedtailor.clip import product
from fedtailor.tuners.text_prompt import TextPrompt

from .child import call
from .clips import make_clip, make_model
from .options import Options
from .rows import Row, ratio
from .show import note

WAYS = ("ours", "torch.compile", "bf16", "ONNX Runtime")
Compute = Callable[[], Tensor]


def image_forward(clip: str, way: str, small: bool) -> Compute:
    frozen = make_clip(clip)
    tower, size = frozen.vision, frozen.shape.image_size
    pixels = torch.randn(2 if small else 32, 3, size, size, generator=torch.Generator().manual_seed(0))
    if way == "ONNX Runtime":
        return exported(tower, pixels)
    run = torch.compile(tower) if way == "torch.compile" else tower
    bits = torch.autocast("cpu", torch.bfloat16) if way == "bf16" else nullcontext()

    def forward() -> Tensor:
        with torch.no_grad(), bits:
            return run(pixels).float()

    return forward


def exported(tower: torch.nn.Module, pixels: Tensor) -> Compute:
    import onnxruntime  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as name:
        file = str(Path(name) / "tower.onnx")
        torch.onnx.export(tower, (pixels,), file, input_names=["pixels"])
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    return lambda: torch.from_numpy(session.run(None, {"pixels": pixels.numpy()})[0])


def text_step(clip: str, way: str, small: bool) -> Compute:
    """The gradient of a learned context of 16 tokens."""
    if way == "ONNX Runtime":
        raise RuntimeError("it has no gradient")
    model = make_model(make_clip(clip), TextPrompt(length=16), 5 if small else 100)
    rng = torch.Generator().manual_seed(2)
    ctx = model.init(rng)["text.ctx"].requires_grad_()
    weights = torch.randn(model.classes, model.clip.shape.embed, generator=rng)
    layout = model.layout
    layout.keys, layout.causal, layout.behind, layout.reach  # noqa: B018  # made once a run

    def loss(ctx: Tensor) -> Tensor:
        return cast(Tensor, (model.clip.text(layout, shared=ctx) * weights).sum())

    run = torch.compile(loss) if way == "torch.compile" else loss

    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16) if way == "bf16" else nullcontext():
            value = run(ctx)
        return torch.autograd.grad(value, ctx)[0]

    return step


def cpu_seconds() -> float:
    """Of this process and of the compilers that it has started and seen end."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def one(case: str, way: str, clip: str, small: bool, times: int, file: str) -> dict[str, Any]:
    # Begun anew, in this process, in a folder without the spaces that its compiler stumbles over.
    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    product.FASTER = product.FASTER and way != "torch.compile"
    cpu, wall = cpu_seconds(), time.perf_counter()
    try:
        work = {"image tower, forward": image_forward, "text step": text_step}[case](clip, way, small)
        result = work()
        first = {"first_cpu": cpu_seconds() - cpu, "first_wall": time.perf_counter() - wall}
        spent = []
        for _ in range(times):
            cpu, wall = time.process_time(), time.perf_counter()
            work()
            spent.append((time.process_time() - cpu, time.perf_counter() - wall))
    except Exception as error:  # whatever stands in the way: it is reported, and the others go on
        told = " ".join(f"{type(error).__name__}: {error}".split())
        return {"why": f"not available: {told[:160]}"}
    np.save(file, result.detach().numpy())
    cpu, wall = (float(np.median(column)) for column in zip(*spent, strict=True))
    return {**first, "cpu_s": cpu, "wall_s": wall}


def run(options: Options) -> list[Row]:
    rows, times = [], 1 if options.quick else 5
    ways = [way for way in WAYS if not (options.quick and way == "torch.compile")]  # a compiler takes minutes
    with tempfile.TemporaryDirectory() as folder:
        for case in ("image tower, forward", "text step"):
            found = {}
            for way in ways:
                note(f"compile: {case}, {way}")
                given: dict[str, Any] = {"clip": options.clip, "small": options.quick, "times": times}
                file = str(Path(folder) / f"{case}-{way}.npy")
                found[way] = done = call(options, "compiled", "one", case=case, way=way, file=file, **given)
                if "why" in done:
                    rows.append(Row("compile", case, way, more={"note": done["why"]}))
                    continue
                ours, theirs = (np.load(Path(folder) / f"{case}-{name}.npy") for name in ("ours", way))
                off = float(np.abs(ours - theirs).max() / np.abs(ours).max())
                more = {"first CPU s": done["first_cpu"], "first wall s": done["first_wall"]}
                faster = ratio(found["ours"].get("cpu_s", math.nan), done["cpu_s"])
                rows.append(Row("compile", case, way, done["cpu_s"], done["wall_s"], ratio=faster, off=off, more=more))
    return rows
