"""Recipes: every file belongs to a method, shared tables are taken in, and a preset may stand for another method."""

from __future__ import annotations

from importlib import resources

import pytest

from fedtailor.methods import METHODS
from fedtailor.methods.recipe import read, read_entry, resolved
from fedtailor.settings.run import make_run


def test_every_file_is_a_methods() -> None:
    """A recipe under a misspelt name would be read by nobody."""
    folder = resources.files("fedtailor") / "recipes"
    files = {file.name.removesuffix(".toml") for file in folder.iterdir() if file.is_file()}
    assert files - {"shared"} <= set(METHODS)


def test_shared_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later tables win over earlier ones, a table's own settings over those it uses; tables may use others."""
    tables = {"a": {"lr": 1, "tuner": {"length": 4}}, "b": {"use": ["a"], "lr": 2}}
    monkeypatch.setattr("fedtailor.methods.recipe.read", lambda name: {"shared": tables}[name])
    assert resolved({"use": ["b"], "rounds": 3}) == {"lr": 2, "tuner.length": 4, "rounds": 3}
    assert resolved({"use": ["b", "a"]})["lr"] == 1
    assert resolved({"use": ["a"], "tuner": {"length": 5}}) == {"lr": 1, "tuner.length": 5}


def test_shared_tables_are_used() -> None:
    used = {
        name for method in [*METHODS, "shared"] for table in tables_in(read(method)) for name in table.get("use", ())
    }
    assert used == set(read("shared"))


def tables_in(table: dict[str, object]) -> list[dict[str, object]]:
    nested = [inner for value in table.values() if isinstance(value, dict) for inner in tables_in(value)]
    return [table, *nested]


def test_a_method_needs_no_recipe() -> None:
    entry = read_entry("nobodys", METHODS["fedavg"].method, "lora", "an idea")
    assert (entry.tuners, entry.settings, entry.presets, entry.paper) == ((), {}, {}, "")


@pytest.mark.parametrize("name", ["capt", "fedcopl", "fedpurel"])
def test_as_released(name: str) -> None:
    """preset=released is a method of its own, whose settings are the released code's."""
    assert make_run(name, preset="released") == make_run(f"{name}-released")
    assert make_run(name, {"preset": "released", "rounds": 3}).rounds == 3


def test_with_a_tuner() -> None:
    """What holds with one tuner only: over the recipe, under what the user says."""
    assert make_run("fedpurel", {"tuner": "lora"}).tuner.options["rank"] == 8
    assert make_run("fedpurel", {"tuner": "lora", "tuner.rank": 3}).tuner.options["rank"] == 3
    assert make_run("creff", {"tuner": "head"}).local.lr == 0.001
    assert make_run("creff").local.lr == 0.1
