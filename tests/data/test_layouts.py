"""The layouts that people's own pictures come in: classes, sites and splits, read off the folders or a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import paint, toy, write

from conftest import Call
from fedtailor.base.errors import UserError
from fedtailor.data import find_sites, for_site, open_dataset
from fedtailor.data.dataset import Dataset, FileImages, Split
from fedtailor.data.datasets.files import hold_out
from fedtailor.data.datasets.own import folder, table
from fedtailor.data.federation import Federation, federate
from fedtailor.data.federation import hold_out as validate
from fedtailor.data.partitions.iid import Iid
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import deal

SITES, CLASSES = ("north", "south", "west"), ("cat", "dog")


def listed(split: Split) -> list[str]:
    assert isinstance(split.images, FileImages)
    return list(split.images.paths)


def tell(dataset: Dataset, split: Split) -> list[tuple[str, str, str]]:
    """Site, class and file name of each picture."""
    assert split.labels is not None
    sites = [""] * len(split) if split.sites is None else [dataset.site_names[site] for site in split.sites]
    names = [Path(path).name for path in listed(split)]
    return list(zip(sites, (dataset.classes[label] for label in split.labels), names, strict=True))


LAYOUTS: dict[str, Callable[[str, str, str], str]] = {
    "split/class": lambda site, split, label: f"{split}/{label}",
    "split/site/class": lambda site, split, label: f"{split}/{site}/{label}",
    "site/split/class": lambda site, split, label: f"{site}/{split}/{label}",
    "nested": lambda site, split, label: f"{site}/{split}/{label}/2024/may",
    "spelled": lambda site, split, label: f"{split.capitalize()}ing/{site}/{label}",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_splits_sites_and_classes(tmp_path: Path, layout: str) -> None:
    """Broken: pictures of a common layout are read with a wrong label, site or split, or not at all."""
    for site in SITES:
        for split in ("train", "test"):
            for label in CLASSES:
                paint(tmp_path / LAYOUTS[layout](site, split, label) / f"{site}-{split}-{label}.png")
    dataset = folder(tmp_path)
    assert dataset.classes == CLASSES
    sited = layout != "split/class"
    assert dataset.site_names == (SITES if sited else ())
    for name, split in (("train", dataset.train), ("test", dataset.test)):
        expected = {(site if sited else "", label, f"{site}-{name}-{label}.png") for site in SITES for label in CLASSES}
        assert set(tell(dataset, split)) == expected
        assert len(split) == 6
    assert not [note for note in dataset.notes if "test" in note]
    assert find_sites(f"folder:{tmp_path}") == (3 if sited else 0)


def test_sites_without_a_split(tmp_path: Path) -> None:
    """Broken: site/class is taken for classes, or some site has nothing to test on."""
    for site in SITES:
        for label in CLASSES:
            for number in range(10):
                paint(tmp_path / site / label / f"{number}.png")
    dataset = folder(tmp_path)
    assert (dataset.site_names, dataset.classes) == (SITES, CLASSES)
    assert (len(dataset.train), len(dataset.test)) == (48, 12)
    assert dataset.test.sites is not None
    assert np.bincount(dataset.test.sites).tolist() == [4, 4, 4]
    assert dataset.notes[0] == "3 sites: north, south, west"
    assert "every fifth of a class's pictures is held out, 12 of 60 pictures" in dataset.notes[1]


def test_folders_in_a_class_are_the_class_s(tmp_path: Path) -> None:
    """Broken: pictures deeper than a class are lost, or their folders are taken for classes."""
    for path in ("cat/a.png", "cat/may/b.png", "cat/may/1/c.png", "dog/june/d.png", "dog/june/deep/e.png"):
        paint(tmp_path / "mixed" / path)
    dataset = folder(tmp_path / "mixed")
    assert (dataset.classes, len(dataset.train)) == (CLASSES, 5)
    for path in ("cat/p1/a.png", "cat/p2/b.png", "dog/p3/d.png"):  # no name twice: no classes of several sites
        paint(tmp_path / "deep" / path)
    assert folder(tmp_path / "deep").classes == CLASSES
    for path in ("cat/images/a.png", "dog/images/d.png"):
        paint(tmp_path / "one" / path)
    assert folder(tmp_path / "one").classes == CLASSES


def test_what_could_be_either_is_asked(tmp_path: Path) -> None:
    """Broken: a tree that may be read in two ways is read in one of them without a word."""
    for path in ("a/x", "a/y", "b/x", "b/z", "b/w"):
        paint(tmp_path / "either" / path / "1.png")
    with pytest.raises(UserError, match=r"sites or classes\? x is in several of a, b, w in one only; write the class"):
        folder(tmp_path / "either")
    write(tmp_path / "either/classes.txt", *"wxyz")
    assert (folder(tmp_path / "either").site_names, folder(tmp_path / "either").classes) == (("a", "b"), tuple("wxyz"))
    write(tmp_path / "either/classes.txt", *"ab")
    assert (folder(tmp_path / "either").site_names, folder(tmp_path / "either").classes) == ((), ("a", "b"))
    paint(tmp_path / "lone/photos/cat/1.png")
    paint(tmp_path / "lone/photos/dog/1.png")
    with pytest.raises(UserError, match=r"in folders of the one folder photos; give .*lone/photos, or write"):
        folder(tmp_path / "lone")
    paint(tmp_path / "half/north/train/cat/1.png")
    paint(tmp_path / "half/south/cat/1.png")
    with pytest.raises(UserError, match=r"north is divided into train and test, .*south is not"):
        folder(tmp_path / "half")


def test_a_site_of_a_deployment_knows_its_classes(tmp_path: Path) -> None:
    """Broken: a site's wards become classes though the federation has named those."""
    for path in ("ward_a/red_fox/1.png", "ward_a/owl/2.png", "ward_b/owl/3.png"):
        paint(tmp_path / path)
    dataset = for_site(f"folder:{tmp_path}", None, ("owl", "red fox", "badger"))
    assert [label for _, label, _ in tell(dataset, dataset.train)] == ["owl", "red fox", "owl"]


