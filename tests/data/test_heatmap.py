from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console, RenderableType
from toys import toy

from fedtailor.data.dataset import Split
from fedtailor.data.federation import federate
from fedtailor.data.groups import GROUPS
from fedtailor.data.partitions.iid import Iid
from fedtailor.report.heatmap import TerminalHeatmap, counts_table, save_heatmap, shade


def shown(renderable: RenderableType, width: int = 100) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().splitlines()


def test_the_table_tells_totals_groups_and_spread() -> None:
    federation = federate(toy([60, 30, 10], [5, 5, 5]), Iid(), 4, 0)
    text = "\n".join(shown(counts_table(federation, GROUPS["capt"](federation.counts.sum(axis=0)))))
    assert "3 classes, 4 clients, 100 training and 15 test pictures" in text
    assert "train 25 · 25 · 25" in text
    assert "head: 1 classes, 60 pictures (60%)" in text
    assert "kind 0" in text


def test_a_long_table_is_cut_and_says_so() -> None:
    federation = federate(toy([2] * 45, [1] * 45), Iid(), 2, 0)
    text = "\n".join(shown(counts_table(federation, GROUPS["capt"](federation.counts.sum(axis=0)))))
    assert "and 5 smaller classes, 10 pictures in all" in text


def test_the_table_of_unlabelled_pictures_has_sizes_only() -> None:
    dataset = toy([6], [4])
    federation = federate(replace(dataset, train=Split(dataset.train.images, None)), Iid(), 2, 0)
    text = "\n".join(shown(counts_table(federation, GROUPS["capt"](np.array([1])))))
    assert "train 3 · 3 · 3" in text
    assert "no labels" in text


def test_shades_are_equal_steps_of_the_logarithm() -> None:
    assert shade(np.array([0, 1, 9, 11, 99, 101, 999, 1001, 9998]), 9999).tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_the_heatmap_fits_and_says_what_it_sums() -> None:
    rng = np.random.default_rng(0)
    for clients, classes in ((20, 10), (20, 200), (3, 1), (100, 1000)):
        lines = shown(TerminalHeatmap(rng.integers(0, 300, (clients, classes))))
        assert max(map(len, lines)) <= 100
        assert any("sum of" in line and "classes" in line for line in lines) == (classes > 90)
        assert any("sum of" in line and "clients" in line for line in lines) == (clients > 40)
    empty = shown(TerminalHeatmap(np.zeros((2, 3), dtype=np.int64)))
    assert empty[0].rstrip().endswith("·········")


def test_the_picture_is_saved_without_touching_pyplot(tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    open_before = plt.get_fignums()
    for name, counts in (("a.png", np.arange(200).reshape(20, 10)), ("b.png", np.zeros((1, 1), dtype=np.int64))):
        save_heatmap(counts, tmp_path / name)
        with Image.open(tmp_path / name) as picture:
            assert min(picture.size) > 100
    assert plt.get_fignums() == open_before
