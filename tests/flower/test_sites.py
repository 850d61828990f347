"""What a site checks before it takes part: the weights, the class names, its own pictures."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from deployed import few, write_data

from fedtailor.base.errors import UserError
from fedtailor.clip.load import load, locate
from fedtailor.flower.client import open_site
from fedtailor.flower.init import init
from fedtailor.flower.sites import server_experiment, site_session
from fedtailor.remote.audit import read_lines
from fedtailor.remote.client import Session
from fedtailor.remote.engine import invitation_of
from fedtailor.remote.messages import Invitation, Refusal, decode, encode
from fedtailor.remote.policy import Permission, SitePolicy, public_key, settings_of
from fedtailor.remote.refusal import Refused
from fedtailor.remote.spending import Spending
from fedtailor.secure.keys import sign, signed
from fedtailor.settings.run import make_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("places") / "data")


@pytest.fixture(scope="module")
def told(data: Path) -> Invitation:
    run = make_run("promptfl", {"data": f"folder:{data / 'server'}", "clients": 3, "engine": "flower", "threads": 1})
    return invitation_of(server_experiment(run), "0" * 32)


def opened(told: Invitation, data: str, policy: SitePolicy = SitePolicy(), backbone: str = "") -> Session:  # noqa: B008
    return site_session(told, settings_of(told), policy, data, backbone)


def test_a_site_takes_part(told: Invitation, data: Path) -> None:
    """Its labels are numbers of the federation's classes, whichever of them it holds."""
    session = opened(told.model_copy(update={"client": 2}), f"folder:{data / 'site-2'}")
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
        opened(other, f"folder:{data / 'site-0'}")


def naming(told: Invitation, backbone: str) -> Invitation:
    return told.model_copy(update={"settings": told.settings.replace('name = "bundled"', f'name = "{backbone}"')})


