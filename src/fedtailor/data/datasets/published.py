"""Published datasets of picture files, in the layout their authors distribute."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...base.errors import UserError
from ..dataset import Dataset, Split
from ..paper import PaperPreprocess
from .files import PHOTO, folders, hold_out, listed, need, pictures, read_lines, read_pairs, readable

BARE_PHOTO = "a photo of a {}"  # FedCoPL's, without a full stop
AUGMENTED = PaperPreprocess(augment=True)  # as CLIP, and in training a random resized crop and flip


def imagenet_lt(root: Path) -> Dataset:
    """Liu et al., CVPR 2019. Labels count the WordNet ids in alphabetical order."""
    lists, images = root / "imagenet-lt", root / "imagenet"
    need(images, "ImageNet (ILSVRC 2012) from image-net.org, with the folders train and val")
    download = "classnames.txt, the list of readable ImageNet class names in the CoOp repository on GitHub"
    names_file = need(lists / "classnames.txt", download)
    names = dict(sorted(read_pairs(names_file)))
    numbers = {wordnet: number for number, wordnet in enumerate(names)}

    def split(name: str) -> Split:
        download = "the ImageNet-LT lists linked from the OpenLongTailRecognition (OLTR) repository on GitHub"
        path = need(lists / f"ImageNet_LT_{name}.txt", download)
        pairs = [line.rpartition(" ")[::2] for line in read_lines(path)]
        for picture, label in pairs:
            if not label.isdecimal():
                raise UserError(f"{path}: expected a whole number, got {label!r}; download the file again")
            told = next((numbers[part] for part in Path(picture).parts if part in numbers), int(label))
            if int(label) >= len(names) or told != int(label):
                facts = f"'{picture} {label}' contradicts {names_file}"
                raise UserError(f"{path}: {facts}; the files are of different editions")
        return listed(images, [picture for picture, _ in pairs], [int(label) for _, label in pairs])

    classes = tuple(map(readable, names.values()))
    return Dataset("imagenet-lt", classes, PHOTO, split("train"), split("test"), paper=AUGMENTED)


def dtd(root: Path) -> Dataset:
    """Describable Textures; the first of its ten splits, train and validation together for training."""
    download = "the Describable Textures Dataset from the Visual Geometry Group in Oxford and unpack it"
    images = need(root / "dtd" / "images", download)
    names = folders(images)

    def split(*parts: str) -> Split:
        files = [need(root / "dtd" / "labels" / f"{part}1.txt", download) for part in parts]
        return by_folder(images, [line for file in files for line in read_lines(file)], names)

    template = "a photo of a {} pattern."  # FedPuReL's; CoOp has "{} texture.", FedCoPL "a photo of a {}"
    train, test = split("train", "val"), split("test")
    return Dataset("dtd", tuple(map(readable, names)), template, train, test, paper=AUGMENTED)


def resisc45(root: Path) -> Dataset:
    """No official split: lists beside the folder decide, or else every second picture of a class is for testing."""
    download = "NWPU-RESISC45 from its authors at Northwestern Polytechnical University and unpack it"
    images = need(root / "NWPU-RESISC45", download)
    names = folders(images)
    files = [root / f"resisc45-{part}.txt" for part in ("train", "test")]

    def split(file: Path) -> Split:
        lines = read_lines(need(file, "the other half of this split (or remove both lists for the built-in split)"))
        # Lists circulate with and without the folder, which the file's own name repeats: airplane_001.jpg.
        paths = [line if "/" in line else f"{line.rpartition('_')[0]}/{line}" for line in lines]
        return by_folder(images, paths, names)

    if any(file.exists() for file in files):
        train, test = map(split, files)
    else:
        both = by_folder(images, [f"{name}/{file}" for name in names for file in pictures(images / name)], names)
        train, test = (both.subset(part) for part in hold_out(np.asarray(both.labels), 2))
    return Dataset("resisc45", tuple(map(readable, names)), BARE_PHOTO, train, test)


def cub(root: Path) -> Dataset:
    """Caltech-UCSD Birds 200-2011, with its own split."""
    folder = root / "CUB_200_2011"
    download = "Caltech-UCSD Birds-200-2011 from the Caltech Vision Lab and unpack it"
    paths, labels, in_train, names = (
        dict(read_pairs(need(folder / f"{name}.txt", download)))
        for name in ("images", "image_class_labels", "train_test_split", "classes")
    )
    if not paths.keys() == labels.keys() == in_train.keys():
        raise UserError(f"the lists in {folder} are not about the same pictures; download {download} again")

    def split(flag: str) -> Split:
        chosen = [key for key in paths if in_train[key] == flag]
        numbers = class_numbers([labels[key] for key in chosen], list(names), folder / "classes.txt")
        return listed(folder / "images", [paths[key] for key in chosen], numbers)

    classes = tuple(readable(name.partition(".")[2]) for name in names.values())
    return Dataset("cub", classes, BARE_PHOTO, split("1"), split("0"))


def ucf101(root: Path) -> Dataset:
    """UCF101's first split, one frame from the middle of each video, as prepared for CoOp."""
    lists = root / "ucfTrainTestlist"
    frames = "UCF-101-midframes, linked from the CoOp repository's DATASETS page on GitHub, and unpack it"
    download = "the UCF101 train/test splits from the University of Central Florida and unpack them"
    images = need(root / "UCF-101-midframes", frames)
    names = [name for _, name in read_pairs(need(lists / "classInd.txt", download))]

    def split(part: str) -> Split:
        videos = [line.split()[0] for line in read_lines(need(lists / f"{part}list01.txt", download))]
        actions = [video.split("/")[0] for video in videos]
        folders = ["_".join(words(action)) for action in actions]
        paths = [f"{folder}/{Path(video).stem}.jpg" for folder, video in zip(folders, videos, strict=True)]
        return listed(images, paths, class_numbers(actions, names, lists / "classInd.txt"))

    classes = tuple(" ".join(words(name)) for name in names)
    return Dataset("ucf101", classes, BARE_PHOTO, split("train"), split("test"))


def words(camel: str) -> list[str]:
    """ApplyEyeMakeup → Apply, Eye, Makeup."""
    return re.findall("[A-Z][^A-Z]*", camel)


def by_folder(images: Path, paths: Sequence[str], names: Sequence[str]) -> Split:
    """Pictures whose class is the folder that they are in."""
    return listed(images, paths, class_numbers([path.split("/")[0] for path in paths], names, images))


def class_numbers(found: Sequence[str], names: Sequence[str], where: Path) -> list[int]:
    numbers = {name: number for number, name in enumerate(names)}
    if strangers := [name for name in found if name not in numbers]:
        raise UserError(f"a list names the class {strangers[0]!r}, which {where} lacks; the download is not complete")
    return [numbers[name] for name in found]
