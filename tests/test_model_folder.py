"""RUN/model: what a run tuned, in a folder that stands alone and answers as the run's own tests did."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fedtailor
from fedtailor.base.documents import sealed
from fedtailor.base.errors import UserError
from fedtailor.client.job import ClientState
from fedtailor.core import LOCAL
from fedtailor.evaluation.testing import client_logits, in_chunks, mean_local, shared_logits
from fedtailor.runs.execute import execute
from fedtailor.runs.folder import RunFolder
from fedtailor.settings.run import make_run
from fedtailor.simulation.build import build
from fedtailor.simulation.engine import make_engine
from fedtailor.use.model_file import read_facts
from fedtailor.use.pictures import Pictures
from run_content import read
from world import BRIEF, SMALL

Settings = dict[str, Any]
METHODS: dict[str, Settings] = {
    "zeroshot": {},
    "promptfl": {},
    "promptfl calibrated": {"calibrate": 0.2},
    "capt": {},
    "fedpurel": {},
    "fedpurel lora": {"tuner": "lora"},
    "fedclip": {},
    "linear-probe": {},
    "tailor": {},
    "fedcopl": {"tuner.visual_prompt.depth": 2},
    "fedotp": {},
    "scratch-fedavg": SMALL["resnet"],
    "creff": SMALL["resnet"],
    "fedloge": SMALL["resnet"],
    "fedsa-lora": {},
    "cocoop": {},
    "local": {},
    "central": {},
}


def finished(method: str, small: Settings, out: Path, **more: Any) -> Path:
    fedtailor.run(method, {**small, **BRIEF.get(method, {}), "rounds": 2, "every": 2, **more}, out=out)
    return out


@pytest.fixture(scope="module")
def promptfl(small: Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished("promptfl", small, tmp_path_factory.mktemp("runs") / "promptfl", fraction=0.4)


@pytest.fixture
def copy(promptfl: Path, tmp_path: Path) -> Path:
    """A model folder that a test may spoil."""
    return Path(shutil.copytree(promptfl / "model", tmp_path / "copy"))


@pytest.mark.parametrize("name", METHODS)
def test_answers_are_those_of_the_run(name: str, small: Settings, tmp_path: Path) -> None:
    """Broken: a picture is read, encoded or asked about otherwise than in the run's tests, or a parameter is lost."""
    run = finished(name.split()[0], small, tmp_path / "run", **METHODS[name])
    store, settings, _ = RunFolder.reopen(run)
    saved = store.resume()
    store.close()
    assert saved is not None
    experiment = build(settings)
    job, server, clients, tests = experiment.job, saved[0], dict(saved[1]), experiment.tests
    sizes = {k: len(data) for k, data in experiment.client_data.items()}
    shared = shared_logits(job, server, mean_local(clients, sizes) if job.method.lent else None)
    wanted = {k: client_logits(job, server, k, clients.get(k, ClientState())) for k in range(3)}
    (run / "model").rename(moved := tmp_path / "moved")
    shutil.rmtree(run)  # it stands alone
    model = fedtailor.load(moved)
    images: Any = experiment.federation.dataset.test.images
    paths = [images.root / path for path in images.paths]

    def asked(client: int | None) -> torch.Tensor:
        return torch.cat([answers.logits for answers in model.answers(Pictures(paths), client)])

    def close(client: int | None, logits: Callable[[torch.Tensor], torch.Tensor]) -> None:
        there = torch.cat(list(in_chunks(logits, tests.features, tests.everything)))
        torch.testing.assert_close(asked(client), there, rtol=1e-5, atol=1e-5)

    assert model.facts.has_shared == (shared is not None)
    if shared is not None:
        close(None, shared)
    personal = any(scope == LOCAL for scope in job.scopes.values())
    for k, logits in wanted.items():
        close(k, logits)
        assert not personal or model.has_own(k) == (k in clients and bool(clients[k].local))
    both = [answers.zero_shot for answers in model.answers(Pictures(paths), 0, beside=True)]
    plain = experiment.job.model.zero_shot_logits(tests.features.fetch(tests.everything))
    torch.testing.assert_close(torch.cat([it for it in both if it is not None]), plain, rtol=1e-5, atol=1e-5)


