"""Pretrain one of the lab's CLIPs, and measure it:

python -m lab vit --data DIR --work DIR     # writes lab/vit; the work folder keeps what it needs to go on
python -m lab rn --data DIR --work DIR
python -m lab vit --data DIR --reread       # only the second part: a new text tower for the image tower of lab/vit
python -m lab vit --data DIR --measure      # only measures, and writes the card anew
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from scripts.pretrain import make_tokenizer, write_folder
from tokenizers import Tokenizer

from fedtailor.base.rng import number
from fedtailor.clip.load import load
from fedtailor.clip.model import Clip, Shape

from .captions import Captions
from .measure import write_card
from .pool import Pool, pool
from .reading import look_alikes, reread
from .reading import picture_features as by_tower
from .teachers import compact, name_features, picture_features
from .train import Lessons, Plan, train

HERE = Path(__file__).parent
TEXT = {"context": 77, "text_width": 192, "text_layers": 3, "text_heads": 3}
SHAPES = {
    "vit": {"patch": 4, "vision_width": 192, "vision_layers": 6, "vision_heads": 3},
    "rn": {"patch": 0, "vision_width": 28, "vision_layers": (3, 3, 2, 1), "vision_heads": 14},
}
STEPS = {"vit": 4500, "rn": 4500}


def lessons(pictures: Pool, work: Path, seed: int) -> Lessons:
    """The pool, and what the teachers say about it, which is kept in the work folder."""
    features = compact(picture_features(pictures.pixels, work / "pictures.npy"), work / "compact.npy")
    alike = look_alikes(pictures, features.astype(np.float32))
    captions = Captions(pictures, alike, seed)
    return Lessons(captions, make_tokenizer(captions.words()), features, name_features(captions.names))


def build(kind: str, vocab: int, seed: int) -> Clip:
    with torch.random.fork_rng(devices=[]):  # the towers draw their first weights from torch's own stream
        torch.manual_seed(number("lab", seed, kind))
        return Clip(Shape(embed=192, image_size=32, vocab=vocab, **TEXT, **SHAPES[kind]))  # type: ignore[arg-type]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("kind", choices=SHAPES)
    options.add_argument("--data", type=Path, required=True, help="CIFAR-10, CIFAR-100, Fashion-MNIST, Tiny-ImageNet")
    options.add_argument("--work", type=Path, default=Path("lab-work"))
    options.add_argument("--folder", type=Path)
    options.add_argument("--steps", type=int, help="of the first part")
    options.add_argument("--reading", type=int, default=Plan.rereading, help="steps of the second part")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--every", type=int, default=1, help="only every so many pictures of the pool: a trial")
    part = options.add_mutually_exclusive_group()
    part.add_argument("--reread", action="store_true", help="only the second part, for the image tower in the folder")
    part.add_argument("--measure", action="store_true", help="train nothing, measure again and rewrite the card")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    folder = given.folder or HERE / given.kind
    plan = Plan(given.steps or STEPS[given.kind], rereading=given.reading, seed=given.seed)
    pictures = pool(given.data, given.every)
    if given.reread:
        there = load(str(folder))
        read_again(there.clip, there.tokenizer.inner, pictures, plan, folder)
    elif not given.measure:
        given.work.mkdir(parents=True, exist_ok=True)
        lesson = lessons(pictures, given.work, given.seed)
        clip = build(given.kind, lesson.tokenizer.get_vocab_size(), given.seed)
        train(clip, lesson, plan, given.work / f"{given.kind}.safetensors")
        read_again(clip, lesson.tokenizer, pictures, plan, folder)
    write_card(folder, given.data, given.kind, plan, len(pictures.pixels))


def read_again(clip: Clip, tokenizer: Tokenizer, pictures: Pool, plan: Plan, folder: Path) -> None:
    """The second part, and the folder. Which classes look alike is now what the image tower itself says."""
    features = by_tower(clip, pictures)
    captions = Captions(pictures, look_alikes(pictures, features.numpy()), plan.seed)
    reread(clip, captions, tokenizer, name_features(captions.names), features, plan)
    write_folder(clip.freeze(), tokenizer, folder)


if __name__ == "__main__":
    main()
