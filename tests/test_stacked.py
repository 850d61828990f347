"""Clients in step: as one after the other, up to rounding, for every method and tuner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fedtailor
from fedtailor.base.errors import UserError
from fedtailor.client.job import ClientState
from fedtailor.clip.text import TextTower
from fedtailor.clip.vision import ImageTower
from fedtailor.core import calls, lockstep
from fedtailor.core.lockstep import in_step
from fedtailor.core.types import Params, Server
from fedtailor.methods import METHODS
from fedtailor.simulation import auto, stacked
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import Engine
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import run_round
from fedtailor.simulation.stacked import StackedEngine
from tiny import RESNET
from world import combinations, under_law, world

TRAINED = [(m, t) for m, t in combinations() if METHODS[m].method.trains]


def run(experiment: Experiment, engine: Engine) -> tuple[Server, dict[int, ClientState]]:
    server = experiment.job.first_server()
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
    return server, {k: engine.clients[k] for k in range(4)}


def close(a: Params, b: Params) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(b[name], value, rtol=2e-4, atol=2e-5, msg=lambda told, name=name: f"{name}: {told}")


def check_equal(experiment: Experiment, threads: int = 1) -> None:
    """Everything at the server and at every client, and every number that the steps' log has."""
    data, job = experiment.client_data, experiment.job
    loop, steps = LocalEngine(job, data), StackedEngine(job, data, threads=threads)
    (expected, theirs), (found, ours) = run(experiment, loop), run(experiment, steps)
    close(expected.params, found.params)
    close({n: v.float() for n, v in expected.state.items()}, {n: v.float() for n, v in found.state.items()})
    assert expected.cluster_of == found.cluster_of
    for k, state in theirs.items():
        for part in ("local", "memory", "tuned"):
            close(getattr(state, part), getattr(ours[k], part))
        assert ours[k].version == state.version
    told = [[(s.round, s.client, s.pass_name, s.bytes_up, s.bytes_down) for s in e.log] for e in (loop, steps)]
    assert told[0] == told[1]


@pytest.mark.parametrize("pair", under_law(TRAINED))
def test_equal_to_the_loop(pair: tuple[str, str]) -> None:
    """A law. Clients have 11 or 12 pictures in batches of 4, so that some have fewer steps than others."""
    check_equal(world(*pair, fraction=1.0, rounds=2, lr=0.001))


@pytest.mark.parametrize("tuner", ["visual_prompt", "lora", "text_prompt", "coupled"])
def test_a_resnet_too(tuner: str) -> None:
    shallow = {"tuner.depth": 1, "tuner.mode": "kept"} if tuner == "visual_prompt" else {}
    check_equal(world("fedavg", tuner, RESNET, fraction=1.0, rounds=1, lr=0.001, **shallow))


def test_labels_and_rebalancers() -> None:
    check_equal(world("capt", "coupled+class_prompt", labels="copl", rebalance="fedgrab", fraction=1.0, lr=0.001))


def test_the_bits_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "GROUP", 2)
    experiment = world("promptfl", "text_prompt", fraction=1.0)
    found = []
    for threads in (1, 2, 3):
        server, clients = run(experiment, StackedEngine(experiment.job, experiment.client_data, threads=threads))
        found.append([server.params["text.ctx"], *(clients[k].tuned["text.ctx"] for k in range(4))])
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def counted(monkeypatch: pytest.MonkeyPatch, kind: type[torch.nn.Module]) -> list[int]:
    """How many clients' or pictures' worth each pass of a tower has."""
    forward: Callable[..., Any] = kind.forward
    sizes: list[int] = []

    def counting(self: Any, *given: Any, **more: Any) -> Any:
        out = forward(self, *given, **more)
        sizes.append(len(out) if kind is ImageTower or out.dim() == 3 else 1)
        return out

    monkeypatch.setattr(kind, "forward", counting)
    return sizes


def steps_of(experiment: Experiment) -> None:
    method, job = experiment.job.method, experiment.job
    method.round(job.first_server(), [0, 1, 2, 3], StackedEngine(job, experiment.client_data))


def test_a_tower_is_entered_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """45 pictures over four clients, batches of 4: two full steps each, and a third for the one that has 12."""
    experiment = world("promptfl", "text_prompt")
    texts = counted(monkeypatch, TextTower)
    steps_of(experiment)
    assert texts == [4, 4, 1]
    images = counted(monkeypatch, ImageTower)
    steps_of(world("fedavg", "visual_prompt"))
    assert images == [16, 16, 4]


def test_large_matrices_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "TOGETHER", 100)
    texts = counted(monkeypatch, TextTower)
    steps_of(world("promptfl", "text_prompt"))
    assert texts == [1] * 9


def test_unequal_clients_end_by_themselves() -> None:
    """Work of 1, 3 and 2 questions: who is done is not asked again, and the others go on together."""
    groups: list[int] = []

    class Question:
        key, last = "question", False

        def answer(self, calls: list[Any]) -> list[int]:
            groups.append(len(calls))
            return list(range(len(calls)))

    def work(n: int) -> list[int]:
        return [lockstep.ask(Question()) for _ in range(n)]

    assert in_step([lambda: work(1), lambda: work(3), lambda: work(2)]) == [[0], [1, 0, 0], [2, 1]]
    assert groups == [3, 2, 1]
    assert work(2) == [0, 0]  # alone, without anyone in step


def test_one_failure_ends_all() -> None:
    reached: list[int] = []

    class Question:
        key, last = "question", False

        def answer(self, calls: list[Any]) -> list[int]:
            return [0] * len(calls)

    def work(k: int) -> None:
        lockstep.ask(Question())
        if k == 1:
            raise UserError("no more")
        lockstep.ask(Question())
        reached.append(k)

    with pytest.raises(UserError, match="no more"):
        in_step([lambda k=k: work(k) for k in range(3)])
    assert reached == []


def test_an_answer_that_fails_ends_all() -> None:
    class Question:
        key, last = "question", False

        def answer(self, calls: list[Any]) -> list[int]:
            raise MemoryError("too large")

    with pytest.raises(MemoryError, match="too large"):
        in_step([lambda: lockstep.ask(Question())] * 3)


def test_auto_picks_by_what_is_trained() -> None:
    """Few sentences through the text tower: in step. Image towers, heads, or many sentences: side by side."""
    kinds = {}
    for tuner in ("text_prompt", "class_prompt", "visual_prompt", "adapter", "coupled+class_prompt"):
        kinds[tuner] = type(auto.make_engine(world("fedavg", tuner), None, None))
    assert kinds.pop("text_prompt") is kinds.pop("class_prompt") is StackedEngine
    assert set(kinds.values()) == {LocalEngine}


def test_as_a_setting(small: dict[str, Any]) -> None:
    loop, steps = (fedtailor.run("promptfl", small, engine=engine).summary for engine in ("local", "stacked"))
    assert steps["global"] == pytest.approx(loop["global"], abs=5)
    assert (steps["bytes_up"], steps["engine"]) == (loop["bytes_up"], "stacked")
    assert fedtailor.run("promptfl", small, engine="auto").summary["engine"] == "stacked"
