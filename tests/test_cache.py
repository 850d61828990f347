"""The cache of activations: computed once, noticed when it is not what it should be, whole or not there."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedtailor.clip import cache
from fedtailor.clip.cache import HEADER, MAGIC, activations, default_folder, key_of
from fedtailor.clip.model import Clip
from fedtailor.clip.preprocess import Preprocess
from fedtailor.data.sets import ArrayImages
from fedtailor.errors import UserError
from tiny import tiny_clip

CPU = torch.device("cpu")
PLAIN = Preprocess(32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def some_images(seed: int = 0, count: int = 5) -> ArrayImages:
    return ArrayImages(np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3)).astype(np.uint8))


IMAGES = some_images()


@pytest.fixture(scope="module")
def clip() -> Clip:
    return tiny_clip()


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures each call of the tower was given."""
    calls: list[int] = []
    encode = cache.encode

    def counting(clip: Clip, pixels: Tensor, *rest: Any) -> Tensor:
        calls.append(len(pixels))
        return encode(clip, pixels, *rest)

    monkeypatch.setattr(cache, "encode", counting)
    return calls


def get(clip: Clip, folder: Path, **other: Any) -> np.ndarray:
    given = {"digest": "w", "images": IMAGES, "transform": PLAIN, "stage": "features", "device": CPU, **other}
    return activations(clip, folder=folder, **given)


def only_file(folder: Path) -> Path:
    (found,) = folder.iterdir()
    assert found.suffix == ".act"
    return found


def test_right_and_computed_once(clip: Clip, tmp_path: Path, encodings: list[int]) -> None:
    """The features are those of the tower; the second call opens the file and encodes nothing."""
    first = get(clip, tmp_path)
    with torch.no_grad():
        expected = clip.vision(torch.stack([PLAIN(IMAGES.read(i)) for i in range(5)]), "pixels", "features")
    assert np.allclose(first, expected.numpy(), atol=1e-6)
    assert encodings == [5]
    assert np.array_equal(get(clip, tmp_path), first)
    assert encodings == [5]
    only_file(tmp_path)


