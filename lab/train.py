"""Contrastive training of a small CLIP on the pool, with two teachers beside it; goes on where it was stopped.

    L = contrast + picture · (1 − cos(W x, teacher's picture feature)) + name · (1 − cos(V t, teacher's sentence))

The contrast is CLIP's, but for captions that say the same name: each is right for each of their pictures. W and V are
thrown away at the end. For the first part of the steps the ViT sees a random half of each picture's patches, which
takes half the time.

Each draw comes from the seed and the number of the step, so that a run that was stopped goes on to the same weights.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.console import Console
from safetensors.torch import load_file, save_file
from scripts.pretrain import encode, prepare
from tokenizers import Tokenizer
from torch import Tensor, nn

from fedtailor.base.files import write_atomic
from fedtailor.base.rng import generator, numpy_generator
from fedtailor.clip.model import Clip
from fedtailor.clip.vision import VisionTransformer

from .captions import CAREFUL, CARELESS, Captions

say = Console()
SHIFT = 4  # pixels that a picture may be moved by
EVERY = 120.0  # seconds between two savings


@dataclass(frozen=True)
class Plan:
    steps: int
    size: int = 256  # pictures in a step
    rate: float = 1.5e-3
    decay: float = 0.05
    picture: float = 2.0
    name: float = 1.0
    names: int = 96  # sentences in a step that only the sentence encoder judges
    rereading: int = 900  # steps of the second part
    masked: float = 0.8  # part of the steps in which half the patches are seen
    seed: int = 0


@dataclass(frozen=True)
class Lessons:
    """Everything to learn from."""

    captions: Captions
    tokenizer: Tokenizer
    pictures: NDArray[np.float16]  # (N, P) the teacher's features of the pool
    sentences: Tensor  # (names, S) the sentence encoder's


class Student(nn.Module):
    """A CLIP, and two matrices to what its teachers say."""

    def __init__(self, clip: Clip, lessons: Lessons) -> None:
        super().__init__()
        self.clip = clip
        self.to_picture = nn.Linear(clip.shape.embed, lessons.pictures.shape[1])
        self.to_sentence = nn.Linear(clip.shape.embed, lessons.sentences.shape[1])

    def images(self, pixels: Tensor, some: Tensor | None) -> Tensor:
        """(B, D); `some` (B, L) are the patches that are seen."""
        tower = self.clip.vision
        if some is None or not isinstance(tower, VisionTransformer):
            found: Tensor = tower(pixels)
            return found
        x = tower.embed(pixels)
        at = torch.cat([torch.zeros(len(x), 1, dtype=torch.long), some + 1], dim=1)  # the first token stays
        x = tower.ln_pre(x.gather(1, at[..., None].expand(-1, -1, x.shape[-1])))
        for layer in range(tower.layers - 1):
            x = tower.transformer[layer](x)
        return tower.leave(tower.transformer[tower.layers - 1].first(x))

    def loss(self, lessons: Lessons, plan: Plan, step: int) -> tuple[Tensor, dict[str, float]]:
        rng = numpy_generator("lab", plan.seed, "step", step)
        captions, pool = lessons.captions, lessons.captions.pool
        which = rng.choice(len(pool.pixels), plan.size, p=captions.chance)
        said = [captions.say(int(i), rng) for i in which]
        patches = None
        if step < plan.masked * plan.steps and self.clip.shape.patch:
            count = (self.clip.shape.image_size // self.clip.shape.patch) ** 2
            order = torch.rand(plan.size, count, generator=generator("lab", plan.seed, "patches", step))
            patches = order.argsort(dim=1)[:, : count // 2]
        more = rng.integers(len(captions.names), size=plan.names)
        templates = (*CARELESS, *CAREFUL)
        texts = [one.text for one in said]
        texts += [templates[rng.integers(len(templates))].format(captions.names[i]) for i in more]
        with torch.autocast("cpu", torch.bfloat16):
            image = self.images(prepare(moved(pool.pixels[which], rng)), patches)
            text = self.clip.text.plain(encode(lessons.tokenizer, texts))
            guess, guessed = self.to_picture(image), self.to_sentence(text)
        names = torch.tensor([one.name for one in said])
        logits = self.clip.scale * F.normalize(image.float(), dim=-1) @ F.normalize(text[: plan.size].float(), dim=-1).T
        contrast = contrasted(logits, names)
        teacher = torch.from_numpy(lessons.pictures[which].astype(np.float32))
        picture = 1 - F.cosine_similarity(guess.float(), teacher).mean()
        about = torch.cat([names, torch.from_numpy(more)])
        name = 1 - F.cosine_similarity(guessed.float(), lessons.sentences[about]).mean()
        parts = {"contrast": contrast.item(), "picture": picture.item(), "name": name.item()}
        return contrast + plan.picture * picture + plan.name * name, parts


def moved(pixels: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Each picture shifted by a few pixels, its edges mirrored, and mirrored as a whole half the time."""
    side = pixels.shape[1]
    wide = np.pad(pixels, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)), mode="reflect")
    at = rng.integers(2 * SHIFT + 1, size=(len(pixels), 2))
    found = np.stack([one[y : y + side, x : x + side] for one, (y, x) in zip(wide, at, strict=True)])
    mirrored = rng.random(len(pixels)) < 0.5
    found[mirrored] = found[mirrored, :, ::-1]
    return found


