"""`fedtailor audit`: each attack works where it must, and fails where nothing leaves."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

import fedtailor
from conftest import Call
from fedtailor.audits import AUDITS
from fedtailor.audits.audit import attack, open_case
from fedtailor.audits.base import CannotAttack, Finding
from fedtailor.audits.case import Case, update
from fedtailor.audits.features import Features
from fedtailor.audits.labels import Labels, nonnegative, way
from fedtailor.audits.likeness import psnr, ssim
from fedtailor.audits.membership import BY_BOTH, BY_LOSS, OWN, SENT, SHARED, Membership
from fedtailor.audits.one_step import one_step
from fedtailor.audits.pictures import Pictures, Search, variation
from fedtailor.audits.scores import auc, curve, found_at, measured
from fedtailor.base.errors import UserError
from fedtailor.cli import app
from fedtailor.core.optim import LocalTraining
from fedtailor.data.dataset import UNKNOWN, ArrayImages, Dataset, Split
from fedtailor.runs.folder import RunFolder
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import build
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import rounds
from world import CLIENTS, world

EVERYONE = tuple(range(CLIENTS))


def case_of(method: str = "fedavg", tuner: str = "text_prompt", trained: bool = False, **more: Any) -> Case:
    """A run that has not begun, or has ended."""
    experiment = world(method, tuner, **more)
    engine, server = make_engine(experiment), experiment.job.first_server()
    for finished in rounds(experiment, engine, server) if trained else ():
        server = finished.server
    return Case(experiment, server, engine.clients, EVERYONE)


def nothing(what: str, done: int, total: int) -> None:
    pass


def values(finding: Finding, key: str) -> dict[str, Any]:
    """A column of a table, by the first one."""
    return {row[next(iter(row))]: row[key] for row in finding.table}


# --- what the attacker takes a client's step for ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "tuner", "more"),
    [
        ("fedavg", "text_prompt", {}),
        ("fedavg", "head", {}),
        ("fedavg", "adapter", {}),
        ("fedavg", "meta_prompt", {}),
        ("fedavg", "visual_prompt", {}),
        ("fedavg", "lora", {}),  # whose dropout comes from the seed, which the server holds
        ("capt", "coupled+class_prompt", {}),  # with masked rows
        ("fedpurel", "text_prompt", {}),  # whose gradient is projected
        ("kgcoop", "text_prompt", {}),  # with a teacher
        ("fedavg", "text_prompt", {"labels": "zeroshot"}),
    ],
)
@pytest.mark.parametrize("trained", [False, True], ids=["first", "last"])
def test_the_attacker_knows_how_an_update_came_about(
    method: str, tuner: str, more: dict[str, Any], trained: bool
) -> None:
    """From the true pictures it computes what left, whatever the method does. If not, a failure would tell nothing."""
    case = case_of(method, tuner, trained, **more)
    step = one_step(case, 0, 2)
    assert len(step.pictures) == 2
    assert step.agreement > 0.999
    replayed = step.replay(step.replay.batch.x.float(), step.replay.batch.plain).detach()
    assert torch.allclose(replayed, step.seen, rtol=0.02, atol=1e-2 * float(step.seen.abs().max()))


def test_pictures_of_a_step_are_of_different_classes() -> None:
    case = case_of()
    step = one_step(case, 1, 3)
    assert set(step.pictures) <= set(case.experiment.federation.shares[1].train)
    assert len(set(case.labels[step.pictures])) == 3
    assert case.labels[step.pictures].tolist() == step.replay.batch.y.tolist()
    assert len(one_step(case, 1, 64).pictures) == len(set(case.labels[case.experiment.federation.shares[1].train]))


def test_noise_is_told_apart_from_ignorance() -> None:
    """With noise in what leaves, the attack sees that noise, and the finding says so."""
    hidden = case_of(privacy="gaussian", **{"privacy.noise": 5})
    assert abs(one_step(hidden, 0, 1).agreement) < 0.9
    told = " ".join(Features(tries=1, steps=2)(hidden, nothing).told)
    assert "noise" in told
    assert "noise" not in " ".join(Features(tries=1, steps=2)(case_of(), nothing).told)


# --- features ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tuner", "pictures"), [("head", 1), ("head", 3), ("adapter", 1)])
def test_features_are_given_away_by_what_takes_them_in(tuner: str, pictures: int) -> None:
    found = Features(pictures=pictures, tries=2)(case_of(tuner=tuner), nothing)
    cosines = values(found, "cosine")
    assert cosines["recovered"] > 0.999
    assert max(cosines["another picture of its class"], cosines["the class's sentence"]) < 0.99
    assert len(found.tries) == 2 * pictures


def test_prompts_show_features_in_fewer_directions() -> None:
    """One row of a prompt, 24 numbers, of features of 16: they are found, but for what the prompt does not feel."""
    found = Features(tries=2)(case_of(tuner="text_prompt", **{"tuner.length": 1}), nothing)
    cosines = values(found, "cosine")
    assert cosines["recovered"] > cosines["the class's sentence"] + 0.1
    directions = int(found.told[0].split(" in ")[1].split()[0])
    assert 1 < directions < 16  # their length shows in nothing


def test_features_are_hidden_with_their_client() -> None:
    case = case_of(tuner="head", privacy="gaussian", **{"privacy.noise": 20})
    assert abs(values(Features(tries=2)(case, nothing), "cosine")["recovered"]) < 0.9


def test_features_of_a_tuner_inside_the_tower() -> None:
    with pytest.raises(CannotAttack, match="inside the image tower"):
        Features().plan(case_of(tuner="visual_prompt"))


# --- pictures ---------------------------------------------------------------------------------------------------


def test_a_search_comes_nearer() -> None:
    """By a head's update, to the picture that it came from; and its values are colours."""
    case = case_of(tuner="head")
    how = Pictures(steps=60, tries=1, smooth=0.0)
    search = Search(case, one_step(case, 0, 1), how)
    before = float(search.match(search.start).detach())
    guess, match = search.run(how.steps, lambda step: None)
    assert match > before
    assert match > 0.99
    assert guess.min() >= 0
    assert guess.max() <= 1
    (row,) = search.judged(guess)
    assert row["cosine"] > row["start cosine"]
    assert row["cosine"] > 0.95
    assert row["nearer"] == 0
    assert row["others"] == 8


