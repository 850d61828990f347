"""A curious or bad server: what it could learn or do at a site, and that a site does not let it."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedtailor.base.errors import UserError
from fedtailor.client.codec import MAX_HEADER, MAX_TENSORS, from_bytes, to_bytes
from fedtailor.client.job import is_pass
from fedtailor.labelers import LABELERS
from fedtailor.methods import METHODS
from fedtailor.remote import client as site_module
from fedtailor.remote.audit import read_lines
from fedtailor.remote.client import RemoteClient
from fedtailor.remote.engine import invitation_of
from fedtailor.remote.messages import (
    MAX_CLASSES,
    EvaluateRequest,
    PassReply,
    PassRequest,
    Ready,
    Refusal,
    TensorGroups,
    decode,
    encode,
)
from fedtailor.remote.policy import ANYTHING, SitePolicy
from fedtailor.remote.refusal import Refused
from fedtailor.simulation.build import Experiment
from remote import RUN, RemoteWorld
from world import CLIENTS, world


def joined(experiment: Experiment, folder: Path, k: int = 0, policy: SitePolicy = ANYTHING) -> RemoteClient:
    site = RemoteWorld(experiment, folder, policy=policy).site(k)
    site.handle(encode(invitation_of(experiment, RUN).model_copy(update={"client": k})))
    return site


def request(n: int = 1, k: int = 0, **more: Any) -> PassRequest:
    there = {"run": RUN, "client": k, "request_id": f"00000000-{n}", "version": 0, "state_id": "", "kept": 0}
    return PassRequest(**{**there, "pass_name": "train", "round": 0, **more})


def asked(site: RemoteClient, message: PassRequest, params: dict[str, Any]) -> tuple[Any, TensorGroups]:
    return decode(site.handle(encode(message, params=params, inbox={})))


def why(site: RemoteClient, data: bytes) -> str:
    """The code of a refusal."""
    answer = decode(site.handle(data))[0]
    assert isinstance(answer, Refusal)
    return answer.why


# --- a picture read off an update -----------------------------------------------------------------------------------


def test_a_linear_head_gives_a_picture_away_and_the_default_policy_refuses_it(tmp_path: Path) -> None:
    """The server sends rows of zeros, and a bias by which nobody takes any picture for class c. One step over all
    pictures later, row c has moved along the sum of the features of the pictures that are of class c: of the only one.
    """
    experiment = world("fedavg", "head", batch=1000, **{"local.weight_decay": 0.0})
    k, c = next(
        (k, c) for k in range(CLIENTS) for c, count in enumerate(experiment.client_data[k].counts()) if count == 1
    )
    start = experiment.job.start
    bias = torch.zeros_like(start["head.bias"])
    bias[c] = -100.0
    params = {"head.weight": torch.zeros_like(start["head.weight"]), "head.bias": bias}
    site = joined(experiment, tmp_path / "trusting", k)
    reply, tensors = asked(site, request(k=k), params)
    assert isinstance(reply, PassReply)

    data = experiment.client_data[k]
    (only,) = torch.nonzero(data.labels == c).flatten()
    features = torch.cat([view.x for view in data.views()])
    alike = F.cosine_similarity(tensors["params"]["head.weight"][c], features, dim=1)
    assert alike[only] == pytest.approx(1.0, abs=1e-5)
    assert alike[torch.arange(len(data)) != only].max() < 0.9999

    there = RemoteWorld(experiment, tmp_path / "careful", policy=SitePolicy())
    with pytest.raises(UserError, match="client 0: its policy does not allow this tuner"):
        there.engine().open()
    answer, tensors = asked(there.site(k), request(k=k), params)
    assert (answer.why, tensors) == ("unknown-run", {})


# --- what it may ask of a client ------------------------------------------------------------------------------------


def test_every_pass_is_found_and_nothing_else_is() -> None:
    """Of all that methods and labelers have, only functions of (model, me, theta)."""
    kinds = [*(entry.method for entry in METHODS.values()), *LABELERS.values()]
    found = {name for kind in kinds for name in dir(kind) if is_pass(getattr(kind, name, None))}
    assert found == {
        "census", "count", "examine", "measure", "personalise", "pick", "rectify", "select", "train", "vote",
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "init",
        "round",
        "model_copy",
        "aggregate",
        "loss",
        "local",
        "__class__",
        "__init__",
        "labels.train",
        "labels.copy",
    ],
)
def test_only_passes_can_be_asked_for(name: str, tmp_path: Path) -> None:
    """Not whatever else a method, a labeler, or None where there is none, has under that name."""
    experiment = world("fedavg", "text_prompt")
    with pytest.raises(UserError, match="there is no pass"):
        experiment.job.find_pass(name)
    site = joined(experiment, tmp_path)
    start = experiment.job.first_server().params
    assert asked(site, request(pass_name=name), start)[0].why == "beyond"
    assert isinstance(asked(site, request(), start)[0], PassReply)


def test_no_round_is_beyond_the_run(tmp_path: Path) -> None:
    experiment = world("fedpurel", "text_prompt", rounds=3, **{"method.T_p": 2})
    site, start = joined(experiment, tmp_path), experiment.job.first_server().params
    rounds = experiment.rounds
    assert rounds > 3
    assert isinstance(asked(site, request(round=rounds - 1), start)[0], PassReply)
    assert asked(site, request(round=rounds), start)[0].why == "beyond"


def test_a_model_has_its_own_shape(tmp_path: Path) -> None:
    """Parameters of another shape would be taken as they are, wherever they happen to fit."""
    experiment = world("fedavg", "text_prompt")
    site, start = joined(experiment, tmp_path), experiment.job.first_server().params
    (name, value), *_ = start.items()
    for params in ({name: value[:1]}, {name: value.double()}, {}, {**start, "more": value}):
        assert asked(site, request(), {**start, **params} if params else {})[0].why == "beyond"
        test = EvaluateRequest(run=RUN, client=0, request_id="00000000-1", version=0, state_id="")
        assert why(site, encode(test, params={**start, **params} if params else {})) == "beyond"


def test_many_orders_leave_few_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the server says that it may still ask for; those that were used last are still there."""
    monkeypatch.setattr(site_module, "MOST_STATES", 6)
    experiment = world("fedavg", "head")
    site, start = joined(experiment, tmp_path), experiment.job.first_server().params
    asked(site, request(1), start)
    for n in range(2, 21):
        if n % 4 == 0:  # the state after the first one stays in use
            assert isinstance(asked(site, request(n, version=1, state_id="00000000-1"), start)[0], PassReply)
        asked(site, request(n), start)
    states = RemoteWorld(experiment, tmp_path).states(0)
    assert len(states.held()) == 6
    assert {states.path(1, f"00000000-{n}") for n in (1, 19, 20)} <= {path for _, path in states.held()}