def test_validation_pictures(tmp_path: Path) -> None:
    """Broken: val/ is trained on, or left out without a word."""
    for number in range(3):
        paint(tmp_path / f"train/cat/{number}.png")
        paint(tmp_path / f"val/cat/{number}.png")
    dataset = folder(tmp_path)
    assert listed(dataset.test) == ["val/cat/0.png", "val/cat/1.png", "val/cat/2.png"]
    assert dataset.notes == ("no test pictures: the 3 validation pictures are tested on",)
    paint(tmp_path / "test/cat/t.png")
    dataset = folder(tmp_path)
    assert (listed(dataset.test), len(dataset.train)) == (["test/cat/t.png"], 3)
    assert dataset.notes[0].startswith("3 validation pictures are not used")
    write(tmp_path / "list.csv", "path,label,split", "a.png,cat,Train", "b.png,cat,validation")
    made = table(tmp_path / "list.csv")
    assert (listed(made.train), listed(made.test)) == (["a.png"], ["b.png"])


def test_training_folders_alone_are_divided(tmp_path: Path) -> None:
    """Broken: pictures in train/ alone end in "nothing could be measured"; at a deployed site, that is as it should."""
    for number in range(10):
        paint(tmp_path / f"train/cat/{number}.png")
    dataset = folder(tmp_path)
    assert (len(dataset.train), listed(dataset.test)) == (8, ["train/cat/4.png", "train/cat/9.png"])
    assert len(for_site(f"folder:{tmp_path}", None, ("cat",)).test) == 0


def test_pictures_outside_the_layout_are_told(tmp_path: Path) -> None:
    for path in ("loose.png", "train/cat/a.png", "test/cat/b.png", "extra/c.png"):
        paint(tmp_path / path)
    told = "2 picture(s) outside the class folders are not used (extra/c.png, loose.png)"
    assert folder(tmp_path).notes == (told,)


def test_a_link_to_a_folder_above_is_no_class(tmp_path: Path) -> None:
    for name in CLASSES:
        paint(tmp_path / name / "1.png")
    (tmp_path / "self").symlink_to(tmp_path, target_is_directory=True)
    assert folder(tmp_path).classes == CLASSES


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], r"has no pictures \(their names must end in"),
        (["a.png", "b.png"], "the 2 pictures in .* lie in no class folders; put them into one folder per class"),
    ],
)
def test_nothing_in_class_folders(names: list[str], told: str, tmp_path: Path) -> None:
    """Broken: who gives an empty folder, or one of loose pictures, is told of classes.txt."""
    for name in names:
        paint(tmp_path / name)
    with pytest.raises(UserError, match=told):
        folder(tmp_path)


def test_clutter_and_circles(tmp_path: Path) -> None:
    """Broken: what a file server or an archive leaves behind becomes a class, or a link upwards never ends."""
    for path in ("cat/a.png", "dog/b.png", "__MACOSX/cat/a.png", "@eaDir/b.png", ".hidden/c.png"):
        paint(tmp_path / path)
    (tmp_path / "cat/up").symlink_to(tmp_path, target_is_directory=True)
    dataset = folder(tmp_path)
    assert (dataset.classes, sorted(listed(dataset.train))) == (CLASSES, ["cat/a.png", "dog/b.png"])


# --- groups ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=80))
def test_groups_are_held_out_whole(pairs: list[tuple[int, int]]) -> None:
    """Broken: a patient's pictures are on both sides, or a class of several patients is not tested."""
    labels, groups = (np.array(values, dtype=np.int64) for values in zip(*pairs, strict=True))
    train, test = hold_out(labels, groups=groups)
    assert sorted([*train, *test]) == list(range(len(pairs)))
    assert not set(groups[train]) & set(groups[test])
    for label in set(labels.tolist()):
        pure = {g for g in set(groups[labels == label].tolist()) if (labels[groups == g] == label).all()}
        if len(pure) == len(set(groups[labels == label].tolist())) > 1:
            assert label in labels[test]
            assert label in labels[train]