@pytest.mark.parametrize("tuner", ["text_prompt", "lora", "visual_prompt", "coupled+class_prompt"])
def test_a_search_goes_through_every_tower(tuner: str) -> None:
    """The match rises with each tuner: there is a way back to the pixels."""
    case = case_of("capt" if "+" in tuner else "fedavg", tuner, trained=True)
    search = Search(case, one_step(case, 0, 2), Pictures(smooth=0.0))
    before = float(search.match(search.start).detach())
    assert search.run(25, lambda step: None)[1] > before


def test_a_smooth_picture_has_no_variation() -> None:
    """A step of 1 in one of three columns' borders, in each of two rows: 2/4 across, nothing down."""
    picture = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]).expand(1, 3, 2, 3)
    assert float(variation(picture)) == pytest.approx(0.5)
    assert float(variation(torch.ones(1, 3, 4, 4))) == 0


# --- classes ----------------------------------------------------------------------------------------------------


def one_pass(tuner: str, **more: Any) -> Case:
    """One step of plain SGD on all pictures of a client."""
    plain = {"batch": 100, "epochs": 1, "local.momentum": 0.0, "local.weight_decay": 0.0, "data.alpha": 0.3}
    return case_of(tuner=tuner, **{**plain, **more})


def test_a_heads_first_step_gives_its_classes_away() -> None:
    """Exactly: a class's bias moves by its share less that of all classes alike."""
    found = Labels()(one_pass("head"), nothing)
    rows = {row["guess"]: row for row in found.table}
    assert rows["from the update"]["off by"] < 1e-4
    assert rows["from the update"]["most frequent class right"] == "4 of 4"
    assert rows["as in all pictures"]["off by"] > 0.02


