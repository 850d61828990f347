"""The cache of activations: computed once, noticed when it is not what it should be, whole or not there."""

from __future__ import annotations

import errno
import io
import itertools
import multiprocessing
import os
import shutil
import signal
import struct
import time
import warnings
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.lib import format as npy
from torch import Tensor

import fedtailor
from fedtailor.base.errors import Note, UserError
from fedtailor.cli import installation
from fedtailor.clip import encoder as encoder_module
from fedtailor.clip import feature_cache, kept, part
from fedtailor.clip.encoder import Encoder
from fedtailor.clip.feature_cache import HEADER, NotKept, activations, budget, default_folder, make_room, tell
from fedtailor.clip.model import Clip
from fedtailor.clip.part import NOTE, Part
from fedtailor.data.dataset import ArrayImages
from fedtailor.data.preprocess import Preprocess
from tiny import tiny_clip

CPU = torch.device("cpu")
PLAIN = Preprocess(32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def some_images(seed: int = 0, count: int = 5) -> ArrayImages:
    return ArrayImages(np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3)).astype(np.uint8))


IMAGES = some_images()
MANY = some_images(3, 41)  # three chunks, the last of them short


@pytest.fixture(scope="module")
def clip() -> Clip:
    return tiny_clip()


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures each call of the tower was given."""
    calls: list[int] = []
    encode = Encoder.encode

    def counting(encoder: Encoder, pixels: Tensor) -> Tensor:
        calls.append(len(pixels))
        return encode(encoder, pixels)

    monkeypatch.setattr(Encoder, "encode", counting)
    return calls


def get(
    clip: Clip, folder: Path, images: ArrayImages = IMAGES, progress: feature_cache.ProgressFn | None = None, **how: Any
) -> np.ndarray:
    encoder = Encoder(clip, **{"digest": "w", "transform": PLAIN, "stage": "features", "device": CPU, **how})
    return activations(encoder, images, folder, progress)


def only_file(folder: Path) -> Path:
    (found,) = folder.iterdir()
    assert found.suffix == ".npy"
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
    monkeypatch.setattr(encoder_module, "CHUNK", 2)
    told: list[tuple[int, int]] = []
    found = get(clip, tmp_path / "chunks", progress=lambda what, done, total: told.append((done, total)))
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


def with_header(data: bytes, **changes: Any) -> bytes:
    """The same bytes behind another, well-formed header."""
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (5, 16), **changes})
    return file.getvalue() + data[HEADER:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[: HEADER // 2],
        lambda data: b"",
        lambda data: b"\x93garbage" * (len(data) // 8),
        lambda data: b"PK\x03\x04" + data[4:],  # as of an .npz
        lambda data: b"3".ljust(HEADER, b"\0") + data[HEADER:],
        lambda data: data[:10] + b"{'descr': ((((" + data[24:],
        lambda data: data[:10] + b"\xff" * 20 + data[30:],
        lambda data: data.replace(b"fortran_order", b"fortran ordre"),
        lambda data: data.replace(b"(5, 16)", b"[5, 16]"),
        lambda data: data.replace(b"(5, 16)", b"('a',) "),
        lambda data: with_header(data, shape=(5, 8)),
        lambda data: with_header(data, fortran_order=True),
        lambda data: with_header(data, descr="<f2"),
        lambda data: with_header(data, descr="<f2", shape=(5, 32)),  # the same number of bytes
        lambda data: with_header(data, descr="|O"),
    ],
)
def test_a_damaged_or_foreign_file_is_made_anew(clip: Clip, tmp_path: Path, encodings: list[int], damage: Any) -> None:
    """Cut short, too long, garbage, another type or shape under this name: noticed and replaced."""
    right = np.array(get(clip, tmp_path))
    path = only_file(tmp_path)
    good = path.read_bytes()
    assert with_header(good) == good
    path.write_bytes(damage(good))
    assert path.read_bytes() != good
    spoilt = path.stat().st_ino
    with pytest.warns(Note, match=f"{path.name} is damaged; it is made anew"):
        assert np.array_equal(get(clip, tmp_path), right)
    assert path.stat().st_ino != spoilt  # moved there whole, not written over
    assert len(encodings) == 2
    assert only_file(tmp_path) == path
    assert np.array_equal(get(clip, tmp_path), right)
    assert len(encodings) == 2


def test_memory_mapped_and_read_only(clip: Clip, tmp_path: Path) -> None:
    """Nobody can write into the cache through what it gives."""
    found = get(clip, tmp_path)
    assert isinstance(found.values, np.memmap)
    assert found.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        found.values[0] = 0
    found[np.arange(5)][0] = 0  # a copy
    assert np.asarray(found)[0].any()


def test_a_failure_half_way_leaves_nothing(clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture that cannot be read in the second chunk: the error comes through, and no file stays."""
    monkeypatch.setattr(encoder_module, "CHUNK", 2)

    class Torn(ArrayImages):
        def read(self, index: int) -> Any:
            if index == 3:
                raise UserError("cannot read the picture 3")
            return super().read(index)

    with pytest.raises(UserError, match="cannot read the picture 3"):
        get(clip, tmp_path, images=Torn(IMAGES.pixels))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_before_the_work(clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a full disk ends the run, or is told of more than once, or a file stays."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 10**12, 100))
    with pytest.warns(NotKept, match=r"No space left on device\): each .* FEDTAILOR_CACHE_GB=0") as told:
        assert [get(clip, tmp_path, images=some_images(count=n)) for n in (5, 6)] == [None, None]
    assert len(told.list) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="not on this system")
