from pathlib import Path

import pytest
from toys import write

from fedtailor.base.errors import UserError
from fedtailor.data.dataset import FileImages, Split
from fedtailor.data.datasets.own import table


def paths(split: Split) -> tuple[str, ...]:
    assert isinstance(split.images, FileImages)
    return split.images.paths


def test_all_columns(tmp_path: Path) -> None:
    write(
        tmp_path / "list.csv",
        "site,path,label,split,age",
        "north,a.jpg,red_fox,train,3",
        "south,b.jpg,badger,train,4",
        'south,"c, d.jpg",badger,test,5',
    )
    dataset = table(tmp_path / "list.csv")
    assert dataset.classes == ("badger", "red fox")
    assert (paths(dataset.train), paths(dataset.test)) == (("a.jpg", "b.jpg"), ("c, d.jpg",))
    assert dataset.train.labels is not None
    assert dataset.train.sites is not None
    assert dataset.test.sites is not None
    assert dataset.train.labels.tolist() == [1, 0]
    assert (dataset.train.sites.tolist(), dataset.test.sites.tolist()) == ([0, 1], [1])


def test_without_split_every_fifth_row_of_a_class_is_for_testing(tmp_path: Path) -> None:
    write(tmp_path / "list.csv", "path,label", *(f"{i}.jpg,{'fox' if i % 2 else 'owl'}" for i in range(12)))
    dataset = table(tmp_path / "list.csv")
    assert paths(dataset.test) == ("8.jpg", "9.jpg")
    assert len(dataset.train) == 10


def test_unlabelled(tmp_path: Path) -> None:
    write(tmp_path / "list.csv", "path", "a.jpg", "b.jpg")
    with pytest.raises(UserError, match="names no classes"):
        table(tmp_path / "list.csv")
    write(tmp_path / "classes.txt", "fox", "owl")
    dataset = table(tmp_path / "list.csv")
    assert dataset.classes == ("fox", "owl")
    assert dataset.train.labels is None
    assert (len(dataset.train), len(dataset.test)) == (2, 0)
    assert dataset.test.labels is not None  # nothing to test is not the same as unlabelled


def test_unlabelled_train_rows_take_the_names_of_the_test_rows(tmp_path: Path) -> None:
    write(tmp_path / "list.csv", "path,label,split", "a.jpg,,train", "b.jpg,owl,test", "c.jpg,fox,test")
    dataset = table(tmp_path / "list.csv")
    assert dataset.train.labels is None
    assert dataset.classes == ("fox", "owl")
    assert dataset.test.labels is not None
    assert dataset.test.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("path,label,split", "a,fox,train", "b,,test"), "the test rows have no labels"),
        (("path,label,split", "a,fox,train", "b,fox,test", "c,,test"), r"1 of 2 test rows have no label \(the first"),
        (("path,label,split", "a,fox,train", "b,fox,"), "1 of 2 data rows have no split"),
        (("path,label,split", "a,fox,train", "b,fox,trial"), "split must be train, test or val, got 'trial' for b"),
        (("path,label,split", "a,fox,test"), "no train rows"),
        (("path,label,site", "a,fox,n", "b,fox,"), "1 of 2 data rows have no site"),
        (("path,label", "a,fox", "a,owl"), "lists a 2 times"),
        (("path,label", ",fox"), "row 1 has no path"),
        (("path,label", "a,fox,extra"), "row 1 has 3 fields, the header 2"),
        (("path,lable", "a,fox"), "unknown column 'lable'; did you mean 'label'"),
        (("file,label", "a,fox"), "no column 'path'"),
        (("path,path", "a,b"), "'path' twice"),
        (("path,label",), "no rows"),
        (("",), "no column 'path'"),
        (('path,"label', "a,fox"), "not a well-formed CSV"),
    ],
)
def test_a_wrong_table_says_what_is_wrong(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    write(tmp_path / "list.csv", *lines)
    with pytest.raises(UserError, match=message):
        table(tmp_path / "list.csv")


def test_a_table_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a file"):
        table(tmp_path / "list.csv")
    (tmp_path / "list.csv").write_bytes(b"path\n\xff\xfe")
    with pytest.raises(UserError, match="UTF-8"):
        table(tmp_path / "list.csv")