def test_what_is_in_it(promptfl: Path, small: Settings, pictures: Path) -> None:
    """Broken: someone who has only the folder cannot tell what the model is, or it tells where its user's files are."""
    facts = read_facts(promptfl / "model")
    assert facts.classes == ("blue dot", "green dot", "red dot")
    assert facts.backbone.digest == build(make_run("zeroshot", small)).weights
    assert facts.trained_on.startswith("folder:dots: 48 pictures of 3 classes at 3 clients, partition dirichlet")
    result = json.loads((promptfl / "result.json").read_text())
    assert facts.scores["global"] == result["global"]
    assert facts.calibration.shared is None
    everything = {path.relative_to(promptfl / "model").as_posix() for path in (promptfl / "model").rglob("*.*")}
    assert everything == {"model.json", "README.md", *facts.files}
    card = (promptfl / "model/README.md").read_text()
    assert "blue dot, green dot, red dot." in card
    assert f"{result['global']['overall']:.2f}" in card
    assert "not calibrated: no training pictures were kept out" in card
    assert str(pictures.parent) not in card + (promptfl / "model/model.json").read_text()


def test_only_what_differs(promptfl: Path) -> None:
    """Broken: a client's file repeats what all have, or a client that never trained is said to have its own model."""
    model = fedtailor.load(promptfl)
    own = [k for k in range(3) if model.has_own(k)]
    assert 0 < len(own) < 3  # two rounds of one client each
    shared = load_file(promptfl / "model/shared.safetensors")
    for k in own:
        theirs = load_file(promptfl / f"model/clients/{k}.safetensors")
        assert all((theirs[name] != shared[name]).any() for name in theirs)


def test_no_shared_model(small: Settings, tmp_path: Path) -> None:
    """Broken: clients that share nothing have a shared model made of nothing."""
    model = fedtailor.load(finished("local", small, tmp_path / "run"))
    with pytest.raises(UserError, match="share no model, each has only its own; name a client: clients are 0 to 2"):
        model.predict([])
    assert model.predict([], client=0) == []


def test_clients_elsewhere(small: Settings, tmp_path: Path) -> None:
    """Broken: a server says that it has models that only its clients have."""
    experiment = build(make_run("promptfl", {**small, "rounds": 1}))
    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    execute(experiment, store, False, 0.0, fedtailor.Callback(), lambda *given: make_engine(*given))
    model = fedtailor.load(tmp_path / "run")
    assert "what they keep never left them: only the shared model is here" in (model.folder / "README.md").read_text()
    assert "not calibrated: clients were in other processes" in model.facts.calibration.why
    with pytest.raises(UserError, match="has no client's model: clients were in other processes"):
        model.predict([], client=0)
    assert model.predict([]) == []


def test_nothing_to_keep(small: Settings, tmp_path: Path) -> None:
    """Broken: clients elsewhere that share nothing leave a folder without any model in it."""
    experiment = build(make_run("local", {**small, "rounds": 1}))
    store = RunFolder.create(tmp_path / "run", experiment.run, {})
    execute(experiment, store, False, 0.0, fedtailor.Callback(), lambda *given: make_engine(*given))
    with pytest.raises(UserError, match="its clients share nothing and keep what is theirs elsewhere"):
        fedtailor.load(tmp_path / "run")


def test_resumed(small: Settings, tmp_path: Path) -> None:
    """Broken: a run that is killed while it writes its model, or before its result, has none or half of one."""
    run = finished("promptfl", small, tmp_path / "run")
    good = {path.name: path.read_bytes() for path in (run / "model").rglob("*.safetensors")}
    (run / "result.json").unlink()
    (run / "model").rename(run / "model.part")
    (run / "model.part/model.json").unlink()
    with pytest.raises(UserError, match=r"is not finished; go on with it: fedtailor run --resume"):
        fedtailor.load(run)
    fedtailor.resume(run)
    assert {path.name: path.read_bytes() for path in (run / "model").rglob("*.safetensors")} == good
    assert not (run / "model.part").exists()


