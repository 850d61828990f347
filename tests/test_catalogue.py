"""What there is, as data and as tables."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from fedtailor.base.errors import UserError
from fedtailor.cli import catalogue
from fedtailor.methods import METHODS, Entry
from fedtailor.settings.keys import parse
from fedtailor.settings.run import make_run
from fedtailor.tuners import TUNERS


def printed(thing: object, width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width).print(thing)
    return out.getvalue()


@pytest.mark.parametrize("kind", list(catalogue.KINDS))
def test_lists_are_plain_data(kind: str) -> None:
    """Every row has a name of its own and the same keys, and JSON can hold it."""
    rows = catalogue.rows(kind)
    assert len({row["name"] for row in rows}) == len(rows) > 0
    assert len({tuple(row) for row in rows}) == 1
    assert json.loads(json.dumps(rows)) == rows
    assert all(row.get("idea", "x") for row in rows)


def test_lists_are_complete() -> None:
    """Every method and tuner, with what it may be joined to."""
    rows = {row["name"]: row for row in catalogue.rows("methods")}
    assert list(rows) == list(METHODS)
    assert rows["fedavg"]["tuners"] == ["any"]
    assert rows["promptfl"]["tuners"] == ["text_prompt"]
    assert rows["fedavg"]["shares"] == {"*": "global"}
    assert [row["name"] for row in catalogue.rows("tuners")] == list(TUNERS)


def test_an_unknown_list() -> None:
    """With the nearest that exists."""
    with pytest.raises(UserError, match="unknown list 'method'; did you mean 'methods'"):
        catalogue.rows("method")


@pytest.mark.parametrize("name", list(METHODS))
def test_every_key_on_a_page_can_be_set(name: str) -> None:
    """What `fedtailor show` prints as key and value is what the command line takes, to the very same run."""
    groups = catalogue.method(name)["settings"]
    words = [
        f"{row['key']}={json.dumps(row['value']) if not isinstance(row['value'], str) else row['value']}"
        for rows in groups.values()
        for row in rows
        if row["value"] is not None
    ]
    assert make_run(name, parse(words)) == make_run(name)


def test_a_page_of_a_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of joined tuners each part's options stand under its name, with the method's values."""
    entry = Entry(
        METHODS["fedavg"].method, "text_prompt+visual_prompt", "Somebody", 2025, "x", "y",
        settings={"tuner.text_prompt.length": 16, "tuner.visual_prompt.length": 2},
    )  # fmt: skip
    monkeypatch.setitem(METHODS, "joined", entry)
    rows = {row["key"]: row["value"] for row in catalogue.method("joined")["settings"]["tuner"]}
    assert rows["tuner.text_prompt.length"] == 16
    assert rows["tuner.visual_prompt.length"] == 2
    assert "tuner.length" not in rows


def test_a_page_has_symbols_bounds_and_meanings() -> None:
    """μ of FedProx: its key, symbol, default, range and equation."""
    facts = catalogue.method("fedprox")
    (row,) = facts["settings"]["method"]
    assert (row["key"], row["symbol"], row["value"], row["allowed"]) == ("method.mu", "μ", 0.5, "≥ 0")
    page = printed(catalogue.method_page(facts))
    assert "method.mu" in page
    assert "Eq. 2" in page
    (schedule,) = [row for row in facts["settings"]["local"] if row["key"] == "local.schedule"]
    assert schedule["allowed"] == "constant | cosine | step"


def test_rounds_as_they_are_taken() -> None:
    """Broken: the page allows a number of rounds that a run refuses."""
    (row,) = (row for row in catalogue.method("promptfl")["settings"]["run"] if row["key"] == "rounds")
    assert row["allowed"] == "≥ 1"


def test_presets_are_on_the_page() -> None:
    """As they would be typed."""
    page = printed(catalogue.method_page(catalogue.method("promptfl")))
    assert "preset=capt: rounds=100 clients=20" in page


@pytest.mark.parametrize("width", [60, 80, 200])
def test_names_are_whole_at_any_width(width: int) -> None:
    """A narrow terminal folds ideas, not the names that one has to type."""
    table = printed(catalogue.table(catalogue.rows("methods")), width)
    assert all(name in table for name in METHODS)


def test_text_is_not_markup() -> None:
    """Square brackets in notes and defaults are printed as they are."""
    assert "[hub]" in printed(catalogue.table([{"name": "a", "idea": "fedtailor[hub]"}]))


def test_a_page_tells_of_all_that_comes_with_a_method() -> None:
    """fedgrab is FedAvg, with a network and a rebalancer whose departures a reader must find."""
    text = catalogue.method("fedgrab")["text"]
    assert all(word in text for word in ("McMahan", "residual network", "Self-Adjusting Gradient Balancer"))
    assert "cooperative" in catalogue.method("fedcopl")["text"].lower()


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ({"*": "global"}, "all"),
        ({"local.*": "local", "*": "global"}, "all but local.*"),
        ({"*.A": "global", "*.B": "local"}, "*.A"),
        ({"a.*": "cluster near", "b.*": "fixed"}, "a.*"),
        ({"*": "local"}, "nothing"),
        ({}, "nothing"),
    ],
)
def test_what_is_shared_in_words(shares: dict[str, str], told: str) -> None:
    assert catalogue.shared(shares) == told