def test_prompts_tell_of_classes_too() -> None:
    rows = {row["guess"]: row for row in Labels()(one_pass("text_prompt"), nothing).table}
    assert set(rows) == {"from the update", "as in all pictures", "all classes alike"}
    assert 0 <= rows["from the update"]["off by"] <= 1


def test_capt_sends_its_counts() -> None:
    """They are exact, unless noise is in them."""
    rows = values(Labels()(case_of("capt", "coupled+class_prompt"), nothing), "off by")
    assert rows["from counts"] == 0
    assert rows["from the update"] > 0
    noisy = case_of("capt", "coupled+class_prompt", privacy="gaussian", **{"privacy.counts_noise": 1})
    assert values(Labels()(noisy, nothing), "off by")["from counts"] > 0.02


def test_shares_by_least_squares() -> None:
    """Columns (1, 0), (0, 1): a pull of (3, 1) is ¾ and ¼; of (3, −1) all the first. With columns that differ by what
    all have in common, ((½, −½), (−½, ½)), a pull of (¼, −¼) on a way of 1 is ¾ and ¼, by direction alone (1, 0)."""
    eye, apart = np.eye(2), np.array([[0.5, -0.5], [-0.5, 0.5]])
    assert nonnegative(eye, np.array([3.0, 1.0]), None) == pytest.approx([0.75, 0.25])
    assert nonnegative(eye, np.array([3.0, -1.0]), None) == pytest.approx([1, 0])
    assert nonnegative(apart, np.array([0.25, -0.25]), 1.0) == pytest.approx([0.75, 0.25], abs=1e-5)
    assert nonnegative(apart, np.array([0.25, -0.25]), None) == pytest.approx([1, 0])
    assert nonnegative(eye, np.array([-1.0, -1.0]), None) == pytest.approx([0.5, 0.5])


def test_the_way_of_momentum() -> None:
    """Two steps at rate 0.1 with momentum 0.5: 0.1 (1 + 1.5). Adam's depends on more."""
    local = LocalTraining(batch=4, lr=0.1, momentum=0.5)
    assert way(local, 8) == pytest.approx(0.25)
    assert way(local.model_copy(update={"optimiser": "adam"}), 8) is None
    assert way(local, 0) is None


# --- membership -------------------------------------------------------------------------------------------------


def noise() -> Dataset:
    """Pictures whose classes are in nothing that can be seen."""
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(5), 9)
    parts = [Split(ArrayImages(rng.integers(0, 255, (45, 32, 32, 3)).astype(np.uint8)), labels) for _ in range(2)]
    return Dataset("noise", tuple("abcde"), "a photo of a {}.", *parts)