def test_sites_have_names(small: Settings, pictures: Path, tmp_path: Path) -> None:
    """Broken: a site's own model cannot be asked for by the site's name."""
    files = sorted(path for path in pictures.rglob("*.png"))
    rows = [f"{f},{f.parent.name},{f.parent.parent.name},{('Oslo', 'Rome')[i % 2]}" for i, f in enumerate(files)]
    (tmp_path / "all.csv").write_text("\n".join(["path,label,split,site", *rows]) + "\n")
    given = {key: value for key, value in small.items() if not key.startswith("data.")}
    given |= {"data": f"csv:{tmp_path / 'all.csv'}", "data.partition": "site", "clients": 2, "fraction": 1.0}
    model = fedtailor.load(finished("promptfl", given, tmp_path / "run"))
    assert model.clients == ("Oslo", "Rome")
    by_name, by_number = (model.probabilities(files[:4], client=who) for who in ("Rome", 1))
    assert np.array_equal(by_name, by_number)
    assert not np.array_equal(by_name, model.probabilities(files[:4], client="Oslo"))


def edit(folder: Path, **changes: Any) -> None:
    note = read(folder / "model.json")
    (folder / "model.json").write_bytes(sealed({**note, **changes}))


def spoil_version(folder: Path) -> None:
    edit(folder, format=99)


def spoil_json(folder: Path) -> None:
    (folder / "model.json").write_text("{")


def spoil_field(folder: Path) -> None:
    edit(folder, classes=[])


def spoil_file(folder: Path) -> None:
    edit(folder, clients=[{"name": "x", "own": True, "predict": "predict", "file": "../../elsewhere.safetensors"}])


def spoil_bytes(folder: Path) -> None:
    (folder / "shared.safetensors").write_bytes((folder / "shared.safetensors").read_bytes()[:-8])


def spoil_shape(folder: Path) -> None:
    save_file({"text.ctx": torch.zeros(3, 24)}, folder / "shared.safetensors")
    digest = hashlib.sha256((folder / "shared.safetensors").read_bytes()).hexdigest()
    edit(folder, files={**read_facts(folder).files, "shared.safetensors": digest})


def spoil_hash(folder: Path) -> None:
    edit(folder, backbone={**read_facts(folder).backbone.model_dump(), "digest": "0" * 64})


def spoil_place(folder: Path) -> None:
    edit(folder, backbone={**read_facts(folder).backbone.model_dump(), "name": "/gone/clip"})


def remove(folder: Path) -> None:
    (folder / "shared.safetensors").unlink()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoil_version, r"has the format 99, this version of fedtailor reads 1"),
        (spoil_json, r"model.json is damaged"),
        (spoil_field, r"model.json is damaged \(classes: "),
        (spoil_file, r"model.json is damaged \(clients.0.file: "),
        (spoil_bytes, r"is not as model.json says: it was changed or cut short"),
        (spoil_shape, r"text.ctx is \(3, 24\) in torch.float32, should be \(4, 24\)"),
        (spoil_hash, r"was tuned on one with 000000000000, and its parameters fit no other"),
        (spoil_place, r"needs its CLIP: .*/gone/clip.* say where it is by --backbone"),
        (remove, r"shared.safetensors is missing; copy the whole folder"),
    ],
)
def test_a_spoilt_folder(spoil: Callable[[Path], None], told: str, copy: Path) -> None:
    """Broken: a folder that does not fit answers with something, or with a traceback."""
    spoil(copy)
    with pytest.raises(UserError, match=told):
        fedtailor.load(copy)


def test_a_clip_that_has_moved(copy: Path, tiny: Path) -> None:
    """Broken: who has the CLIP in another place cannot use the model."""
    spoil_place(copy)
    assert fedtailor.load(copy, backbone=str(tiny)).predict([]) == []


def test_without_a_client(copy: Path) -> None:
    """Broken: a folder whose clients' files were left out, as the card says one may, is of no use to anyone."""
    model = fedtailor.load(copy)
    k = next(k for k in range(3) if model.has_own(k))
    shutil.rmtree(copy / "clients")
    again = fedtailor.load(copy)
    assert again.predict([]) == []
    with pytest.raises(UserError, match=rf"clients/{k}.safetensors is missing"):
        again.predict([], client=k)
