"""What a site checks before it takes part: the weights, the class names, its own pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed import few, write_data

from fedtailor.base.errors import UserError
from fedtailor.clip.load import load
from fedtailor.flower.sites import server_experiment, site_session
from fedtailor.remote.engine import invitation_of
from fedtailor.remote.messages import Invitation
from fedtailor.settings.run import make_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("places") / "data")


@pytest.fixture(scope="module")
def told(data: Path) -> Invitation:
    run = make_run("promptfl", {"data": f"folder:{data / 'server'}", "clients": 3, "engine": "flower", "threads": 1})
    return invitation_of(server_experiment(run), "0" * 32)


def test_a_site_takes_part(told: Invitation, data: Path) -> None:
    """Its labels are numbers of the federation's classes, whichever of them it holds."""
    session = site_session(told.model_copy(update={"client": 2}), f"folder:{data / 'site-2'}")
    assert session.who == 2
    assert session.job.clients == 3
    held = {path.name for path in (data / "site-2" / "train").iterdir()}
    names = {told.classes[label].replace(" ", "_") for label in session.data.labels.unique().tolist()}
    assert names == held
    assert told.classes == few().classes
    assert len(session.tests.labels) == len(list((data / "site-2" / "test").rglob("*.png")))


def test_other_weights_are_refused(told: Invitation, data: Path) -> None:
    other = told.model_copy(update={"weights": "f" * 64})
    with pytest.raises(UserError, match=f"has the hash {load().digest[:12]}, the server's has ffffffffffff"):
        site_session(other, f"folder:{data / 'site-0'}")


def test_a_path_on_the_server_is_no_path_here(told: Invitation, data: Path) -> None:
    """Nothing is opened here because a server names it."""
    theirs = told.model_copy(update={"settings": told.settings.replace('name = "bundled"', 'name = "/etc/shadow"')})
    with pytest.raises(UserError, match="start this client with --backbone PATH"):
        site_session(theirs, f"folder:{data / 'site-0'}")
    assert site_session(theirs, f"folder:{data / 'site-0'}", backbone="bundled").who == 0


def test_unknown_classes_and_no_pictures_are_refused(told: Invitation, data: Path, tmp_path: Path) -> None:
    fewer = told.model_copy(update={"classes": told.classes[1:]})
    with pytest.raises(UserError, match="none of the federation's 5 classes"):
        [site_session(fewer, f"folder:{data / f'site-{k}'}") for k in range(3)]
    (tmp_path / "train").mkdir()
    with pytest.raises(UserError, match="no pictures to train on"):
        site_session(told, f"folder:{tmp_path}")


def test_the_server_holds_no_training_set(data: Path) -> None:
    settings = {"data": f"folder:{data / 'server'}", "clients": 3, "engine": "flower", "data.server": "test"}
    with pytest.raises(UserError, match="the server holds no part of the training set"):
        server_experiment(make_run("promptfl", settings))
    with pytest.raises(UserError, match="in a deployment each site says what it tests on"):
        server_experiment(make_run("promptfl", {**settings, "data.server": 0.0, "data.validation": 0.2}))