def test_a_pass_comes_to_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may ask for a thousand epochs, but not for more than so many minutes."""
    experiment = world("fedavg", "head", epochs=1000)
    site = joined(experiment, tmp_path, policy=ANYTHING.model_copy(update={"minutes": 1}))
    now, real = [0.0], time.monotonic

    def clock() -> float:
        now[0] += 10.0
        return real() + now[0]

    monkeypatch.setattr("fedtailor.client.data.time.monotonic", clock)
    assert asked(site, request(), experiment.job.first_server().params)[0].why == "out-of-time"
    assert 50 <= now[0] <= 80
    assert RemoteWorld(experiment, tmp_path).states(0).held() == []


# --- what it may say in an invitation -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "rounds = 1000000000000", "clients = 1000000000000", "local.epochs = 1000000000", "local.batch = 1000000000",
        "tuner.length = 1000000000", f"local.span = 1{'0' * 4000}", "local.clip = inf", "local.clip = nan",
        f'tuner.words = "{"word " * 1000}"', 'preset = "no such"', 'attack.name = "sign_flip"', "x = [",
        f"x = {'[' * 9000}", 'method.name = "no such"', "local = 1", "plan.quorum = true",
    ],
)  # fmt: skip
def test_settings_that_no_site_carries_out(line: str, tmp_path: Path) -> None:
    """They would fill its memory, never end, or are no settings; nothing is loaded for them."""
    experiment = world("fedavg", "text_prompt")
    settings = "\n".join(["[method]", 'name = "fedavg"', "[tuner]", 'name = "text_prompt"'])
    invitation = invitation_of(experiment, RUN).model_copy(update={"settings": f"{line}\n{settings}"})
    if line.startswith(("tuner.", "method.")):
        key, _, value = line.partition(".")[2].partition(" = ")
        table = line.partition(".")[0]
        changed = settings.replace(f"[{table}]", f"[{table}]\n{key} = {value}")
        changed = changed.replace('\nname = "fedavg"', "", 1) if key == "name" else changed
        invitation = invitation.model_copy(update={"settings": changed})
    opened: list[object] = []
    site = RemoteClient(tmp_path, lambda *given: opened.append(given), ANYTHING, "here")  # type: ignore[arg-type,func-returns-value]
    assert why(site, encode(invitation)) == "settings"
    assert opened == []


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ["a"] * (MAX_CLASSES + 1)}, {"classes": ["a" * 301]}, {"template": "{}" * 200},
        {"settings": "#" * 100_001}, {"weights": "f" * 101}, {"groups": {str(n): [] for n in range(4)}},
    ],
)  # fmt: skip
def test_an_invitation_has_its_bounds(change: dict[str, Any], tmp_path: Path) -> None:
    experiment = world("fedavg", "text_prompt")
    site = joined(experiment, tmp_path)
    message = {**invitation_of(experiment, RUN).model_dump(mode="json"), **change}
    assert why(site, to_bytes({}, {"message": message})) == "unreadable"


# --- messages that fill memory --------------------------------------------------------------------------------------


def letter(tensors: dict[str, Any], body: bytes = b"", note: str = "{}") -> bytes:
    header = json.dumps({"__metadata__": {"fedtailor": note}, **tensors}).encode()
    return struct.pack("<Q", len(header)) + header + body


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (letter({"a": {**EMPTY, "shape": [10**12], "data_offsets": [0, 8]}}, bytes(8)), "invalid shape"),
        (letter({"a": {**EMPTY, "shape": [2**62, 4]}}), "overflow"),
        (letter({f"params/{n}": EMPTY for n in range(MAX_TENSORS + 1)}), f"{MAX_TENSORS} are the most"),
        (letter({}, note="x" * MAX_HEADER), f"{MAX_HEADER} are the most"),
        (letter({}, note="[" * 100_000), "too deeply"),
    ],
    ids=["more than there is", "overflow", "many tensors", "a long header", "deep"],
)
def test_what_a_message_declares_is_not_believed(data: bytes, told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told):
        from_bytes(data)
    site = RemoteWorld(world("fedavg", "text_prompt"), tmp_path).site(0)
    assert why(site, data) == "unreadable"


def test_a_message_that_is_too_long_is_not_read_and_one_is_not_sent(tmp_path: Path) -> None:
    experiment = world("fedavg", "text_prompt", **{"tuner.length": 8})
    start = experiment.job.first_server().params
    small = ANYTHING.model_copy(update={"megabytes_in": 1})
    site = joined(experiment, tmp_path, policy=small)
    assert isinstance(asked(site, request(), start)[0], PassReply)
    assert why(site, b"?" * 1_000_001) == "too-large"
    assert why(site, b"?" * 1_000_000) == "unreadable"
    assert decode(site.handle(Refused("too-large", "announced as 3 GB")))[0] == Refusal(why="too-large")
    site.permission.policy = ANYTHING.model_copy(update={"megabytes_out": 0.001})
    answer, tensors = asked(site, request(2), start)
    assert (answer.why, tensors) == ("too-large", {})
    *_, last = read_lines(tmp_path / "client-0" / "audit")
    assert (last.facts["what"], last.facts["why"], last.facts["tensors"]) == ("refusal", "too-large", [])


def test_a_site_that_was_asked_nonsense_still_takes_part(tmp_path: Path) -> None:
    experiment = world("fedavg", "text_prompt")
    site = joined(experiment, tmp_path)
    for data in (b"", b"\xff" * 99, letter({}, note="[" * 100_000)):
        site.handle(data)
    assert isinstance(decode(site.handle(encode(invitation_of(experiment, RUN))))[0], Ready)
