"""Pretrain one of the lab's CLIPs, and measure it:

python -m lab vit --data DIR --work DIR     # writes lab/vit; the work folder keeps what it needs to go on
python -m lab rn --data DIR --work DIR
python -m lab vit --data DIR --measure      # only measures, and writes the card anew
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from scripts.pretrain import make_tokenizer, write_folder

from fedtailor.base.rng import number
from fedtailor.clip.model import Clip, Shape

from .captions import Captions, nearest
from .measure import write_card
from .pool import pool
from .teachers import compact, name_features, picture_features
from .train import Lessons, Plan, reread, train

HERE = Path(__file__).parent
TEXT = {"context": 77, "text_width": 192, "text_layers": 3, "text_heads": 3}
SHAPES = {
    "vit": {"patch": 4, "vision_width": 192, "vision_layers": 6, "vision_heads": 3},
    "rn": {"patch": 0, "vision_width": 28, "vision_layers": (3, 3, 2, 1), "vision_heads": 14},
}
STEPS = {"vit": 4500, "rn": 4500}


def lessons(root: Path, work: Path, seed: int, every: int) -> Lessons:
    """The pool, and what the teachers say about it, which is kept in the work folder."""
    pictures = pool(root, every)
    features = compact(picture_features(pictures.pixels, work / "pictures.npy"), work / "compact.npy")
    sources = enumerate(pictures.names.items())
    alike = {
        name: nearest(features[of].astype(np.float32), pictures.label[of], len(classes))
        for i, (name, classes) in sources
        for of in [pictures.source == i]
    }
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
    options.add_argument("--steps", type=int)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--every", type=int, default=1, help="only every so many pictures of the pool: a trial")
    options.add_argument("--measure", action="store_true", help="train nothing, measure again and rewrite the card")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    folder, plan = given.folder or HERE / given.kind, Plan(given.steps or STEPS[given.kind], seed=given.seed)
    if not given.measure:
        given.work.mkdir(parents=True, exist_ok=True)
        lesson = lessons(given.data, given.work, given.seed, given.every)
        clip = build(given.kind, lesson.tokenizer.get_vocab_size(), given.seed)
        train(clip, lesson, plan, given.work / f"{given.kind}.safetensors")
        reread(clip, lesson, plan)
        write_folder(clip.freeze(), lesson.tokenizer, folder)
    write_card(folder, given.data, given.kind, plan, len(pool(given.data, given.every).pixels))


if __name__ == "__main__":
    main()
