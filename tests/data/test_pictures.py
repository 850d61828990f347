"""Pictures as they come: deep, transparent, turned, in print colours, tiny, huge, from a scanner."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedtailor.base.errors import UserError
from fedtailor.data import pictures
from fedtailor.data.dataset import FileImages
from fedtailor.data.pictures import BrokenPicture, read_picture, windowed
from fedtailor.data.preprocess import centre


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_deep_grey(tmp_path: Path, dtype: type) -> None:
    """Broken: a scan with 12 bits in 16 comes out black, or a few hot pixels make it so."""
    values = np.linspace(100, 4000, 40 * 50).reshape(40, 50).astype(dtype)
    values[0, 0] = 60000
    Image.fromarray(values).save(tmp_path / "deep.tiff")
    read = read_picture(tmp_path / "deep.tiff")
    assert (read.shape, read.dtype) == ((40, 50, 3), np.uint8)
    assert (read[..., 0] == read[..., 2]).all()
    assert (read[0, 1, 0], read[-1, -1, 0], read[0, 0, 0]) == (0, 255, 255)
    assert abs(int(read[20, 0, 0]) - 128) < 3


def test_windows_of_little() -> None:
    """Broken: a black frame with one lit pixel is divided by zero, and so is a picture of one value or with a hole."""
    lit = np.zeros((30, 30), np.uint16)
    lit[3, 3] = 900
    assert np.unique(windowed(lit)).tolist() == [0, 255]
    assert np.unique(windowed(np.full((2, 2), 7, np.uint16))).tolist() == [0]
    assert windowed(np.array([[np.nan, 1.0, 2.0]]), (0, 2)).tolist() == [[0, 128, 255]]


def test_print_colours_and_palettes(tmp_path: Path) -> None:
    red = Image.new("RGB", (6, 6), (255, 0, 0))
    red.convert("CMYK").save(tmp_path / "print.tiff")
    red.convert("P").save(tmp_path / "palette.png")
    red.convert("1").save(tmp_path / "bits.png")
    for name in ("print.tiff", "palette.png"):
        assert read_picture(tmp_path / name)[2, 2].tolist() == [255, 0, 0]
    assert read_picture(tmp_path / "bits.png").shape == (6, 6, 3)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_parts_are_white(tmp_path: Path, mode: str) -> None:
    """Broken: what nobody sees, the colour below a transparent background, is what CLIP sees."""
    values = np.zeros((4, 4, 4), np.uint8)
    values[:2, :, 3] = 255  # the upper half is black, the lower one is not there
    picture = Image.fromarray(values)
    if mode == "P":
        picture = Image.new("P", (4, 4), 0)
        picture.putpalette([0, 0, 0, 9, 9, 9])
        picture.paste(1, (0, 2, 4, 4))
        picture.save(tmp_path / "p.png", transparency=1)
    else:
        picture.convert(mode).save(tmp_path / "p.png")
    read = read_picture(tmp_path / "p.png")
    assert (read[0, 0].tolist(), read[3, 3].tolist()) == ([0, 0, 0], [255, 255, 255])


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (2, 33)])
def test_tiny_ones_and_strips(size: tuple[int, int]) -> None:
    """Broken: a picture of one pixel fails, or a strip is first enlarged to gigabytes."""
    made = centre(Image.new("RGB", size, (9, 8, 7)), 224)
    assert made.size == (224, 224)
    assert made.getpixel((100, 100)) == (9, 8, 7)


def test_only_strips_are_cut_first() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (10, 90, 3), dtype=np.uint8))
    plain = noise.resize((288, 32), Image.Resampling.BICUBIC).crop((128, 0, 160, 32))
    assert np.array_equal(np.asarray(centre(noise, 32)), np.asarray(plain))


@pytest.mark.parametrize("name", ["large.jpg", "large.png"])
def test_large_ones_are_scaled_on_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Broken: Pillow's bomb warning or error ends a run, or a turned picture loses its turn when it is scaled."""
    monkeypatch.setattr(pictures, "LARGE", 1000)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)  # twice that is Pillow's error
    picture = Image.new("RGB", (100, 60), (200, 0, 0))
    picture.paste((0, 0, 200), (0, 0, 100, 30))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / name, exif=exif, quality=100)
    read = read_picture(tmp_path / name)
    assert read.shape[0] * read.shape[1] <= 1000
    assert read.shape[0] > read.shape[1]  # turned
    left, right = read[10, 1].astype(int), read[10, -2].astype(int)
    assert right[2] > 150 > 50 > right[0]
    assert left[0] > 150 > 50 > left[2]
    assert Image.MAX_IMAGE_PIXELS == 500  # what others in this process rely on


def test_there_is_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "LIMIT", 5000)
    Image.new("RGB", (100, 60)).save(tmp_path / "huge.png")
    with pytest.raises(BrokenPicture, match=r"huge\.png: it has 6,000 pixels, and 5,000 are the most that is read"):
        read_picture(tmp_path / "huge.png")


# --- DICOM ----------------------------------------------------------------------------------------------------------


def stub(monkeypatch: pytest.MonkeyPatch, values: Any, **facts: Any) -> None:
    """A pydicom that reads any file as these."""
    made, inner, errors = ModuleType("pydicom"), ModuleType("pydicom.pixels"), ModuleType("pydicom.errors")

    def pixel_array(path: Path, index: int) -> Any:
        assert index == 0
        if isinstance(values, Exception):
            raise values
        return values

    made.dcmread = lambda path, stop_before_pixels: facts  # type: ignore[attr-defined]
    inner.pixel_array = pixel_array  # type: ignore[attr-defined]
    errors.InvalidDicomError = type("InvalidDicomError", (Exception,), {})  # type: ignore[attr-defined]
    made.pixels, made.errors = inner, errors  # type: ignore[attr-defined]
    for name, module in (("pydicom", made), ("pydicom.pixels", inner), ("pydicom.errors", errors)):
        monkeypatch.setitem(sys.modules, name, module)


def test_dicom_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: without pydicom a scan counts as damaged, and data.broken=skip drops all of them."""
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(UserError, match=r"takes pydicom; pip install 'fedtailor\[dicom\]'") as error:
        FileImages(tmp_path, ("scan.dcm",)).read(0)
    assert not isinstance(error.value, BrokenPicture)


def test_dicom_by_its_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a CT's slope and window are ignored, the first of several is not taken, or it is a negative."""
    values = np.array([[0, 1024, 1064, 3000]], np.int16)
    facts = {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": [40, 300], "WindowWidth": [80, 900]}
    stub(monkeypatch, values, **facts, PhotometricInterpretation="MONOCHROME2")
    assert read_picture(tmp_path / "ct.DCM")[0, :, 0].tolist() == [0, 0, 128, 255]
    stub(monkeypatch, values, **facts, PhotometricInterpretation="MONOCHROME1")
    assert read_picture(tmp_path / "ct.dcm")[0, :, 0].tolist() == [255, 255, 127, 0]
    stub(monkeypatch, np.array([[5, 10]]), WindowCenter="", WindowWidth=None)
    assert read_picture(tmp_path / "ct.dcm")[0, :, 0].tolist() == [0, 255]
    colour = np.random.default_rng(0).integers(0, 255, (3, 4, 3), dtype=np.uint8)
    stub(monkeypatch, colour)
    assert np.array_equal(read_picture(tmp_path / "us.dcm"), colour)


def test_dicom_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, RuntimeError("no decoder for JPEG 2000"))
    with pytest.raises(BrokenPicture, match=r"scan\.dcm: no decoder for JPEG 2000"):
        read_picture(tmp_path / "scan.dcm")
