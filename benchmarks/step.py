"""One training step of a learned text context, computed plainly and computed by fedtailor, in ViT-B/16 shapes.

    python benchmarks/step.py [--classes 100] [--context 16] [--batch 32] [--repeats 3] [--threads 1] [--json]

naive   encode the batch's images, encode every class's 77 tokens, cross-entropy, gradient of the context
ours    read the images' features from the cache, encode the sentences packed and shared, the rest alike

Both give the same loss and gradient, which is checked: a difference ends with exit code 1. Each step runs in a process
of its own, the two in turn; CPU seconds are medians, memory is the peak above what the loaded model takes. One thread
by default: CPU seconds then are arithmetic, where two threads on busy cores also count waiting for each other. Weights
are random, which changes no cost.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

SOS, EOT, PERIOD = 49406, 49407, 269
LINUX = sys.platform == "linux"
CLOSE = 1e-4  # loss: absolute; gradient: of its norm


# --- in a child: one measured step ---------------------------------------------------------------------------------


def memory_mb(field: str) -> float:
    """This process's VmRSS (now) or VmHWM (its highest), from Linux's own count; elsewhere the highest for both."""
    if not LINUX:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # in bytes on a Mac
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def child(kind: str, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Run `kind` once and write what it computed to the folder; its CPU seconds and peak memory."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from fedtailor.clip.model import Clip, Shape
    from fedtailor.clip.text import arrange, pack

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    clip = Clip(Shape(512, 224, 16, 768, 12, 12, 77, 49408, 512, 12, 8)).freeze()
    clip.logit_scale.fill_(math.log(100))  # as in the published models: differences show
    rng = torch.Generator().manual_seed(1)
    names = [
        torch.randint(1000, 40000, (int(torch.randint(1, 4, (), generator=rng)),), generator=rng).tolist()
        for _ in range(options.classes)
    ]
    pixels = torch.randn(options.batch, 3, 224, 224, generator=rng)
    labels = torch.randint(options.classes, (options.batch,), generator=rng)
    start = 0.02 * torch.randn(options.context, clip.text.width, generator=rng)

    def naive(classes: int, images: int) -> tuple[Tensor, Tensor]:
        ctx = start.clone().requires_grad_()
        ids = torch.zeros(classes, 77, dtype=torch.long)
        for row, name in zip(ids, names[:classes], strict=True):
            sentence = [SOS, *[0] * len(ctx), *name, PERIOD, EOT]
            row[: len(sentence)] = torch.tensor(sentence)
        embedded = clip.text.token_embedding(ids)
        rows = ctx.expand(classes, -1, -1)
        embedded = torch.cat([embedded[:, :1], rows, embedded[:, 1 + len(ctx) :]], dim=1)
        with torch.no_grad():
            seen = clip.vision(pixels[:images])
        return descend(seen, clip.text.plain(ids, embedded), ctx)

    def ours(classes: int, images: int) -> tuple[Tensor, Tensor]:
        ctx = start.clone().requires_grad_()
        seen = torch.from_numpy(np.load(folder / "features.npy"))[:images]
        layout = pack([arrange(name, sos=SOS, eot=EOT, shared=len(ctx), after=[PERIOD]) for name in names[:classes]])
        return descend(seen, clip.text(layout, shared=ctx), ctx)

    def descend(seen: Tensor, texts: Tensor, ctx: Tensor) -> tuple[Tensor, Tensor]:
        logits = clip.scale * F.normalize(seen, dim=-1) @ F.normalize(texts, dim=-1).T
        loss = F.cross_entropy(logits, labels[: len(seen)] % len(texts))
        return loss.detach(), torch.autograd.grad(loss, ctx)[0]

    def cache(classes: int, images: int) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            seen = clip.vision(pixels[:images])
        np.save(folder / "features.npy", seen.numpy())
        return seen, seen

    run = {"naive": naive, "ours": ours, "cache": cache}[kind]
    run(min(2, options.classes), 1)  # what a first call sets up is nobody's cost
    before, began = memory_mb("VmRSS"), time.process_time()
    if LINUX:
        Path("/proc/self/clear_refs").write_text("5")  # the highest counts from here
    loss, gradient = run(options.classes, options.batch)
    cpu = time.process_time() - began
    np.savez(folder / f"{kind}.npz", loss=loss.numpy(), gradient=gradient.numpy())
    return {"cpu_s": cpu, "peak_mb": memory_mb("VmHWM") - before}


# --- in the parent: take turns, compare, report --------------------------------------------------------------------


def measure(kind: str, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    own = [f"--{name}={getattr(options, name)}" for name in ("classes", "context", "batch", "threads")]
    command = [sys.executable, __file__, *own, f"--child={kind}", f"--folder={folder}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def differences(folder: Path) -> tuple[float, float]:
    with np.load(folder / "naive.npz") as naive, np.load(folder / "ours.npz") as ours:
        loss = abs(float(naive["loss"]) - float(ours["loss"]))
        gradient = np.linalg.norm(naive["gradient"] - ours["gradient"]) / np.linalg.norm(naive["gradient"])
    return loss, float(gradient)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--context", type=int, default=16, help="learned tokens")
    parser.add_argument("--batch", type=int, default=32, help="images of a step")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("classes", "context", "batch", "repeats", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.context > 77 - 6:
        parser.error("--context leaves no room in 77 tokens; 71 is the most")
    return options


def main() -> int:
    options = arguments()
    if options.child:
        print(json.dumps(child(options.child, options, options.folder)))
        return 0
    runs: dict[str, list[dict[str, float]]] = {"naive": [], "ours": []}
    off = {"loss": 0.0, "gradient": 0.0}
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory() as name, progress.status("") as status:
        folder = Path(name)
        status.update("image features, once for every later step")
        once = measure("cache", options, folder)
        for repeat in range(options.repeats):
            for kind, done in runs.items():
                status.update(f"{kind}, {repeat + 1} of {options.repeats}")
                done.append(measure(kind, options, folder))
                progress.print(f"{kind:5} {done[-1]['cpu_s']:7.2f} CPU s {done[-1]['peak_mb']:7.0f} MB")
            loss, gradient = differences(folder)
            off = {"loss": max(off["loss"], loss), "gradient": max(off["gradient"], gradient)}
    middle = {
        kind: {figure: statistics.median(run[figure] for run in done) for figure in ("cpu_s", "peak_mb")}
        for kind, done in runs.items()
    }
    ratio = middle["naive"]["cpu_s"] / middle["ours"]["cpu_s"]
    if options.json:
        print(json.dumps({**middle, "ratio": ratio}))
    else:
        show(options, middle, ratio, once)
    progress.print(f"naive and ours differ by {off['loss']:.1e} in loss, {off['gradient']:.1e} of the gradient's norm")
    return 0 if off["loss"] <= CLOSE and off["gradient"] <= CLOSE else 1


def show(
    options: argparse.Namespace, middle: dict[str, dict[str, float]], ratio: float, once: dict[str, float]
) -> None:
    title = f"one step: {options.classes} classes, {options.context} context tokens, {options.batch} images"
    table = Table("", "CPU s", "peak MB", title=f"{title}, ViT-B/16", min_width=70)
    for kind, figures in middle.items():
        table.add_row(kind, f"{figures['cpu_s']:.2f}", f"{figures['peak_mb']:.0f}")
    memory = middle["naive"]["peak_mb"] / middle["ours"]["peak_mb"]
    table.add_row("naive ÷ ours", f"{ratio:.1f}", f"{memory:.1f}")
    table.caption = f"ours reads cached image features ({once['cpu_s']:.1f} CPU s, once for all steps)"
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
