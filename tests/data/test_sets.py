import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toys import blank, paint, toy

from fedtailor.base.errors import UserError
from fedtailor.data.dataset import ArrayImages, Dataset, FileImages, Split


def test_fingerprints_follow_the_content_not_the_object() -> None:
    pixels = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3)
    same, other = ArrayImages(pixels), ArrayImages(pixels[::-1])
    assert same.fingerprint == ArrayImages(pixels.copy()).fingerprint
    assert len({same.fingerprint, other.fingerprint, same.subset(np.array([0])).fingerprint}) == 3
    assert ArrayImages(pixels.reshape(2, 3, 2, 3)).fingerprint != same.fingerprint  # same bytes, another shape


def test_file_fingerprints_follow_paths_sizes_and_times(tmp_path: Path) -> None:
    paint(tmp_path / "a.png", 1)
    paint(tmp_path / "b.png", 1)
    both = FileImages(tmp_path, ("a.png", "b.png"))
    before = both.fingerprint
    assert before == FileImages(tmp_path, ("a.png", "b.png")).fingerprint
    assert before != both.subset(np.array([1, 0])).fingerprint
    os.utime(tmp_path / "a.png", ns=(1, 1))
    assert before != FileImages(tmp_path, ("a.png", "b.png")).fingerprint


def test_files_are_read_as_rgb_and_upright(tmp_path: Path) -> None:
    picture = Image.new("L", (4, 2), 7)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    picture.save(tmp_path / "turned.jpg", exif=exif)
    read = FileImages(tmp_path, ("turned.jpg",)).read(0)
    assert read.shape == (4, 2, 3)
    assert read.dtype == np.uint8
    assert read.flags.writeable


def test_a_broken_or_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"not a picture")
    images = FileImages(tmp_path, ("broken.jpg", "gone.jpg"))
    with pytest.raises(UserError, match=r"broken\.jpg"):
        images.read(0)
    with pytest.raises(UserError, match=r"gone\.jpg"):
        images.read(1)
    with pytest.raises(UserError, match=r"gone\.jpg"):
        _ = images.fingerprint


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "cut.jpg")
    whole = (tmp_path / "cut.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cut\.jpg"):
        FileImages(tmp_path, ("cut.jpg",)).read(0)


def test_subsets_keep_labels_and_sites_together() -> None:
    split = Split(blank(3), np.array([2, 0, 1]), np.array([5, 6, 7]))
    part = split.subset(np.array([2, 0]))
    assert part.labels is not None
    assert part.sites is not None
    assert (len(part), part.labels.tolist(), part.sites.tolist()) == (2, [1, 2], [7, 5])


def test_invariants_are_checked() -> None:
    with pytest.raises(ValueError, match="one per picture"):
        Split(blank(2), np.zeros(3, dtype=np.int64))
    with pytest.raises(ValueError, match="labels must be -1 or more"):
        Split(blank(1), np.array([-2]))
    with pytest.raises(ValueError, match="sites must be 0 or more"):
        Split(blank(1), None, np.array([-1]))
    with pytest.raises(ValueError, match="uint8"):
        ArrayImages(np.zeros((2, 2, 3), dtype=np.uint8))
    good = toy([1, 1], [1, 1])
    with pytest.raises(ValueError, match="label 1"):
        Dataset("x", ("only",), "{}", good.train, good.test)
    with pytest.raises(ValueError, match="template"):
        Dataset("x", good.classes, "a photo", good.train, good.test)
    with pytest.raises(ValueError, match="order"):
        Dataset("x", good.classes, "{}", good.train, good.test, order=(0, 0))
    with pytest.raises(ValueError, match="coarse"):
        Dataset("x", good.classes, "{}", good.train, good.test, coarse=np.zeros(3, dtype=np.int64))