@pytest.mark.parametrize("name", ["/etc", "../../../../etc", "/no/such", "no/such", ".", "~", "openai/clip-vit"])
def test_what_a_server_names_is_not_looked_for_here(
    name: str, told: Invitation, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a path, whether there is something or not, nor a hub id: all are refused in the same words."""
    (tmp_path / "no" / "such").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match=re.escape(f"the server's CLIP is {name!r}; start this")) as refused:
        opened(naming(told, name), f"folder:{data / 'site-0'}")
    assert refused.value.why == "backbone"
    assert opened(naming(told, name), f"folder:{data / 'site-0'}", backbone="bundled").who == 0


def test_a_hub_id_of_the_policy_is_fetched_at_its_commit(
    told: Invitation, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = {"openai/clip-vit": "a" * 40}
    fetched = []

    def snapshot(name: str, revision: str, **_: object) -> str:
        fetched.append((name, revision))
        return str(locate("bundled")[0])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    opened(naming(told, "openai/clip-vit"), f"folder:{data / 'site-0'}", SitePolicy(hub=hub))
    assert fetched == [*hub.items()]
    with pytest.raises(Refused, match="the server's CLIP is 'openai/clip-vit-2'"):
        opened(naming(told, "openai/clip-vit-2"), f"folder:{data / 'site-0'}", SitePolicy(hub=hub))


def test_rare_classes_are_left_out(told: Invitation, data: Path) -> None:
    """Of training, and of tests by what there is to test on; 1 leaves nothing out."""
    where, least = f"folder:{data / 'site-0'}", 4
    all_there, some = (opened(told, where, SitePolicy(pictures_per_class=n)) for n in (1, least))
    for part in ("data", "tests"):
        counts = [torch.bincount(torch.as_tensor(getattr(it, part).labels), minlength=6) for it in (all_there, some)]
        assert torch.equal(counts[1], torch.where(counts[0] >= least, counts[0], 0))
        assert not torch.equal(*counts)  # the case that is meant
    with pytest.raises(Refused, match=r"pictures to train on, .* with those of rare classes; pictures=5"):
        opened(told, where, SitePolicy(pictures_per_class=1000))
    with pytest.raises(Refused, match="pictures=1000"):
        opened(told, where, SitePolicy(pictures=1000))


@pytest.mark.parametrize("harm", ["a damaged picture", "an unknown class"])
def test_what_is_wrong_with_pictures_is_told_in_general(
    harm: str, told: Invitation, data: Path, tmp_path: Path
) -> None:
    """No name of a file or folder leaves the site; its own log has them."""
    pictures = Path(shutil.copytree(data / "site-0", tmp_path / "pictures"))
    first = next((pictures / "train").rglob("*.png"))
    name = "patient-0417.png"
    if harm == "a damaged picture":
        first.with_name(name).write_bytes(first.read_bytes()[:60])
    else:
        shutil.copytree(first.parent, pictures / "train" / (name := "suspected-sarcoma"))
    site = open_site(tmp_path, SitePolicy(), f"folder:{pictures}", server="fed.example.org:9092")
    data_sent = site.handle(encode(told))
    assert decode(data_sent)[0] == Refusal(why="pictures")
    assert name.encode() not in data_sent
    (line,) = read_lines(tmp_path / "state" / "audit")
    assert name in line.facts["detail"]
    assert line.facts["to"] == "fed.example.org:9092"


def test_a_server_chooses_no_more_threads_than_there_are(
    told: Invitation, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = told.model_copy(update={"settings": told.settings.replace("threads = 1\n", "threads = 4096\n")})
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    for threads, due in ((0, 4), (3, 3), (9, 4)):
        permission = Permission(SitePolicy(threads=threads), Spending(data / "no-such-file"))
        assert permission.to_join(many).threads == due
        assert permission.to_join(told).threads == 1
    run = permission.to_join(many)
    assert site_session(many, run, SitePolicy(), f"folder:{data / 'site-0'}").threads == 4


def test_unknown_classes_and_no_pictures_are_refused(told: Invitation, data: Path, tmp_path: Path) -> None:
    fewer = told.model_copy(update={"classes": told.classes[1:]})
    with pytest.raises(UserError, match="none of the federation's 5 classes"):
        [opened(fewer, f"folder:{data / f'site-{k}'}") for k in range(3)]
    (tmp_path / "train").mkdir()
    with pytest.raises(UserError, match="no pictures to train on"):
        opened(told, f"folder:{tmp_path}", SitePolicy(pictures=0))


def test_the_server_holds_no_training_set(data: Path) -> None:
    settings = {"data": f"folder:{data / 'server'}", "clients": 3, "engine": "flower", "data.server": "test"}
    with pytest.raises(UserError, match="the server holds no part of the training set"):
        server_experiment(make_run("promptfl", settings))
    with pytest.raises(UserError, match="in a deployment each site says what it tests on"):
        server_experiment(make_run("promptfl", {**settings, "data.server": 0.0, "data.validation": 0.2}))


def test_a_site_signs_with_the_key_that_it_was_given(told: Invitation, data: Path, tmp_path: Path) -> None:
    """The other sites know it by the line of its client.pub."""
    init(tmp_path / "fed", 1, ["127.0.0.1"])
    home = tmp_path / "fed" / "clients" / "client-0"
    site = open_site(home, SitePolicy(), f"folder:{data / 'site-0'}", server="here")
    assert site.key is not None
    assert signed(public_key((home / "client.pub").read_text()), sign(site.key, "text"), "text")
    assert open_site(tmp_path, SitePolicy(), f"folder:{data / 'site-0'}", server="here").key is None
    (tmp_path / "client.key").write_text("-----BEGIN OPENSSH PRIVATE KEY-----")
    with pytest.raises(UserError, match=r"client\.key is not a site's key"):
        open_site(tmp_path, SitePolicy(), f"folder:{data / 'site-0'}", server="here")