def test_members_of_a_model_that_learned_by_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of noise nothing else can be learned. The shared model is a mean of such, and knows less."""
    monkeypatch.setattr("world.dataset", noise)
    settings = {"epochs": 200, "lr": 0.1, "rounds": 1, "fraction": 1.0, "local.weight_decay": 0.0}
    found = Membership()(case_of(tuner="head", trained=True, **settings), nothing)
    area = {(row["model"], row["by"]): row["auc"] for row in found.tries}
    assert area[OWN, BY_LOSS] > 0.9
    assert area[SENT, BY_LOSS] > 0.9
    assert area[OWN, BY_BOTH] > 0.85
    assert area[SHARED, BY_LOSS] < area[OWN, BY_LOSS]
    assert all(low <= row["auc"] <= high for row in found.tries for low, high in [row["auc interval"]])
    assert all(row["members"] == row["others"] > 0 for row in found.tries)
    assert found.figures["membership.png"].startswith(b"\x89PNG")


def test_nobody_is_a_member_of_a_model_that_was_not_trained() -> None:
    """A head of zeros finds all pictures equally likely: no guess is better than chance."""
    found = Membership()(case_of(tuner="head"), nothing)
    area = {(row["model"], row["by"]): row["auc"] for row in found.tries}
    assert area[SHARED, BY_LOSS] == 0.5
    assert not any(model == OWN for model, _ in area)  # nobody has trained yet


def test_scores_by_hand() -> None:
    """Members 3, 2 against others 2, 1: of four pairs three are right and one is equal. At half accused, the bar is
    at 1 of (2, 1), and both are above it."""
    members, others = np.array([3.0, 2.0]), np.array([2.0, 1.0])
    assert auc(members, others) == pytest.approx(3.5 / 4)
    assert found_at(members, others, 0.5) == 1.0
    assert found_at(members, others, 0.0) == 0.5
    false, true = curve(members, others)
    assert [tuple(pair) for pair in zip(false, true, strict=True)] == [(0, 0.5), (0.5, 1), (1, 1)]
    area, found = measured(np.arange(50.0, 150), np.arange(100.0), np.random.default_rng(0))
    assert area.low < area.value < area.high
    assert 0.3 < found.low < found.value < found.high


def test_likeness_by_hand() -> None:
    """Off by 0.1 everywhere: 20 dB. A picture is like itself, and unlike its negative."""
    picture = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert psnr(picture, picture + 0.1).tolist() == pytest.approx([20, 20], abs=1e-3)
    assert ssim(picture, picture).tolist() == pytest.approx([1, 1], abs=1e-4)
    assert float(ssim(picture, 1 - picture).max()) < 0


# --- where nothing leaves ---------------------------------------------------------------------------------------


def test_nothing_is_attacked_where_nothing_leaves() -> None:
    """`local` shares nothing. Its personal models can be asked all the same, by who is given one."""
    case = case_of("local", "head", trained=True)
    chosen = {"pictures": Pictures(), "features": Features(), "labels": Labels(), "membership": Membership()}
    findings, left_out = attack(case, chosen, named=False)
    assert set(left_out) == {"pictures", "features", "labels"}
    assert all("leaves" in why for why in left_out.values())
    assert {row["model"] for row in findings["membership"].tries} == {OWN}
    with pytest.raises(CannotAttack, match="leaves"):
        attack(case, {"labels": Labels()}, named=True)


def test_the_update_is_what_the_step_of_a_run_sends() -> None:
    """With privacy, clipped and blurred there; the states of the run stay as they were."""
    case = case_of(trained=True, privacy="gaussian", **{"privacy.noise": 0, "privacy.clip": 1e-4})
    before = {k: case.clients[k].version for k in case.clients}
    step = case.asked_again({0: case.data_of(0)}).trained(0)
    assert step is not None
    assert float(torch.cat([v.flatten() for v in update(step).values()]).norm()) <= 1.01e-4
    assert {k: case.clients[k].version for k in case.clients} == before


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(small: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited") / "run"
    fedtailor.run("fedavg", {**small, "tuner": "head"}, out=folder)
    return folder


def test_the_command(run: Path, call: Call) -> None:
    """It says what it will do, then what it found, and writes that down."""
    state = {file: file.read_bytes() for file in (run / "state").iterdir()}
    seen = call("audit", str(run), "--steps", "3", "--tries", "1", "--pictures", "2")
    assert seen.code == 0, seen.err
    assert "pictures: look for the pictures of one step, in 3 steps of search, at 1 client(s), about 1 s" in seen.err
    for word in ("recovered", "from the update", "a client's own", "a better one may"):
        assert word in seen.out
    told = json.loads((run / "audit" / "audit.json").read_text())
    assert set(told["attacks"]) == {"pictures", "features", "labels", "membership"}
    assert told["settings"]["pictures"]["steps"] == 3
    assert len(told["attacks"]["pictures"]["tries"]) == 2
    assert {file.name for file in (run / "audit").glob("*.png")} == {"pictures.png", "membership.png"}
    assert {file: file.read_bytes() for file in (run / "state").iterdir()} == state


def test_one_attack_at_one_client_as_json(run: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere"
    words = ("--attack", "labels", "--client", "1", "--start", "first", "-o", str(out), "--json", "-q")
    seen = call("audit", str(run), *words)
    assert (seen.code, seen.err) == (0, "")
    told = json.loads(seen.out)
    assert (list(told["attacks"]), told["clients"], told["start"]) == (["labels"], ["1"], "first")
    assert {row["client"] for row in told["attacks"]["labels"]["tries"]} == {"1"}
    assert json.loads((out / "audit.json").read_text())["attacks"] == told["attacks"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--attack", "lables"), "did you mean 'labels'"),
        (("--client", "9"), "unknown client '9'"),
        (("--start", "middle"), "unknown start 'middle'"),
    ],
)
def test_what_cannot_be_audited(run: Path, words: tuple[str, ...], told: str, call: Call) -> None:
    seen = call("audit", str(run), *words)
    assert seen.code == 2
    assert told in seen.err


@pytest.mark.parametrize(
    ("method", "more", "told"),
    [
        ("zeroshot", {}, "trains nothing"),
        ("central", {"rounds": 1}, "all pictures in one place"),
        ("fedavg", {"rounds": 1, "tuner": "resnet", "tuner.width": 4, "tuner.size": 16}, "network of its own"),
    ],
)
def test_runs_that_have_nothing_to_attack(
    method: str, more: dict[str, Any], told: str, small: dict[str, Any], call: Call, tmp_path: Path
) -> None:
    there = {key: value for key, value in small.items() if method != "zeroshot" or not key.startswith(("rounds", "lr"))}
    if method == "zeroshot":
        there = {key: value for key, value in there.items() if key not in ("batch", "fraction", "every")}
    fedtailor.run(method, {**there, **more}, out=tmp_path / "run")
    seen = call("audit", str(tmp_path / "run"))
    assert (seen.code, told in seen.err) == (2, True)


def test_what_to_say(call: Call, tmp_path: Path) -> None:
    assert "not a run folder" in call("audit", str(tmp_path / "nowhere")).err
    assert "which run?" in call("audit").err
    listed = call("audit", "--list").out
    assert all(name in listed for name in AUDITS)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(run: Path, call: Call, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    seen = call("audit", str(run), "--attack", "labels", "-o", str(tmp_path / "no"))
    assert (seen.code, "choose another --out" in seen.err) == (2, True)


def test_data_that_is_elsewhere(tmp_path: Path) -> None:
    """As a server's of a deployment is."""
    experiment = replace(world(), client_data={})
    with pytest.raises(UserError, match="pictures are not here"):
        open_case(RunFolder(tmp_path), experiment, None, "first")