def train(clip: Clip, lessons: Lessons, plan: Plan, file: Path) -> None:
    """`file` (.safetensors) holds where it is, every few minutes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        student = Student(clip, lessons).train()
    bulky = [p for p in student.parameters() if p.dim() >= 2]
    small = [p for p in student.parameters() if p.dim() < 2]
    groups = [{"params": bulky, "weight_decay": plan.decay}, {"params": small, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=plan.rate, betas=(0.9, 0.98), fused=True)
    begun = resume(student, optimizer, file, plan)
    running: dict[str, float] = {}
    last = began = time.perf_counter()
    for step in range(begun, plan.steps):
        pace = min((step + 1) / (plan.steps // 20 + 1), 0.5 * (1 + math.cos(math.pi * step / plan.steps)) + 0.005)
        for group in optimizer.param_groups:
            group["lr"] = plan.rate * pace
        loss, parts = student.loss(lessons, plan, step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            clip.logit_scale.clamp_(max=math.log(100))
        running = {key: running.get(key, 0.0) + value / 50 for key, value in parts.items()}
        if (step + 1) % 50 == 0:
            spent = time.perf_counter() - began
            left = spent / (step + 1 - begun) * (plan.steps - step - 1)
            losses = "  ".join(f"{key} {value:.3f}" for key, value in running.items())
            say.print(f"step {step + 1}/{plan.steps}  {losses}  scale {clip.scale.item():.1f}  {left:.0f} s to go")
            running = {}
        if time.perf_counter() - last > EVERY or step + 1 == plan.steps:
            keep(student, optimizer, file, plan, step + 1)
            last = time.perf_counter()


def contrasted(logits: Tensor, alike: Tensor) -> Tensor:
    """CLIP's loss, both ways; captions of equal number are each right for each of their pictures."""
    right = (alike[:, None] == alike[None]).float()
    right /= right.sum(1, keepdim=True)
    return (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2


def keep(student: Student, optimizer: torch.optim.AdamW, file: Path, plan: Plan, step: int) -> None:
    tensors = {f"weights.{name}": value.contiguous() for name, value in student.state_dict().items()}
    for name, parameter in student.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"{key}.{name}"] = value.contiguous()
    part = file.with_suffix(".part")
    save_file(tensors, part, metadata={"step": str(step), "plan": json.dumps(vars(plan))})
    write_atomic(file, part.read_bytes())
    part.unlink()


def resume(student: Student, optimizer: torch.optim.AdamW, file: Path, plan: Plan) -> int:
    """The number of steps that are done."""
    if not file.exists():
        return 0
    about = header(file)
    if json.loads(about["plan"]) != vars(plan):
        raise SystemExit(f"{file} is of another plan, {about['plan']}; remove it, or give another --work folder")
    tensors = load_file(file)
    student.load_state_dict({k.removeprefix("weights."): v for k, v in tensors.items() if k.startswith("weights.")})
    for name, parameter in student.named_parameters():
        state = {key: tensors[f"{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = state
    return int(about["step"])


def header(file: Path) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(file, "pt") as content:
        return dict(content.metadata())
