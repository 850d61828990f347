"""The pictures that a model is asked about: files, all files of a folder, or Pillow's images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from PIL import Image

from ..base.errors import UserError
from ..data.datasets.files import SUFFIXES
from ..data.datasets.layout import pictures_in
from ..data.paper import Pixels
from ..data.pictures import BROKEN, BrokenPicture, read_picture, to_rgb

Picture = str | PathLike[str] | Image.Image
BLANK = np.zeros((1, 1, 3), np.uint8)


class Pictures:
    """Read one by one. Those that cannot be read are noted, and stand there as blank ones that nobody is told about."""

    def __init__(self, items: Sequence[Picture]) -> None:
        self.items, self.failed = items, dict[int, str]()

    def read(self, index: int) -> Pixels:
        item = self.items[index]
        try:
            return to_rgb(item) if isinstance(item, Image.Image) else read_picture(Path(item))
        except BrokenPicture as error:
            self.failed[index] = f"cannot read {name_of(item, index)}: {error.reason}"
        except UserError as error:
            self.failed[index] = str(error)
        except BROKEN as error:  # an image that was opened, and is found to be damaged now
            self.failed[index] = f"cannot read {name_of(item, index)}: {error}"
        return BLANK


def name_of(item: Picture, index: int) -> str:
    return f"picture {index}" if isinstance(item, Image.Image) else str(item)


def listed(given: object) -> list[Picture]:
    """One picture, or several."""
    if isinstance(given, str | PathLike | Image.Image):
        return [given]
    if not isinstance(given, Iterable):
        raise UserError(f"pictures are paths or PIL images, or a list of them, got {type(given).__name__}")
    items = list(given)
    for item in items:
        if not isinstance(item, str | PathLike | Image.Image):
            raise UserError(f"a picture is a path or a PIL image, got {type(item).__name__}")
    return items


def find_pictures(paths: Sequence[Path]) -> list[Path]:
    """Files as they are named, and all pictures that are anywhere in the folders named."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        seen = list(pictures_in(path))
        if not seen:
            raise UserError(f"{path} has no pictures in it; their names must end in {', '.join(sorted(SUFFIXES))}")
        found += seen
    return found