def test_labels_that_nobody_knows(tmp_path: Path) -> None:
    """Neither all of them nor some: a guess could not be judged."""
    experiment = world()
    for labels in (None, np.full(45, UNKNOWN)):
        train = replace(experiment.federation.dataset.train, labels=labels)
        federation = replace(experiment.federation, dataset=replace(experiment.federation.dataset, train=train))
        with pytest.raises(UserError, match="no truth"):
            open_case(RunFolder(tmp_path), replace(experiment, federation=federation), None, "first")


def test_the_page_names_every_attack_and_option() -> None:
    page = (Path(__file__).parent.parent / "docs/audit.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(AUDITS)
    top: Any = typer.main.get_command(app)
    known = {option for it in top.commands["audit"].params for option in it.opts if option.startswith("-")}
    told = set(re.findall(r"^\| `(--?[\w-]+)", page, re.MULTILINE))
    assert told <= known
    assert known - told == {"--out", "--quiet", "-q"}
    for name, steps in (("pictures", 600), ("features", 200)):
        assert AUDITS[name].model_fields["steps"].default == steps
        assert f"{steps} for {name}" in page


# --- on the bundled CLIP ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tuner", "row", "features"),
    [("head", "another picture of its class", 0.999), ("text_prompt", "the search's start", 0.9)],
)
def test_drawn_figures_are_recognised_in_what_came_back(tuner: str, row: str, features: float) -> None:
    """By CLIP: from a head's update they are more like the originals than others of their classes are."""
    experiment = build(make_run("fedavg", {"tuner": tuner, "rounds": 1, "threads": 1}))
    case = Case(experiment, experiment.job.first_server(), {}, (0, 1))
    found = values(Pictures(steps=150, tries=2)(case, nothing), "cosine")
    assert found["recovered"] > found[row]
    assert values(Features(tries=2)(case, nothing), "cosine")["recovered"] > features
