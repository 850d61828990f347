"""One picture file to pixels, (H, W, 3) uint8, as people see it."""

import math
import struct
import threading
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ..base.errors import UserError
from .paper import Pixels

LARGE = (
    40_000_000  # pixels; of larger pictures every n-th part is averaged on loading, since CLIP sees few hundred a side
)
LIMIT = 400_000_000  # pixels; more than a gigabyte, and likely no picture that anyone means to classify
WINDOW = 0.5, 99.5  # percentiles of a picture's own values that become black and white, if it has more than 8 bits
DICOM = ".dcm"

# Pillow's decoders report a damaged file with any of these.
BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error)
opening = threading.Lock()


class BrokenPicture(UserError):  # noqa: N818  # as it reads
    """A picture that is not there or cannot be read."""

    def __init__(self, path: Path, reason: str) -> None:
        todo = "replace or remove this file, or go on without such pictures: data.broken=skip"
        super().__init__(f"cannot read the picture {path}: {reason}; {todo}")
        self.path, self.reason = path, reason


def read_picture(path: Path) -> Pixels:
    """Upright, in RGB, transparent parts on white."""
    try:
        if path.suffix.lower() == DICOM:
            return read_dicom(path)
        with open_picture(path) as picture:
            if (pixels := math.prod(picture.size)) > LIMIT:
                raise BrokenPicture(path, f"it has {pixels:,} pixels, and {LIMIT:,} are the most that is read")
            return to_rgb(picture)
    except BROKEN as error:
        raise BrokenPicture(path, unreachable(error)) from error


def unreachable(error: Exception) -> str:
    return "there is no such file" if isinstance(error, FileNotFoundError) else str(error)


def open_picture(path: Path | BinaryIO) -> Image.Image:
    """Only its header is read. Pillow's own limit, which is lower than ours and first warns, does not hold here."""
    with opening:
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(path)
        finally:
            Image.MAX_IMAGE_PIXELS = before


def to_rgb(picture: Image.Image) -> Pixels:
    fewer = math.ceil(math.sqrt(math.prod(picture.size) / LARGE))
    if fewer > 1:  # JPEG can be decoded at a half, a quarter or an eighth
        picture.draft("RGB", (picture.width // fewer, picture.height // fewer))
    # Cameras store the picture as the sensor saw it and note how it was held: people see it turned upright.
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith(("I", "F")):
        picture = Image.fromarray(windowed(np.asarray(picture)))
    if picture.has_transparency_data:
        whole = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", whole.size, "white"), whole)
    picture = picture.convert("RGB")
    fewer = math.ceil(math.sqrt(math.prod(picture.size) / LARGE))
    return np.array(picture.reduce(fewer) if fewer > 1 else picture)


def windowed(values: NDArray[Any], window: tuple[float, float] | None = None) -> Pixels:
    """Values of any range as 8 bits. Without a window, the picture's own percentiles: scanners with 10, 12 or 16 bits
    store in the same 16, and by the full range most of them would be black."""
    values = np.nan_to_num(values.astype(np.float64))
    low, high = window or np.percentile(values, WINDOW)
    if low == high:  # nearly all is background
        low, high = values.min(), values.max()
    scaled = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return np.round(scaled.clip(0, 1) * 255).astype(np.uint8)


def grey(values: Pixels) -> Pixels:
    return np.repeat(values[:, :, None], 3, axis=2)


def read_dicom(path: Path) -> Pixels:
    """The first frame, by the file's own window if it names one."""
    try:
        import pydicom
        import pydicom.pixels
    except ImportError as error:
        raise UserError(f"{path} is a DICOM file, which takes pydicom; pip install 'fedtailor[dicom]'") from error
    try:
        facts = pydicom.dcmread(path, stop_before_pixels=True)
        values = np.asarray(pydicom.pixels.pixel_array(path, index=0))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, pydicom.errors.InvalidDicomError) as error:
        raise BrokenPicture(path, str(error)) from error
    if values.ndim == 3:  # in colour
        return values if values.dtype == np.uint8 else windowed(values)
    values = values * float(facts.get("RescaleSlope", 1)) + float(facts.get("RescaleIntercept", 0))
    centre, width = (first(facts.get(f"Window{name}")) for name in ("Center", "Width"))
    window = None if centre is None or not width else (centre - width / 2, centre + width / 2)
    made = windowed(values, window)
    return grey(255 - made if facts.get("PhotometricInterpretation") == "MONOCHROME1" else made)


def first(value: Any) -> float | None:
    """A DICOM file may name several windows."""
    if value is None or isinstance(value, str | int | float):
        return None if value in (None, "") else float(value)
    return first(value[0]) if len(value) else None
