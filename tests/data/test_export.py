import csv
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toys import toy, write

from fedtailor.base.errors import UserError
from fedtailor.cli import main
from fedtailor.data import for_server, for_site, open_dataset
from fedtailor.data.dataset import ArrayImages, Dataset, FileImages, Split
from fedtailor.data.datasets.files import readable, spelled
from fedtailor.data.export import write_sites
from fedtailor.data.federation import Federation, federate
from fedtailor.data.partitions.base import Share
from fedtailor.data.partitions.dirichlet import Dirichlet
from fedtailor.data.partitions.iid import Iid
from fedtailor.data.partitions.site import BySite

CLASSES = ("fox", "T-shirt/top", "fox-cub", "a_b", ".hidden")  # "fox/…" sorts behind "fox-cub/…", "fox" does not
CLIENTS = 11  # "site-10" sorts before "site-2"


def pictures(count: int, seed: int) -> ArrayImages:
    return ArrayImages(np.random.default_rng(seed).integers(0, 256, (count, 5, 7, 3)).astype(np.uint8))


def noise() -> Dataset:
    """Labels in no order, no two pictures alike."""
    train, test = (np.random.default_rng(n).integers(0, len(CLASSES), n).astype(np.int64) for n in (90, 60))
    return Dataset("noise", CLASSES, "a {}.", Split(pictures(90, 0), train), Split(pictures(60, 1), test))


@pytest.fixture
def federation() -> Federation:
    return federate(noise(), Dirichlet(alpha=1.0, min_size=2, min_test=1), CLIENTS, seed=0)


def content(split: Split) -> list[tuple[bytes, int | None]]:
    """Pixels and label of each picture, in order."""
    labels = [None] * len(split) if split.labels is None else split.labels.tolist()
    return [(split.images.read(i).tobytes(), label) for i, label in enumerate(labels)]


@pytest.mark.parametrize("unlabelled", [False, True])
def test_sites_of_their_own_equal_one_process(federation: Federation, tmp_path: Path, unlabelled: bool) -> None:
    """The same pictures, to the pixel, with the same labels, in the same order; and those that were dealt out."""
    summary = write_sites(federation, tmp_path / "d", unlabelled)
    whole = open_dataset(f"csv:{tmp_path / 'd/sites.csv'}")
    assert whole.classes == CLASSES
    again = federate(whole, BySite(), CLIENTS, seed=5)
    dealt = federation.dataset
    for k, (share, given) in enumerate(zip(again.shares, federation.shares, strict=True)):
        name = f"folder:{tmp_path}/d/site-{k}"
        site = for_site(name, None, CLASSES)
        assert content(site.train) == content(whole.train.subset(share.train))
        assert content(site.test) == content(whole.test.subset(share.test))
        expected = replace(dealt.train, labels=None) if unlabelled else dealt.train
        assert sorted(content(site.train), key=repr) == sorted(content(expected.subset(given.train)), key=repr)
        assert sorted(content(site.test)) == sorted(content(dealt.test.subset(given.test)))
        if not unlabelled:
            alone = open_dataset(name)
            held = np.unique(np.concatenate([site.train.labels, site.test.labels]))  # type: ignore[list-item]
            assert set(alone.classes) == {CLASSES[label] for label in held}
            assert [pixels for pixels, _ in content(alone.train)] == [pixels for pixels, _ in content(site.train)]
    assert (whole.train.labels is None) == unlabelled == (not summary["labelled"])
    assert (summary["clients"], summary["train"]) == (CLIENTS, federation.sizes.tolist())
    assert (summary["test"], summary["server_test"]) == (federation.test_sizes.tolist(), 60)
    run = f"fedtailor run data=csv:{tmp_path}/d/sites.csv 'data.template=a {{}}.'"
    assert summary["run"] == run


def test_the_server_has_all_test_pictures_and_all_names(federation: Federation, tmp_path: Path) -> None:
    write_sites(federation, tmp_path)
    server = for_server(f"folder:{tmp_path / 'server'}")
    assert server.classes == CLASSES
    assert len(server.train) == 0
    assert sorted(content(server.test)) == sorted(content(federation.dataset.test))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(
        ["classes.txt", "server", "sites.csv", *(f"site-{k}" for k in range(CLIENTS))]
    )


def test_where_a_picture_is(tmp_path: Path) -> None:
    """Its number is its place in the dataset; the table has its folder as label, and a heap none."""
    federation = Federation(toy([1, 2], [0, 1]), (Share(np.array([2, 0]), np.array([0])), Share(np.array([1]), EMPTY)))
    for name, unlabelled in (("labelled", False), ("heap", True)):
        write_sites(federation, tmp_path / name, unlabelled)
    with (tmp_path / "labelled/sites.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["path", "label", "split", "site"],
            ["site-0/train/kind_0/000000.png", "kind_0", "train", "0"],
            ["site-0/train/kind_1/000002.png", "kind_1", "train", "0"],
            ["site-0/test/kind_1/000000.png", "kind_1", "test", "0"],
            ["site-1/train/kind_1/000001.png", "kind_1", "train", "1"],
        ]
    heap = open_dataset(f"csv:{tmp_path / 'heap/sites.csv'}").train
    assert isinstance(heap.images, FileImages)
    assert heap.images.paths == ("site-0/train/000000.png", "site-0/train/000002.png", "site-1/train/000001.png")