def test_the_space_is_taken_before_the_work(clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped file that runs out of disk later would kill the process; here it is not kept, and no file stays."""

    def full(handle: int, begin: int, size: int) -> None:
        assert (begin, size) == (0, SIZE + NOTE.size)
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.warns(NotKept, match=r"cannot be written \(No space left"):
        assert get(clip, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("where", [(Path, "mkdir"), (Part, "create"), (Part, "add"), (Part, "finish")])
def test_a_disk_that_refuses(
    clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[type, str], number: int
) -> None:
    """Broken: a cache that cannot be written ends the run, or leaves something behind."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    tell.cache_clear()
    monkeypatch.setattr(*where, refuse)
    with pytest.warns(NotKept, match=os.strerror(number)):
        assert get(clip, tmp_path / "new") is None
    assert not (tmp_path / "new").exists() or list((tmp_path / "new").iterdir()) == []


def test_a_picture_that_cannot_be_read_is_no_fault_of_the_cache(clip: Clip, tmp_path: Path) -> None:
    """Broken: a disk of pictures that fails reads as a full cache, and each picture is tried again and again."""

    class Torn(ArrayImages):
        def read(self, index: int) -> Any:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        get(clip, tmp_path, images=Torn(IMAGES.pixels))


def test_a_run_without_a_cache_folder(small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a run on a machine with a read-only cache folder does not come to its numbers."""
    kept = fedtailor.run("promptfl", small).summary
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(NotKept, match="cannot be written") as told:
        live = fedtailor.run("promptfl", small).summary
    assert len(told.list) == 1
    assert live["global"]["overall"] == pytest.approx(kept["global"]["overall"], abs=5)


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
    assert name_of("a") != name_of("b")


def race(barrier: Any, folder: str, out: Any, number: int) -> None:
    """One of two processes: both have found no file, and both encode, before either writes."""
    torch.set_num_threads(1)
    encode = Encoder.encode

    def together(encoder: Encoder, pixels: Tensor) -> Tensor:
        barrier.wait(60)
        return encode(encoder, pixels)

    Encoder.encode = together
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


# --- what is read is checked ----------------------------------------------------------------------------------------


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks of so many rows of features."""
    monkeypatch.setattr(part, "BLOCK", 20 * 4 * 16)
    return 20


def spoil(path: Path, *rows: int) -> None:
    """A bit in each."""
    data = bytearray(path.read_bytes())
    for row in rows:
        data[HEADER + 4 * 16 * row + 5] ^= 4
    path.write_bytes(data)


def test_a_changed_bit_is_mended(clip: Clip, tmp_path: Path, in_blocks: int, encodings: list[int]) -> None:
    """Only what is damaged is encoded anew, when it is read, to the same bits; and the file is right again."""
    right = np.array(get(clip, tmp_path, images=MANY))
    path, encoded = only_file(tmp_path), len(encodings)
    whole = path.read_bytes()
    spoil(path, 25, 40)  # in the second block of three, and the last, which is short
    found = get(clip, tmp_path, images=MANY)
    assert np.array_equal(found[np.array([0, 3, 19])], right[[0, 3, 19]])
    assert len(encodings) == encoded
    with pytest.warns(Note, match=f"{path.name} is damaged; what is wrong in it is encoded anew"):
        assert np.array_equal(found[np.array([30])], right[[30]])
    assert encodings[encoded:] == [16, 4]
    with pytest.warns(Note, match="is damaged"):
        assert np.array_equal(found, right)
    assert encodings[encoded:] == [16, 4, 1]
    assert path.read_bytes() == whole
    assert np.array_equal(get(clip, tmp_path, images=MANY), right)
    assert encodings[encoded:] == [16, 4, 1]


def test_every_bit_is_noticed(clip: Clip, tmp_path: Path, encodings: list[int]) -> None:
    """Wherever it is: in the header, in a row, in a checksum."""
    right = np.array(get(clip, tmp_path))
    path = only_file(tmp_path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        data = bytearray(whole)
        data[place] ^= 1
        path.write_bytes(data)
        feature_cache.tell.cache_clear()
        with pytest.warns(Note, match="is damaged"):
            assert np.array_equal(get(clip, tmp_path), right)
        assert path.read_bytes() == whole


def test_a_block_is_looked_at_once(clip: Clip, tmp_path: Path, in_blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process, however often it is read."""
    get(clip, tmp_path, images=MANY)
    found, looked = get(clip, tmp_path, images=MANY), list[int]()
    check = kept.checksum
    monkeypatch.setattr(kept, "checksum", lambda rows: (looked.append(len(rows)), check(rows))[1])
    for _ in range(3):
        found[np.array([0, 1, 25])]
    assert looked == [20, 20]
    for _ in range(3):
        np.asarray(found)
    assert looked == [20, 20, 1]


def test_mended_where_nothing_can_be_written(
    clip: Clip, tmp_path: Path, in_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that may only be read: right all the same, in this process."""
    right = np.array(get(clip, tmp_path, images=MANY))
    spoil(only_file(tmp_path), 25)
    found, open_ = get(clip, tmp_path, images=MANY), Path.open

    def denied(path: Path, mode: str = "r", *rest: Any, **how: Any) -> Any:
        if mode == "r+b":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_(path, mode, *rest, **how)

    monkeypatch.setattr(Path, "open", denied)
    with pytest.warns(Note, match="is damaged"):
        assert np.array_equal(found[np.array([25, 1, 39])], right[[25, 1, 39]])
    assert np.array_equal(found, right)


def test_another_machines_file_is_not_mended(clip: Clip, tmp_path: Path, in_blocks: int) -> None:
    """Broken: rows of two machines in one run, whose numbers are neither's."""
    get(clip, tmp_path, images=MANY)
    spoil(only_file(tmp_path), 25)
    found = get(clip, tmp_path, images=MANY)
    other = tiny_clip(seed=1)
    found.encoder = Encoder(other, "w", PLAIN, "features", CPU)
    with pytest.warns(Note, match="is damaged"), pytest.raises(UserError, match=r"it has been removed: begin again"):
        found[np.array([25])]
    assert names(tmp_path) == set()


def test_mended_by_many_at_once(clip: Clip, tmp_path: Path, in_blocks: int, encodings: list[int]) -> None:
    """Clients are side by side; one of them mends, the others wait."""
    right = np.array(get(clip, tmp_path, images=MANY))
    spoil(only_file(tmp_path), 25)
    found, encoded = get(clip, tmp_path, images=MANY), len(encodings)
    with pytest.warns(Note, match="is damaged"), ThreadPoolExecutor(4) as pool:
        all_ = list(pool.map(lambda _: found[np.arange(20, 40)], range(8)))
    assert all(np.array_equal(rows, right[20:40]) for rows in all_)
    assert encodings[encoded:] == [16, 4]


def test_another_sees_the_last_block_meanwhile(
    clip: Clip, tmp_path: Path, in_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients are side by side: while one looks at a block, another may read all the rest."""
    right = np.array(get(clip, tmp_path, images=MANY))
    found, check, others = get(clip, tmp_path, images=MANY), kept.checksum, [0]

    def meanwhile(rows: Any) -> int:
        if others:
            others.clear()
            np.asarray(found)
        return check(rows)

    monkeypatch.setattr(kept, "checksum", meanwhile)
    assert np.array_equal(found[np.array([0, 25])], right[[0, 25]])
    assert found.unseen is None


def test_a_run_on_a_damaged_cache(small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: other numbers, and nobody is told."""
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))
    brief = {**small, "rounds": 1}
    right = fedtailor.run("promptfl", brief).summary["global"]
    for path in (tmp_path / "cache").glob("*.npy"):
        spoil(path, 1)
    with pytest.warns(Note, match="is damaged; what is wrong in it is encoded anew"):
        assert fedtailor.run("promptfl", brief).summary["global"] == right


# --- stopped half-way -----------------------------------------------------------------------------------------------

NPY = "*.npy"


def encode_as_far_as(images: int, folder: str, reached: Any, threads: int = 1) -> None:
    """A process that notes its progress after every chunk, says when so many are encoded, and waits for its end."""
    torch.set_num_threads(threads)
    part.SECONDS = -1.0

    def wait(what: str, done: int, total: int) -> None:
        if done >= images:
            reached.set()
            time.sleep(60)

    get(tiny_clip(), Path(folder), images=MANY, progress=wait)


def stopped(folder: Path, images: int = 32, how: int = signal.SIGKILL) -> Path:
    """The part that is left of a process that was ended by a signal."""
    spawn = multiprocessing.get_context("spawn")
    reached = spawn.Event()
    process = spawn.Process(target=encode_as_far_as, args=(images, str(folder), reached, 2))
    process.start()
    assert reached.wait(60)
    os.kill(process.pid or 0, how)
    process.join(20)
    assert process.exitcode
    (left,) = folder.iterdir()
    assert left.suffix == ".part"
    return left


@pytest.fixture(scope="module")
def right(clip: Clip, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return np.array(get(clip, tmp_path_factory.mktemp("right"), images=MANY))


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped(tmp_path_factory.mktemp("killed"))


@pytest.fixture
def orphan(left: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(left, tmp_path))


def test_what_was_killed_goes_on(clip: Clip, orphan: Path, right: np.ndarray, encodings: list[int]) -> None:
    """Only what is missing is encoded, the bits are the same, and nothing but the file is left."""
    told: list[tuple[int, int]] = []
    found = get(clip, orphan.parent, images=MANY, progress=lambda what, done, total: told.append((done, total)))
    assert np.array_equal(found, right)
    assert (encodings, told) == ([9], [(32, 41), (41, 41)])
    only_file(orphan.parent)


def test_what_was_interrupted_goes_on(
    clip: Clip, tmp_path: Path, right: np.ndarray, encodings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, which also notes what no note was made of yet; before the first picture there is nothing to keep."""

    def interrupt(at: int, what: str, done: int, total: int) -> None:
        if done >= at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(clip, tmp_path, images=MANY, progress=partial(interrupt, 16))
    assert names(tmp_path) != set()
    assert np.array_equal(get(clip, tmp_path, images=MANY), right)
    assert encodings == [16, 16, 9]
    only_file(tmp_path)
    monkeypatch.setattr(Part, "add", partial(interrupt, 0, "adding", 1))
    with pytest.raises(KeyboardInterrupt):
        get(clip, tmp_path / "early", images=MANY)
    assert names(tmp_path / "early") == set()


class Slow(ArrayImages):
    def read(self, index: int) -> Any:
        time.sleep(2)
        return super().read(index)


def encode_slowly(folder: str, begun: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell started in the background ignores it
    torch.set_num_threads(2)
    begun.set()
    get(tiny_clip(), Path(folder), images=Slow(MANY.pixels))


def test_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    """Not after the chunks that are being read, each of which takes half a minute."""
    spawn = multiprocessing.get_context("spawn")
    begun = spawn.Event()
    process = spawn.Process(target=encode_slowly, args=(str(tmp_path), begun))
    process.start()
    assert begun.wait(60)
    time.sleep(1.0)
    os.kill(process.pid or 0, signal.SIGINT)
    process.join(20)  # a busy machine takes its time to end a process
    assert process.exitcode == 1  # what a KeyboardInterrupt is to multiprocessing
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: HEADER + 64 * 16],  # in the middle of the data
        lambda data: data[: HEADER // 2],
        lambda data: b"",
        lambda data: data + b"\0",
        lambda data: bytes(len(data)),
        lambda data: data[: HEADER + 100] + b"\1" + data[HEADER + 101 :],  # one byte of a row
        lambda data: data[: -NOTE.size] + bytes(NOTE.size),  # killed before the first note
        lambda data: data[: -NOTE.size] + b"\1" + data[1 - NOTE.size :],  # of another key
        lambda data: data[:-12] + struct.pack("<Q", 41) + data[-4:],  # says more than there is
        lambda data: data[:-12] + struct.pack("<Q", 2**60) + data[-4:],
        lambda data: data.replace(b"(41, 16)", b"(16, 41)"),
        lambda data: data.replace(b"<f4", b"<i4"),
    ],
)
def test_a_damaged_or_foreign_part_is_not_trusted(
    clip: Clip, orphan: Path, right: np.ndarray, encodings: list[int], damage: Any
) -> None:
    """All is encoded, into another part; this one goes when it is a day old."""
    good = orphan.read_bytes()
    orphan.write_bytes(damage(good))
    assert orphan.read_bytes() != good
    assert np.array_equal(get(clip, orphan.parent, images=MANY), right)
    assert encodings == [16, 16, 9]
    age(orphan, 25)
    get(clip, orphan.parent)
    assert len(list(orphan.parent.glob(NPY))) == len(names(orphan.parent)) == 2


def test_a_part_that_is_being_filled_is_left_alone(
    clip: Clip, tmp_path: Path, right: np.ndarray, encodings: list[int]
) -> None:
    """While its process lives it is not taken up, though it is good; when that is killed, it is."""
    spawn = multiprocessing.get_context("spawn")
    reached = spawn.Event()
    process = spawn.Process(target=encode_as_far_as, args=(32, str(tmp_path), reached))
    process.start()
    assert reached.wait(60)
    (part,) = tmp_path.iterdir()
    assert np.array_equal(get(clip, tmp_path, images=MANY), right)
    assert encodings == [16, 16, 9]
    assert names(tmp_path) == {part.name, next(tmp_path.glob(NPY)).name}
    process.kill()
    process.join(20)
    next(tmp_path.glob(NPY)).unlink()
    assert np.array_equal(get(clip, tmp_path, images=MANY), right)
    assert encodings == [16, 16, 9, 9]
    only_file(tmp_path)


def take_up(barrier: Any, folder: str, out: Any) -> None:
    """One of three processes that find the same part at once."""
    torch.set_num_threads(1)
    clip, done = tiny_clip(), []
    barrier.wait(60)
    found = get(clip, Path(folder), images=MANY, progress=lambda what, at, total: (done.append(at), time.sleep(0.3)))
    out.put((done[0], np.array(found).tobytes()))


def test_only_one_takes_up_a_part(orphan: Path, right: np.ndarray) -> None:
    """The others begin anew, and all end right, with one file."""
    spawn = multiprocessing.get_context("spawn")
    barrier, out = spawn.Barrier(3), spawn.Queue()
    processes = [spawn.Process(target=take_up, args=(barrier, str(orphan.parent), out)) for _ in range(3)]
    for process in processes:
        process.start()
    found = [out.get(timeout=90) for _ in processes]
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted(first for first, _ in found) == [16, 16, 32]
    assert {data for _, data in found} == {right.tobytes()}
    only_file(orphan.parent)


def test_a_part_that_no_longer_fits_goes(clip: Clip, orphan: Path, allow: Any) -> None:
    """The budget may have become smaller meanwhile."""
    allow(SIZE)
    with pytest.warns(NotKept, match="would keep them"):
        assert get(clip, orphan.parent, images=MANY) is None
    assert names(orphan.parent) == set()


def test_a_part_that_is_removed_while_it_is_filled_is_made_anew(
    clip: Clip, orphan: Path, right: np.ndarray, encodings: list[int]
) -> None:
    """By another process that takes it for one of the dead: an old one that was just taken up."""
    found = get(clip, orphan.parent, images=MANY, progress=lambda *_: orphan.unlink(missing_ok=True))
    assert np.array_equal(found, right)
    assert encodings == [9, 16, 16, 9]
    only_file(orphan.parent)


def test_notes_are_made_as_time_goes_by(clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After data is on disk, and not with every chunk, since that waits for the disk."""
    calls: list[str] = []
    clock = itertools.count(time.monotonic())
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    fsync, write = os.fsync, Part.write
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle)))

    def writing(self: Part, at: int, data: memoryview) -> None:
        calls.append({self.noted_at: "note", self.begin + self.size: "sums"}.get(at, "rows"))
        write(self, at, data)

    monkeypatch.setattr(Part, "write", writing)
    get(clip, tmp_path, images=some_images(4, 16 * 6))
    assert calls == [*["rows"] * 4, "fsync", "note", "rows", "rows", "sums", "fsync"]


# --- fp16 -----------------------------------------------------------------------------------------------------------


def test_patches_are_kept_in_fp16(clip: Clip, tmp_path: Path, encodings: list[int]) -> None:
    """Half the bytes, the tower's numbers to fp16's last place, and the same bits when opened again."""
    first = get(clip, tmp_path, stage="patches")
    with torch.no_grad():
        exact = clip.vision(torch.stack([PLAIN(IMAGES.read(i)) for i in range(5)]), "pixels", "patches")
    assert first.dtype == np.float16
    assert first.shape == exact.shape == (5, 1 + 4, 16)
    assert np.array_equal(first, exact.half().numpy())
    path = only_file(tmp_path)
    assert np.load(path).dtype == np.float16  # numpy's own format
    assert path.stat().st_size == HEADER + 2 * 5 * 5 * 16 + 8  # behind it two checksums
    assert np.array_equal(get(clip, tmp_path, stage="patches"), first)
    assert encodings == [5]


@pytest.mark.parametrize("stage", ["embedded", "block1", "features"])
def test_all_else_is_kept_in_fp32(clip: Clip, tmp_path: Path, stage: str) -> None:
    assert get(clip, tmp_path, stage=stage).dtype == np.float32
    assert np.load(only_file(tmp_path)).dtype == np.float32


def test_a_file_of_patches_in_fp32_is_made_anew(
    clip: Clip, tmp_path: Path, encodings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Used as it is, its numbers would be others than everybody else's."""
    with monkeypatch.context() as before:
        before.setattr(encoder_module, "HALF", ())
        assert get(clip, tmp_path, stage="patches").dtype == np.float32
    with pytest.warns(Note, match="is damaged; it is made anew"):
        assert get(clip, tmp_path, stage="patches").dtype == np.float16
    assert encodings == [5, 5]
    assert np.load(only_file(tmp_path)).dtype == np.float16


@pytest.mark.parametrize(("scale", "fits"), [(65504.0, True), (65536.0, False), (float("nan"), False)])
def test_what_fp16_cannot_hold_is_an_error(tmp_path: Path, scale: float, fits: bool) -> None:
    """65504 is fp16's largest number; beyond it nothing is stored, and the error says what to try."""
    clip = tiny_clip()
    clip.vision.leave = lambda x: torch.full((len(x), 5, 16), scale)
    if fits:
        assert (np.asarray(get(clip, tmp_path, stage="patches")) == scale).all()
        return
    with pytest.raises(UserError, match=r"'patches' reach (6.55e\+04|nan); .* 65504. Try backbone.precision=fp32"):
        get(clip, tmp_path, stage="patches")
    assert list(tmp_path.iterdir()) == []


# --- the budget -----------------------------------------------------------------------------------------------------

SIZE = HEADER + 4 * 5 * 16 + 8  # of one file of features


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the budget, in bytes. Each test is told anew what does not fit."""
    feature_cache.tell.cache_clear()
    return lambda size: monkeypatch.setenv("FEDTAILOR_CACHE_GB", str(size / 1e9))


def name_of(digest: str) -> str:
    return Encoder(tiny_clip(), digest, PLAIN, "features", CPU).key(IMAGES) + ".npy"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def age(path: Path, hours: float) -> None:
    when = time.time() - 3600 * hours
    os.utime(path, (when, when))


def filled(clip: Clip, folder: Path, *digests: str) -> None:
    """Files nobody has open, the first the longest unused."""
    for hours, digest in enumerate(reversed(digests), start=1):
        assert get(clip, folder, digest=digest) is not None
        age(folder / name_of(digest), hours)


@pytest.mark.parametrize(("given", "size"), [("", 20e9), ("3", 3e9), ("0.5", 5e8), ("0", 0), ("inf", float("inf"))])
def test_a_budget(monkeypatch: pytest.MonkeyPatch, given: str, size: float) -> None:
    monkeypatch.setenv("FEDTAILOR_CACHE_GB", given)
    assert budget() == size


@pytest.mark.parametrize("given", ["ten", "-1", "nan", "20GB"])
def test_a_budget_that_is_none(clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """What was given, and what is allowed; before anything is encoded, and even if the file is there."""
    get(clip, tmp_path)
    monkeypatch.setenv("FEDTAILOR_CACHE_GB", given)
    with pytest.raises(UserError, match=rf"FEDTAILOR_CACHE_GB is '{given}'; it takes gigabytes, .* 0 keeps nothing"):
        get(clip, tmp_path)


def test_the_default_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDTAILOR_CACHE_GB", raising=False)
    assert budget() == 20e9


def test_the_longest_unused_makes_room(clip: Clip, tmp_path: Path, allow: Any) -> None:
    """Three fit. b is the oldest of the files, but a is what was not opened for longest."""
    filled(clip, tmp_path, "b", "a", "c")
    assert get(clip, tmp_path, digest="b") is not None
    allow(3 * SIZE)
    get(clip, tmp_path, digest="new")
    assert names(tmp_path) == {name_of("b"), name_of("c"), name_of("new")}


def test_no_more_goes_than_has_to(clip: Clip, tmp_path: Path, allow: Any) -> None:
    filled(clip, tmp_path, "a", "b", "c")
    allow(4 * SIZE)
    get(clip, tmp_path, digest="new")
    assert len(names(tmp_path)) == 4
    allow(2 * SIZE)
    get(clip, tmp_path, digest="newer")
    assert names(tmp_path) == {name_of("new"), name_of("newer")}


def test_what_is_open_here_stays(clip: Clip, tmp_path: Path, allow: Any) -> None:
    """a is mapped twice, of which one is let go; b, used later, goes in its place. Let go of a, and it goes too."""
    filled(clip, tmp_path, "a", "b")
    opened, again = get(clip, tmp_path, digest="a"), get(clip, tmp_path, digest="a")
    del again
    age(tmp_path / name_of("a"), 99)
    allow(2 * SIZE)
    get(clip, tmp_path, digest="new")
    assert names(tmp_path) == {name_of("a"), name_of("new")}
    del opened
    get(clip, tmp_path, digest="newer")
    assert names(tmp_path) == {name_of("new"), name_of("newer")}


def test_a_map_in_a_cycle_does_not_count(clip: Clip, tmp_path: Path, allow: Any) -> None:
    """An earlier run that is over, but for the garbage collector, keeps nothing from going."""
    loop: list[Any] = [get(clip, tmp_path, digest="a")]
    loop.append(loop)
    del loop
    allow(SIZE)
    assert get(clip, tmp_path, digest="new") is not None
    assert names(tmp_path) == {name_of("new")}


def test_what_never_fits_is_not_written(clip: Clip, tmp_path: Path, allow: Any) -> None:
    """Larger than the whole budget: nothing goes, nothing comes, and the user is told, once, what would do."""
    filled(clip, tmp_path, "a")
    allow(SIZE + 10)
    with pytest.warns(NotKept) as told:
        found = [get(clip, tmp_path, digest="new", images=some_images(count=6)) for _ in range(2)]
    assert found == [None, None]
    assert names(tmp_path) == {name_of("a")}
    (warning,) = told.list
    assert "caching 6 images takes 520 B, more than FEDTAILOR_CACHE_GB=4.66e-07" in str(warning.message)
    assert "FEDTAILOR_CACHE_GB=1 would keep them" in str(warning.message)


def test_what_does_not_fit_beside_open_files_is_not_written(clip: Clip, tmp_path: Path, allow: Any) -> None:
    """Half of the budget is mapped here; a file that is more than the other half removes nothing in vain."""
    filled(clip, tmp_path, "a", "b")
    opened = get(clip, tmp_path, digest="b")
    allow(2 * SIZE - 1)
    with pytest.warns(NotKept, match="would keep them"):
        assert get(clip, tmp_path, digest="new") is None
    assert names(tmp_path) == {name_of("a"), name_of("b")}
    assert opened is not None


def test_how_much_would_do(tmp_path: Path, allow: Any) -> None:
    """The shortfall is that of an emptied folder."""
    (tmp_path / f"{'a' * 64}.npy").write_bytes(b"0" * 100)
    allow(1000)
    assert make_room(tmp_path, "b" * 64, 1200) == pytest.approx(200)
    assert make_room(tmp_path, "b" * 64, 900) <= 0
    assert len(names(tmp_path)) == 1
    assert make_room(tmp_path, "b" * 64, 901) <= 0
    assert names(tmp_path) == set()


def test_a_file_that_cannot_be_removed_is_left_out(
    clip: Clip, tmp_path: Path, allow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where another process has it mapped: the next one goes; if there is none, nothing is kept."""
    filled(clip, tmp_path, "a", "b")
    unlink = Path.unlink

    def guarded(path: Path, missing_ok: bool = False) -> None:
        if path.name == name_of("a"):
            raise PermissionError("in use")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", guarded)
    allow(2 * SIZE)
    get(clip, tmp_path, digest="new")
    assert names(tmp_path) == {name_of("a"), name_of("new")}
    allow(SIZE)
    with pytest.warns(NotKept):
        assert get(clip, tmp_path, digest="newer") is None


def test_nothing_is_kept_at_0(clip: Clip, tmp_path: Path, allow: Any, encodings: list[int]) -> None:
    """Not even a file that is there is used, nor removed; the user said so, and is not told."""
    filled(clip, tmp_path, "a")
    allow(0)
    assert get(clip, tmp_path, digest="a") is None
    assert get(clip, tmp_path, digest="new") is None
    assert names(tmp_path) == {name_of("a")}
    assert encodings == [5]


def test_parts_of_the_dead_are_cleared(clip: Clip, tmp_path: Path) -> None:
    """What nobody wrote to for a day, also of this very key; a younger one, and what is not ours, stays."""
    key = name_of("w")[:12]
    old = [tmp_path / f"{key}-abcd_123.part", tmp_path / "0123456789ab-x.part"]
    stays = [tmp_path / f"{key}-young.part", tmp_path / "film.part", tmp_path / "play.npy"]
    for path in (*old, *stays):
        path.write_bytes(b"0")
        age(path, 25)
    age(stays[0], 23)
    get(clip, tmp_path)
    assert names(tmp_path) == {name_of("w"), *(path.name for path in stays)}


def test_a_part_in_the_making_counts(clip: Clip, tmp_path: Path, allow: Any) -> None:
    """Another process's file takes its room already, unless it is the same one as is to be written here."""
    (tmp_path / f"{name_of('w')[:12]}-same.part").write_bytes(b"0" * SIZE)
    allow(SIZE)
    assert get(clip, tmp_path) is not None
    (tmp_path / "0123456789ab-other.part").write_bytes(b"0" * SIZE)
    allow(3 * SIZE - 1)  # for both parts and the new file, once the one that is there has gone
    with pytest.warns(NotKept):
        assert get(clip, tmp_path, digest="new") is None


def test_what_is_not_ours_stays(clip: Clip, tmp_path: Path, allow: Any) -> None:
    """A budget is for the cache's own files, wherever its folder is."""
    mine = tmp_path / "thesis.npy"
    mine.write_bytes(b"0" * 10 * SIZE)
    age(mine, 999)
    filled(clip, tmp_path, "a")
    allow(SIZE)
    assert get(clip, tmp_path, digest="new") is not None
    assert names(tmp_path) == {mine.name, name_of("new")}


def test_files_of_earlier_versions_make_room(clip: Clip, tmp_path: Path, allow: Any) -> None:
    """Nobody reads them any more, and they count."""
    old = tmp_path / f"{'0' * 64}.act"
    old.write_bytes(b"0" * SIZE)
    allow(2 * SIZE)
    get(clip, tmp_path, digest="a")
    assert names(tmp_path) == {old.name, name_of("a")}
    age(old, 99)
    get(clip, tmp_path, digest="b")
    assert names(tmp_path) == {name_of("a"), name_of("b")}


def test_a_damaged_file_does_not_count_against_its_own_repair(clip: Clip, tmp_path: Path, allow: Any) -> None:
    filled(clip, tmp_path, "a", "b")
    (tmp_path / name_of("a")).write_bytes(b"0" * SIZE)
    allow(2 * SIZE)
    with pytest.warns(Note, match="is damaged; it is made anew"):
        assert get(clip, tmp_path, digest="a") is not None
    assert names(tmp_path) == {name_of("a"), name_of("b")}


def test_the_doctor_looks_at_it(clip: Clip, tmp_path: Path, allow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is, how much it holds and may hold; a budget that is none is a fault."""
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path))
    filled(clip, tmp_path, "a")
    allow(3.5e9)
    found = {finding.what: finding for finding in installation.examine()}["feature cache"]
    assert found.found == f"{tmp_path}, 1 files, 456 B; at most 3.5 GB (FEDTAILOR_CACHE_GB)"
    assert found.verdict == "good"
    monkeypatch.setenv("FEDTAILOR_CACHE_GB", "much")
    assert (installation.cache().verdict, "'much'" in installation.cache().found) == ("bad", True)


# --- two at once ----------------------------------------------------------------------------------------------------


def test_removed_under_an_open_map(clip: Clip, tmp_path: Path) -> None:
    """What another process removes is still there for who has it open, and is made anew for the next."""
    opened = get(clip, tmp_path)
    right = np.array(opened)
    only_file(tmp_path).unlink()
    assert np.array_equal(opened, right)
    assert np.array_equal(get(clip, tmp_path), right)
    only_file(tmp_path)


def test_removed_while_it_is_opened(
    clip: Clip, tmp_path: Path, encodings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the header's reading and the map: the handle holds the file."""
    right = np.array(get(clip, tmp_path))
    read = npy.read_array_header_1_0

    def evicting(file: Any) -> Any:
        only_file(tmp_path).unlink()
        return read(file)

    monkeypatch.setattr(npy, "read_array_header_1_0", evicting)
    assert np.array_equal(get(clip, tmp_path), right)
    assert encodings == [5]
    assert names(tmp_path) == set()


@pytest.mark.parametrize("times", [1, 2])
def test_removed_before_it_is_opened(
    clip: Clip, tmp_path: Path, encodings: list[int], monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A new file that is gone at once is made a second time; a disk that loses it again is an error."""
    replace, moves = Path.replace, []

    def evicting(path: Path, target: Path) -> None:
        moves.append(replace(path, target))
        if len(moves) <= times:
            target.unlink()

    monkeypatch.setattr(Path, "replace", evicting)
    if times == 1:
        assert get(clip, tmp_path) is not None
    else:
        with pytest.raises(UserError, match="changed while it was written"):
            get(clip, tmp_path)
    assert encodings == [5, 5]


def test_removed_by_two_at_once(clip: Clip, tmp_path: Path, allow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both look at the folder, the other removes everything first: that is room, too."""
    filled(clip, tmp_path, "a", "b", "c")
    stat, gone = Path.stat, []

    def evicting(path: Path, **how: Any) -> Any:
        if path.name == name_of("a") and not gone:
            gone.append(path.unlink())
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", evicting)
    remove = feature_cache.remove

    def late(path: Path) -> bool:
        path.unlink()
        return remove(path)

    monkeypatch.setattr(feature_cache, "remove", late)
    allow(2 * SIZE)
    assert get(clip, tmp_path, digest="new") is not None
    assert names(tmp_path) == {name_of("c"), name_of("new")}


def churn(barrier: Any, folder: Path, number: int) -> None:
    """One of two processes in a folder with room for two files, each in need of seven, over and over."""
    torch.set_num_threads(1)
    clip, kept = tiny_clip(), []
    barrier.wait(90)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotKept)  # beside the other's part there may be no room
        for i in range(30):
            found = get(clip, folder, digest=str((i * (2 * number + 1)) % 7))
            if found is not None:
                kept.append(np.array(found))
    assert len(kept) > 5
    assert all(np.array_equal(values, kept[0]) for values in kept)


def test_two_processes_in_a_folder_too_small_for_both(tmp_path: Path, allow: Any) -> None:
    """Each removes what the other is opening; neither crashes, and what is left is little and whole."""
    allow(2 * SIZE)
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(2)
    other = spawn.Process(target=churn, args=(barrier, tmp_path, 1))
    other.start()
    churn(barrier, tmp_path, 0)
    other.join(60)
    assert other.exitcode == 0
    assert {path.stat().st_size for path in tmp_path.glob("*.npy")} == {SIZE}
    assert len(names(tmp_path)) <= 3  # the last of each may have come at once
