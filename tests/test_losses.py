"""Clients that do not answer: every method, labeler and clustering goes on with those who do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.algorithms.clustering import CLUSTERINGS, DIVERSE
from fedtailor.base.rng import number
from fedtailor.client.codec import client_to_bytes
from fedtailor.client.job import ClientState, Task
from fedtailor.core.method import Method
from fedtailor.core.types import OWN, Params, Pass, Reply, Server
from fedtailor.labelers import LABELERS
from fedtailor.methods import METHODS
from fedtailor.methods.released.relay import Relay
from fedtailor.runs.execute import train
from fedtailor.runs.folder import RunFolder
from fedtailor.runs.server_bytes import server_to_bytes
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.local import LocalEngine
from fedtailor.simulation.loop import run_round
from world import combinations, world


class Lossy(LocalEngine):
    """In every pass about two clients in five are lost, never all. Who is lost stays so for the rest of the round."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.round, self.gone = -1, set[int]()

    def __call__(
        self, pass_: Pass, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        tasks = self.tasks(pass_, server, cohort, inbox)
        task = next(iter(tasks.values()))
        if task.round != self.round:
            self.round, self.gone = task.round, set()
        there = [k for k in tasks if k not in self.gone]
        answer = [k for k in there if k == OWN or not self.loses(task, k)] or self.spared(task, there, [*tasks])
        self.gone = (self.gone | tasks.keys()) - set(answer)
        return {k: self.step(pass_, k, tasks[k]) for k in reversed(answer)}  # not the cohort's order

    def loses(self, task: Task, k: int) -> bool:
        return self.luck(task, k) % 5 < 2

    def spared(self, task: Task, there: list[int], asked: list[int]) -> list[int]:
        """Who answers after all, where nobody would. If all were lost in earlier passes, one is back."""
        return [max(there or asked, key=lambda k: self.luck(task, k))]

    def luck(self, task: Task, k: int) -> int:
        return number("luck", task.round, task.pass_name, k)


class OneLeft(Lossy):
    def loses(self, task: Task, k: int) -> bool:
        return True


class Late(Lossy):
    """Client 0 misses the first round; nothing else is lost."""

    def loses(self, task: Task, k: int) -> bool:
        return task.round == 0 and k == 0


class Relayed(Lossy):
    """Clients that are asked one by one may all be silent but the first who is still there."""

    def spared(self, task: Task, there: list[int], asked: list[int]) -> list[int]:
        if len(asked) > 1:
            return super().spared(task, there, asked)
        answered = any((step.round, step.pass_name) == (task.round, task.pass_name) for step in self.log)
        return [] if answered else there


Case = tuple[str, str, dict[str, Any]]  # method, tuner, settings

# Labels are made at the beginning of every round, so that whoever trains has some.
LABELLED = {"labels.refresh": 1, "fraction": 1.0}
FIRST = {m: t for m, t in reversed(combinations()) if METHODS[m].method.trains}  # each method's first tuner
PLAIN: dict[str, Case] = {m: (m, FIRST[m], LABELLED if m == "fedcopl" else {}) for m in reversed(FIRST)}
CAPT = {"method.bandit": False, "method.period": 2}  # clusters last for a round or two
MORE: dict[str, Case] = {
    **{f"labels {name}": ("promptfl", "text_prompt", {"labels": name, **LABELLED}) for name in LABELERS},
    **{f"capt, labels {name}": ("capt", FIRST["capt"], {"labels": name, **LABELLED}) for name in ("copl", "zeroshot")},
    **{f"similar {how}": ("capt", FIRST["capt"], {**CAPT, "method.similar": how}) for how in CLUSTERINGS},
    **{f"diverse {how}": ("capt", FIRST["capt"], {**CAPT, "method.diverse": how}) for how in DIVERSE},
    "capt, clients validate": ("capt", FIRST["capt"], {"method.holdout": 0.3}),  # a tenth of nine samples is none
    "capt, the server validates": ("capt", FIRST["capt"], {"data.server": 0.2}),
    "fedgrab": ("promptfl", "text_prompt", {"rebalance": "fedgrab"}),
    "fedadam": ("promptfl", "text_prompt", {"server": "fedadam"}),
    "capt, fedadam": ("capt", FIRST["capt"], {"server": "fedadam"}),
}
CASES = {**PLAIN, **MORE}
RELAYED: dict[str, Case] = {
    "capt": ("capt-released", FIRST["capt"], {"method.against": "text"}),
    "fedcopl": ("fedcopl-released", FIRST["fedcopl"], LABELLED),
    "fedpurel": ("fedpurel-released", "text_prompt", {}),
    "fedavg": ("fedavg-released", "text_prompt", {}),
}


def made(case: Case) -> Experiment:
    method, tuner, more = case
    return world(method, tuner, **{"clients": 5, "fraction": 0.8, "every": 3, **more})


def run(case: Case, folder: Path, rounds: int = 99) -> tuple[Experiment, Server, dict[int, ClientState]]:
    """All rounds in a folder, or so many, and what was saved."""
    experiment = made(case)
    store = RunFolder(folder) if folder.exists() else RunFolder.create(folder, experiment.run, {})
    records = train(experiment, store, resuming=(folder / "checkpoint.json").exists())
    for _ in zip(range(rounds), records, strict=False):
        pass
    saved = store.resume()
    store.close()
    assert saved is not None
    return experiment, experiment.job.resumed(saved[0]), saved[1]


def missing(folder: Path) -> set[tuple[int, int]]:
    """Round and client, where a client of the cohort was not reached at all."""
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    visits = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    return {(r["round"] - 1, k) for r in rounds for k in r["cohort"]} - {(v["round"] - 1, v["client"]) for v in visits}


def same(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def check_learned(experiment: Experiment, server: Server, clients: dict[int, ClientState]) -> None:
    everything = [server.params, *(copy for held in server.clusters.values() for copy in held.values())]
    everything += [params for client in clients.values() for params in (client.local, client.tuned)]
    assert all(torch.isfinite(value).all() for params in everything for value in params.values())
    first = experiment.job.first_server().params
    if first:
        assert not same(server.params, first)
    else:
        assert all(not same(client.local, experiment.job.start) for client in clients.values() if client.version)


def check_stop_and_resume(case: Case, folder: Path) -> Path:
    experiment, server, clients = run(case, folder / "straight")
    assert server.round == experiment.rounds
    check_learned(experiment, server, clients)
    run(case, folder / "broken", rounds=1)
    _, server_too, clients_too = run(case, folder / "broken")
    assert server_to_bytes(server) == server_to_bytes(server_too)
    assert {k: client_to_bytes(c) for k, c in clients.items()} == {
        k: client_to_bytes(c) for k, c in clients_too.items()
    }
    return folder / "straight"


@pytest.mark.parametrize("name", CASES)
def test_with_losses(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rounds run through and something is learned; stopped and resumed, the same bits."""
    monkeypatch.setattr("fedtailor.simulation.local.LocalEngine", Lossy)
    straight = check_stop_and_resume(CASES[name], tmp_path)
    assert bool(missing(straight)) != (OWN in METHODS[CASES[name][0]].method.everyone(1))


@pytest.mark.parametrize("name", RELAYED)
def test_with_losses_one_after_the_other(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtailor.simulation.local.LocalEngine", Relayed)
    assert missing(check_stop_and_resume(RELAYED[name], tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_client_answers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtailor.simulation.local.LocalEngine", OneLeft)
    check_learned(*run(CASES[name], tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if OWN not in METHODS[CASES[name][0]].method.everyone(1)])
def test_a_client_that_misses_the_first_round(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes part later, with parameters of its own where clients have some."""
    monkeypatch.setattr("fedtailor.simulation.local.LocalEngine", Late)
    experiment, _, clients = run(CASES[name], tmp_path / "run", rounds=1)
    assert 0 not in clients
    experiment, server, clients = run(CASES[name], tmp_path / "run")
    check_learned(experiment, server, clients)
    own = clients[0].local if experiment.job.personal else clients[0].tuned
    assert own
    assert any(not torch.equal(value, experiment.job.start[n]) for n, value in own.items())


@pytest.mark.parametrize("name", [name for name in PLAIN if name not in ("central", "fedcopl")])
def test_a_silent_client_is_like_one_that_was_not_drawn(name: str) -> None:
    """To the server and to all others: the same parameters, the same clusters, the same states."""
    method, tuner, more = CASES[name]
    # CAPT's prior is of all clients, drawn or not: only there a silent one is missing.
    experiment = made((method, tuner, {**more, "method.prior": False} if method == "capt" else more))

    class Silent(Lossy):
        def loses(self, task: Task, k: int) -> bool:
            return k == 1

    def after(engine: LocalEngine, cohort: list[int]) -> tuple[bytes, list[bytes]]:
        server = experiment.job.method.round(experiment.job.first_server(), cohort, engine)
        server = experiment.job.method.close(server, cohort, engine)
        state = {name: value for name, value in server.state.items() if name != "counts"}  # CAPT's, of all clients
        return server_to_bytes(replace(server, state=state)), [client_to_bytes(engine.clients[k]) for k in (0, 3)]

    drawn, silent = LocalEngine(experiment.job, experiment.client_data), Silent(experiment.job, experiment.client_data)
    assert after(silent, [0, 1, 3]) == after(drawn, [0, 3])
    assert silent.clients[1] == ClientState()
    assert after(LocalEngine(experiment.job, experiment.client_data), [0, 1, 3]) != after(drawn, [0, 3])


def test_capt_counts_a_client_when_it_comes() -> None:
    """Who misses the census has a row of zeros, and no other's; from its first training on, its own."""
    experiment = made(("capt", FIRST["capt"], {"fraction": 1.0}))
    engine, server = Late(experiment.job, experiment.client_data), experiment.job.first_server()
    own = torch.stack([experiment.client_data[k].counts() for k in range(5)])
    server, _ = run_round(experiment, server, engine)
    assert server.state["counts"][0].tolist() == [0] * 5
    assert torch.equal(server.state["counts"][1:], own[1:])
    server, _ = run_round(experiment, server, engine)
    assert torch.equal(server.state["counts"], own)


def test_capt_keeps_old_counts_of_who_misses_a_later_census() -> None:
    experiment = made(("capt", FIRST["capt"], {"fraction": 1.0, "labels": "zeroshot", "labels.refresh": 1}))
    server = experiment.job.first_server()
    server, _ = run_round(experiment, server, LocalEngine(experiment.job, experiment.client_data))
    before = server.state["counts"]

    class Turned(Lossy):
        """Client 0 is silent, the others have other labels than before."""

        def loses(self, task: Task, k: int) -> bool:
            return k == 0

        def step(self, pass_: Pass, k: int, task: Task) -> Reply:
            reply = super().step(pass_, k, task)
            return replace(reply, stats={n: v.flip(0) if n == "counts" else v for n, v in reply.stats.items()})

    after, _ = run_round(experiment, server, Turned(experiment.job, experiment.client_data))
    assert torch.equal(after.state["counts"][0], before[0])
    assert not torch.equal(after.state["counts"][1:], before[1:])


@pytest.mark.parametrize("name", ["capt, clients validate", "capt, the server validates"])
@pytest.mark.parametrize("engine", [Lossy, OneLeft])
def test_capts_bandit_learns_from_those_who_answer(name: str, engine: type[Lossy]) -> None:
    experiment = made(CASES[name])
    losing = engine(experiment.job, experiment.client_data)
    server, _ = run_round(experiment, experiment.job.first_server(), losing)  # round 0 ends in a global aggregation
    asked = {visit.client for visit in losing.log if visit.pass_name == "examine"}
    assert asked == {OWN} if experiment.job.validates else asked < {0, 1, 2, 3, 4}
    assert asked
    assert server.state["pulls"].sum() == len(server.state["history"]) == 1


def test_a_relay_goes_past_a_silent_client() -> None:
    """Momentum and parameters reach the next one as they left the one before, as if nobody stood between them."""

    def each(
        pass_: Any, server: Server, cohort: Sequence[int], inbox: Mapping[int, Params] | None = None
    ) -> dict[int, Reply]:
        (k,) = cohort
        mail, reached = (inbox or {})[k], server.params["a"] * 2 + k
        stats = {"velocity.a": mail.get("velocity.a", torch.zeros(1)) + 10**k}
        return {} if k == 1 else {k: Reply({"a": reached}, stats=stats)}

    train, server = Method().train, Server(0, {"a": torch.ones(1)})
    relay = Relay(each, train, {}, chain={})
    assert [*relay(train, server, [0, 1, 2])] == [0, 2]
    assert relay.chain is not None
    assert (relay.chain["a"].item(), relay.velocity["velocity.a"].item()) == ((1 * 2 + 0) * 2 + 2, 10**0 + 10**2)
    replies = Relay(each, train, {})(train, server, [1])
    assert not replies
    assert Method().aggregate(server, replies).params["a"].item() == 1


@pytest.mark.parametrize(
    ("method", "labels"), [*(("promptfl", name) for name in LABELERS), ("capt", "copl"), ("fedcopl", "copl")]
)
def test_a_client_that_missed_the_labeling(
    method: str, labels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels were made once, without it: it has nothing to train on, and counts for nothing."""
    monkeypatch.setattr("fedtailor.simulation.local.LocalEngine", Late)
    case = method, FIRST[method], {"labels": labels, "labels.refresh": 0, "fraction": 1.0}
    experiment, server, clients = run(case, tmp_path / "run")
    check_learned(experiment, server, clients)
    visits = [json.loads(line) for line in (tmp_path / "run" / "clients.jsonl").read_text().splitlines()]
    weights = {k: {v["weight"] for v in visits if v["client"] == str(k) and v["pass"] == "train"} for k in range(5)}
    assert weights[0] == {0}
    assert any(0 not in weights[k] for k in range(1, 5))