def test_chunks(clip: Clip, tmp_path: Path, encodings: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoded two at a time, reported as it goes, the same numbers."""
    whole = get(clip, tmp_path / "whole")
    monkeypatch.setattr(cache, "CHUNK", 2)
    told: list[tuple[int, int]] = []
    found = get(clip, tmp_path / "chunks", watch=lambda what, done, total: told.append((done, total)))
    assert encodings == [5, 2, 2, 1]
    assert told == [(2, 5), (4, 5), (5, 5)]
    assert np.allclose(found, whole, atol=1e-6)


@pytest.mark.parametrize(
    "other",
    [
        {"digest": "other weights"},
        {"images": some_images(1)},
        {"images": IMAGES.subset(np.array([1, 0, 2, 3, 4]))},
        {"transform": Preprocess(32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.2))},
        {"transform": Preprocess(32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), resize="bilinear")},
        {"stage": "block1"},
        {"precision": torch.bfloat16},
    ],
)
def test_whatever_it_depends_on_is_in_its_name(
    clip: Clip, tmp_path: Path, encodings: list[int], other: dict[str, Any]
) -> None:
    """Other weights, pictures, order, transform, stage or precision: another file, and the first stays as it was."""
    if "stage" in other:
        other = {"stage": clip.vision.stages[1]}
    first = np.array(get(clip, tmp_path))
    get(clip, tmp_path, **other)
    assert len(encodings) == 2
    assert len(list(tmp_path.iterdir())) == 2
    assert np.array_equal(get(clip, tmp_path), first)
    assert len(encodings) == 2


def break_header(data: bytes, **changes: Any) -> bytes:
    header = {**json.loads(data[:HEADER].rstrip(b"\0")), **changes}
    return json.dumps(header).encode().ljust(HEADER, b"\0") + data[HEADER:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[: HEADER // 2],
        lambda data: b"",
        lambda data: b"\x93garbage" * (len(data) // 8),
        lambda data: b"3".ljust(HEADER, b"\0") + data[HEADER:],
        lambda data: break_header(data, key="0" * 64),
        lambda data: break_header(data, magic=MAGIC + "0"),
        lambda data: break_header(data, shape=[5, 8]),
        lambda data: break_header(data, shape=["a"]),
        lambda data: break_header(data, shape=None),
    ],
)
def test_a_damaged_or_foreign_file_is_made_anew(clip: Clip, tmp_path: Path, encodings: list[int], damage: Any) -> None:
    """Cut short, too long, garbage, another key or shape under this name: noticed and replaced."""
    right = np.array(get(clip, tmp_path))
    path = only_file(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    spoilt = path.stat().st_ino
    assert np.array_equal(get(clip, tmp_path), right)
    assert path.stat().st_ino != spoilt  # moved there whole, not written over
    assert len(encodings) == 2
    assert only_file(tmp_path) == path
    assert np.array_equal(get(clip, tmp_path), right)
    assert len(encodings) == 2


def test_memory_mapped_and_read_only(clip: Clip, tmp_path: Path) -> None:
    """Nobody can write into the cache through what it gives."""
    found = get(clip, tmp_path)
    assert isinstance(found, np.memmap)
    assert found.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 0


def test_a_failure_half_way_leaves_nothing(clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture that cannot be read in the second chunk: the error comes through, and no file stays."""
    monkeypatch.setattr(cache, "CHUNK", 2)

    class Torn(ArrayImages):
        def read(self, index: int) -> Any:
            if index == 3:
                raise UserError("cannot read the picture 3")
            return super().read(index)

    with pytest.raises(UserError, match="cannot read the picture 3"):
        get(clip, tmp_path, images=Torn(IMAGES.pixels))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_before_the_work(clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much it takes, how much there is, what to do; no file stays."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 10**12, 100))
    with pytest.raises(UserError, match=r"caching 5 images takes .* GB free; make room, or set FEDTAILOR_CACHE"):
        get(clip, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_images(clip: Clip, tmp_path: Path) -> None:
    """An empty split is an error, not an empty file."""
    with pytest.raises(UserError, match="no images to encode"):
        get(clip, tmp_path, images=some_images(count=0))
    assert list(tmp_path.iterdir()) == []


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """$FEDTAILOR_CACHE, or the user's cache folder."""
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "here"))
    assert default_folder() == tmp_path / "here"
    monkeypatch.delenv("FEDTAILOR_CACHE")
    assert "fedtailor" in str(default_folder())
    assert key_of("a", IMAGES, PLAIN, "features", "None") != key_of("b", IMAGES, PLAIN, "features", "None")


def race(barrier: Any, folder: str, out: Any, number: int) -> None:
    """One of two processes: both have found no file, and both encode, before either writes."""
    torch.set_num_threads(1)
    encode = cache.encode

    def together(*inputs: Any) -> Tensor:
        barrier.wait(60)
        return encode(*inputs)

    cache.encode = together
    found = get(tiny_clip(), Path(folder))
    barrier.wait(60)  # both are done: either's file may have replaced the other's under the open map
    out.put((number, np.array(found).tobytes()))


def test_two_processes_at_once(clip: Clip, tmp_path: Path) -> None:
    """Both get the right numbers, one whole file is left, and none half-written."""
    spawn = multiprocessing.get_context("spawn")
    barrier, out = spawn.Barrier(2), spawn.Queue()
    racers = [spawn.Process(target=race, args=(barrier, str(tmp_path), out, n)) for n in range(2)]
    for racer in racers:
        racer.start()
    found = dict(out.get(timeout=90) for _ in racers)
    for racer in racers:
        racer.join(30)
    assert [racer.exitcode for racer in racers] == [0, 0]
    expected = np.array(get(clip, tmp_path / "alone"))
    shutil.rmtree(tmp_path / "alone")
    assert sorted(found) == [0, 1]
    for data in found.values():
        assert np.allclose(np.frombuffer(data, np.float32).reshape(expected.shape), expected, atol=1e-6)
    only_file(tmp_path)
