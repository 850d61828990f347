"""Published datasets of picture files, in the layout their authors distribute."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ...base.errors import UserError
from ..dataset import Dataset, Split
from .files import PHOTO, every, folders, listed, need, pictures, read_lines, read_pairs, readable, whole

BARE_PHOTO = "a photo of a {}"  # FedCoPL's, without a full stop


def imagenet_lt(root: Path) -> Dataset:
    """Liu et al., CVPR 2019. Labels count the WordNet ids in alphabetical order."""
    lists, images = root / "imagenet-lt", root / "imagenet"
    need(images, "ImageNet (ILSVRC 2012) from image-net.org, with the folders train and val")
    names_file = need(
        lists / "classnames.txt",
        "classnames.txt, the list of readable ImageNet class names in the CoOp repository on GitHub",
    )
    names = dict(sorted(read_pairs(names_file)))
    numbers = {wordnet: number for number, wordnet in enumerate(names)}

    def split(name: str) -> Split:
        path = need(
            lists / f"ImageNet_LT_{name}.txt",
            "the ImageNet-LT lists linked from the OpenLongTailRecognition (OLTR) repository on GitHub",
        )
        paths, labels = [], []
        for line in read_lines(path):
            picture, _, text = line.rpartition(" ")
            label = whole(text, path)
            wordnet = next((part for part in Path(picture).parts if part in numbers), None)
            if not 0 <= label < len(names) or (wordnet is not None and numbers[wordnet] != label):
                raise UserError(
                    f"{path}: {line!r} does not agree with {names_file}; the files are of different editions"
                )
            paths.append(picture)
            labels.append(label)
        return listed(images, paths, labels)

    classes = tuple(map(readable, names.values()))
    return Dataset("imagenet-lt", classes, PHOTO, split("train"), split("test"), normal="clip-augmented")


def dtd(root: Path) -> Dataset:
    """Describable Textures; the first of its ten splits, train and validation together for training."""
    download = "the Describable Textures Dataset from the Visual Geometry Group in Oxford and unpack it"
    images = need(root / "dtd" / "images", download)
    names = folders(images)
    numbers = {name: number for number, name in enumerate(names)}

    def split(*parts: str) -> Split:
        files = [need(root / "dtd" / "labels" / f"{part}1.txt", download) for part in parts]
        paths = [line for file in files for line in read_lines(file)]
        return listed(images, paths, [number_of(path.split("/")[0], numbers, images) for path in paths])

    classes = tuple(map(readable, names))
    template = "a photo of a {} pattern."  # FedPuReL's; CoOp has "{} texture.", FedCoPL "a photo of a {}"
    return Dataset("dtd", classes, template, split("train", "val"), split("test"), normal="clip-augmented")


def resisc45(root: Path) -> Dataset:
    """No official split: lists beside the folder decide, or else every second picture of a class is for testing."""
    images = need(
        root / "NWPU-RESISC45", "NWPU-RESISC45 from its authors at Northwestern Polytechnical University and unpack it"
    )
    names = folders(images)
    numbers = {name: number for number, name in enumerate(names)}
    files = [root / f"resisc45-{part}.txt" for part in ("train", "test")]
    if any(file.exists() for file in files):
        for file in files:
            need(file, "the other half of this split (or remove both lists for the built-in split)")
        train, test = (resisc45_list(images, read_lines(file), numbers) for file in files)
    else:
        paths = [f"{name}/{picture}" for name in names for picture in pictures(images / name)]
        whole_set = listed(images, paths, [numbers[path.split("/")[0]] for path in paths])
        train, test = (whole_set.subset(part) for part in every(np.asarray(whole_set.labels), 2))
    return Dataset("resisc45", tuple(map(readable, names)), BARE_PHOTO, train, test)


def resisc45_list(images: Path, lines: list[str], numbers: dict[str, int]) -> Split:
    # Lists circulate with and without the folder, which the file's own name repeats: airplane_001.jpg.
    paths = [line if "/" in line else f"{line.rpartition('_')[0]}/{line}" for line in lines]
    return listed(images, paths, [number_of(path.split("/")[0], numbers, images) for path in paths])


def cub(root: Path) -> Dataset:
    """Caltech-UCSD Birds 200-2011, with its own split."""
    folder = root / "CUB_200_2011"
    download = "Caltech-UCSD Birds-200-2011 from the Caltech Vision Lab and unpack it"

    def table(name: str) -> dict[str, str]:
        return dict(read_pairs(need(folder / name, download)))

    paths, labels, in_train, names = map(
        table, ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
    )
    if not paths.keys() == labels.keys() == in_train.keys():
        raise UserError(f"the lists in {folder} are not about the same pictures; download {download} again")
    numbers = {key: number for number, key in enumerate(names)}

    def split(flag: str) -> Split:
        chosen = [key for key in paths if in_train[key] == flag]
        labelled = [number_of(labels[key], numbers, folder / "classes.txt") for key in chosen]
        return listed(folder / "images", [paths[key] for key in chosen], labelled)

    classes = tuple(readable(name.partition(".")[2]) for name in names.values())
    return Dataset("cub", classes, BARE_PHOTO, split("1"), split("0"))


def ucf101(root: Path) -> Dataset:
    """UCF101's first split, one frame from the middle of each video, as prepared for CoOp."""
    lists = root / "ucfTrainTestlist"
    download = (
        "the UCF101 train/test splits for action recognition from the University of Central Florida and unpack them"
    )
    images = need(
        root / "UCF-101-midframes",
        "UCF-101-midframes, linked from the CoOp repository's DATASETS page on GitHub, and unpack it",
    )
    names = [name for _, name in read_pairs(need(lists / "classInd.txt", download))]
    numbers = {name: number for number, name in enumerate(names)}

    def split(name: str) -> Split:
        videos = [line.split()[0] for line in read_lines(need(lists / f"{name}list01.txt", download))]
        labels = [number_of(video.split("/")[0], numbers, lists / "classInd.txt") for video in videos]
        frames = [
            f"{'_'.join(words(names[label]))}/{Path(video).stem}.jpg"
            for video, label in zip(videos, labels, strict=True)
        ]
        return listed(images, frames, labels)

    classes = tuple(" ".join(words(name)) for name in names)
    return Dataset("ucf101", classes, BARE_PHOTO, split("train"), split("test"))


def words(camel: str) -> list[str]:
    """ApplyEyeMakeup → Apply, Eye, Makeup."""
    return re.findall("[A-Z][^A-Z]*", camel)


def number_of(name: str, numbers: dict[str, int], where: Path) -> int:
    if name not in numbers:
        raise UserError(f"a list names the class {name!r}, which {where} does not have; the download is not complete")
    return numbers[name]