EMPTY = np.empty(0, dtype=np.int64)


def test_what_has_no_labels_or_no_tests_is_written_as_it_is(tmp_path: Path) -> None:
    dataset = toy([4], [0])
    federation = federate(replace(dataset, train=replace(dataset.train, labels=None)), Iid(), 2, seed=0)
    assert not write_sites(federation, tmp_path)["labelled"]
    site = for_site(f"folder:{tmp_path / 'site-1'}", None, dataset.classes)
    assert (len(site.train), site.train.labels, len(site.test)) == (2, None, 0)
    assert for_server(f"folder:{tmp_path / 'server'}").classes == dataset.classes


def test_progress_is_told(federation: Federation, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    write_sites(federation, tmp_path, progress=lambda *step: told.append(step))
    assert told == [("writing images", done, 210) for done in range(1, 211)]  # 90 + 60, and 60 for the server


def test_nothing_is_written_over(federation: Federation, tmp_path: Path) -> None:
    write(tmp_path / "d/notes.txt", "mine")
    for out in (tmp_path / "d", tmp_path / "d/notes.txt"):
        with pytest.raises(UserError, match="is there already, and not empty; give a new folder"):
            write_sites(federation, out)
    assert [entry.name for entry in (tmp_path / "d").iterdir()] == ["notes.txt"]
    with pytest.raises(UserError, match="cannot write into"):
        write_sites(federation, tmp_path / "d/notes.txt/under")


def test_what_the_folders_could_not_say_is_refused(tmp_path: Path) -> None:
    dataset = toy([3, 3], [1, 1])
    with pytest.raises(UserError, match=r"data\.server keeps training images"):
        write_sites(federate(dataset, Iid(), 2, seed=0, server_part=0.5), tmp_path)
    lonely = Federation(dataset, (Share(np.arange(6), EMPTY), Share(EMPTY, np.arange(2))))
    with pytest.raises(UserError, match="site-1 would have nothing to train on"):
        write_sites(lonely, tmp_path)
    with pytest.raises(UserError, match="2 classes whose folder would be called 'red_fox'"):
        write_sites(federate(replace(dataset, classes=("Red fox", "red fox")), Iid(), 2, seed=0), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command(
    pictures: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One JSON object; the run that it names trains on the files; a second time it is refused."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fedtailor", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return out if end.value.code == 0 else err

    deal = ("data", "split", f"folder:{pictures}", "clients=2", "data.partition=iid")
    summary = json.loads(call(*deal, "--out", "my sites", "--json"))
    assert (summary["train"], summary["test"], summary["data"]) == ([24, 24], [18, 18], f"folder:{pictures}")
    rest = (f"backbone={tiny}", "rounds=1", "threads=1", "--quiet", "--json")
    run = json.loads(call(*shlex.split(summary["run"])[1:], *rest))
    assert (run["rounds"], run["data"]) == (1, f"csv:{tmp_path / 'my sites/sites.csv'}")
    assert "not empty" in call(*deal, "--out", "my sites")
    told = call(*deal, "--out", "heap", "--unlabelled")
    assert "2 sites with 48 training and 36 test images, in heap" in told
    assert "fedtailor run data=csv:heap/sites.csv" in told
    assert len(list((tmp_path / "heap/site-1/train").glob("*.png"))) == 24
    assert "Missing option '--out'" in call("data", "split", "drawn")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("T-shirt/top", "T-shirt%2Ftop"),
        ("red fox", "red_fox"),
        ("a_b", "a%5Fb"),
        ("100%", "100%25"),
        ("%2F", "%252F"),
        (".net", "%2Enet"),
        ("etc.", "etc%2E"),
        ("v1.5", "v1.5"),
        (" edge ", "_edge_"),
        ('\\:*?"<>|\n', "%5C%3A%2A%3F%22%3C%3E%7C%0A"),
        ("Füchse", "Füchse"),
    ],
)
def test_class_names_as_file_names(name: str, folder: str) -> None:
    assert spelled(name) == folder
    assert readable(folder) == name


@pytest.mark.parametrize("folder", ["100%", "50%_off", "%41", "%C3%A4", "%2f"])
def test_other_percent_signs_are_left_alone(folder: str) -> None:
    assert readable(folder) == folder.replace("_", " ")


def test_every_sign_comes_back() -> None:
    signs = [chr(code) for code in range(256)]
    assert [readable(spelled(f"{sign}a{sign}{sign}")) for sign in signs] == [f"{sign}a{sign}{sign}" for sign in signs]
    assert not set('/\\:*?"<>|\0\n') & set("".join(map(spelled, signs)))