def test_a_table_with_patients(tmp_path: Path) -> None:
    """Broken: the column is ignored under the name that hospitals give it, or a split that tears a patient passes."""
    rows = [f"{number}.png,{'ab'[number % 2]},p{number // 4}" for number in range(40)]
    write(tmp_path / "list.csv", "path,label,Patient", *rows)
    dataset = table(tmp_path / "list.csv")
    assert dataset.train.groups is not None
    assert dataset.test.groups is not None
    assert not set(dataset.train.groups) & set(dataset.test.groups)
    assert len(dataset.test) == 8
    assert "every fifth of a class's groups is held out, 8 of 40 pictures" in dataset.notes[0]
    write(tmp_path / "torn.csv", "path,label,group,split", "1.png,a,p1,train", "2.png,a,p1,test", "3.png,a,p2,train")
    with pytest.raises(UserError, match=r"1 group\(s\) have pictures in train and in test, the first is 'p1'; put all"):
        table(tmp_path / "torn.csv")
    write(tmp_path / "some.csv", "path,label,group", "1.png,a,p1", "2.png,a,")
    with pytest.raises(UserError, match="1 of 2 data rows have no group"):
        table(tmp_path / "some.csv")


@given(st.integers(0, 20))
def test_validation_and_the_server_s_part_leave_groups_whole(seed: int) -> None:
    """Broken: data.validation or data.server tests on a patient who is trained on."""
    dataset = toy([30, 20], [1, 1])
    groups = np.arange(50, dtype=np.int64) // 5
    dataset = replace(dataset, train=replace(dataset.train, groups=groups))
    made: Federation = validate(federate(dataset, Iid(), 2, seed), 0.2, seed)
    assert made.held is not None
    trained = np.concatenate([share.train for share in made.shares])
    assert not set(groups[made.held]) & set(groups[trained])
    assert len(made.held) == 15  # a fifth is six and four pictures: two groups of five and one
    apart = federate(dataset, Iid(), 2, seed, server_part=0.25)
    assert apart.server is not None
    assert apart.server.groups is not None
    assert apart.dataset.train.groups is not None
    assert not set(apart.server.groups) & set(apart.dataset.train.groups)
    assert 12 <= len(apart.server) <= 16


# --- sites as clients -----------------------------------------------------------------------------------------------


@pytest.fixture
def hospitals(tmp_path: Path) -> str:
    for site in SITES:
        for label in CLASSES:
            for number in range(5):
                paint(tmp_path / "scans" / site / label / f"{number}.png", value=number)
    return f"folder:{tmp_path / 'scans'}"


def test_sites_are_the_clients(hospitals: str) -> None:
    """Broken: a user with folders of sites has to say partition, clients and fraction, or gets 20 made-up clients."""
    run = make_run("promptfl", {"data": hospitals})
    assert (run.data.partition.name, run.clients, run.fraction) == ("site", 3, 1.0)
    federation, _ = deal(run)
    assert federation.sizes.tolist() == [8, 8, 8]
    again = make_run(settings={"data": hospitals, "data.partition": "site"})
    assert again.clients == 3
    assert make_run("fedotp", {"data": hospitals, "preset": "original"}).clients == 3  # not that paper's federation


def test_what_is_said_wins(hospitals: str) -> None:
    """Broken: who asks for another federation than that of the sites does not get it."""
    for more in (
        {"data.partition": "iid"},
        {"data.alpha": 0.5},
        {"data.partition.alpha": 0.5},
        {"data.partition": "dirichlet", "clients": 5},
    ):
        run = make_run("promptfl", {"data": hospitals, **more})
        assert run.data.partition.name == more.get("data.partition", "dirichlet")
        assert run.clients == more.get("clients", 20)
    with pytest.raises(
        UserError, match=r"has 3 sites and was to go to 5 clients; set clients=3, or another data\.part"
    ):
        deal(make_run("promptfl", {"data": hospitals, "clients": 5}))


def test_one_site_is_no_federation(tmp_path: Path) -> None:
    write(tmp_path / "list.csv", "path,label,site", "a.png,cat,north", "b.png,dog,north")
    assert make_run(settings={"data": f"csv:{tmp_path / 'list.csv'}"}).data.partition.name == "dirichlet"
    assert make_run(settings={"data": f"csv:{tmp_path / 'nowhere.csv'}"}).clients == 20  # opening it will tell


def test_data_without_its_form_gets_a_hint(tmp_path: Path, call: Call) -> None:
    """Broken: data=photos, where photos is a folder, ends in "unknown dataset" alone."""
    paint(tmp_path / "photos/cat/a.png")
    write(tmp_path / "list.csv", "path,label", "a.png,cat")
    assert "unknown dataset 'photos'; for your own pictures write folder:photos" in call("run", "data=photos").err
    assert "write csv:list.csv" in call("data", "check", "list.csv").err
    assert "write csv:list.csv" in call("data", "show", "table:list.csv").err
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        open_dataset("cifar-10")
