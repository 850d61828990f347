"""A visit: what a client may know goes in, and only what may leave it comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedtailor.base.errors import UserError
from fedtailor.base.rng import generator
from fedtailor.client.job import ClientState, Job, Task
from fedtailor.client.step import client_step
from fedtailor.core.method import Method
from fedtailor.core.statistics import Form, Forms
from fedtailor.core.types import FIXED, GLOBAL, LOCAL, Batch, Me, Params, Reply, Scope
from fedtailor.privacy.base import Leaving, PrivacyStep
from fedtailor.simulation.local import LocalEngine
from posted import PostedEngine

SECRET = 1234567.0


@dataclass(frozen=True)
class NoClip:
    """All that visit asks of a model."""

    def put(self, value: Tensor) -> Tensor:
        return value


class NoData:
    labels = torch.zeros(3, dtype=torch.int64)

    def __len__(self) -> int:
        return 3

    def counts(self) -> Tensor:
        return torch.tensor([3])

    def until(self, end: float) -> NoData:
        return self

    def batches(self, size: int, drop_last: bool, rng: torch.Generator) -> Iterator[Batch]:
        return iter(())


class Odd(Method):
    """Passes that do what no pass should."""

    share: ClassVar[Mapping[str, Scope]] = {"g": GLOBAL, "l": LOCAL, "f": FIXED}

    def init(self, model: Any, rng: torch.Generator) -> Params:
        return {"g": torch.zeros(2), "l": torch.randn(2, generator=rng), "f": torch.randn(2, generator=rng)}

    def statistics(self, name: str, model: Any, theta: Params) -> Forms:
        sent = {
            "s": torch.ones(1),
            "n": torch.ones(1),
            "l": theta["l"],
            "draw": torch.ones(3),
            "round": torch.tensor(0),
        }
        return {name: Form(like, optional=True) for name, like in sent.items()}

    def leaky(self, model: Any, me: Me, theta: Params) -> Reply:
        """Returns everything it has, and keeps a secret."""
        new = {"g": theta["g"] + 1, "l": torch.full((2,), SECRET), "f": torch.full((2,), SECRET)}
        return Reply(new, weight=3, stats={"s": torch.ones(1)}, keep={"k": torch.full((1,), SECRET)})

    def destroying(self, model: Any, me: Me, theta: Params) -> Reply:
        """Writes into everything that it is given."""
        for params in (theta, me.memory, me.inbox):
            for value in params.values():
                value.fill_(SECRET)
            params["new"] = torch.ones(1)
        return Reply({})

    def recalling(self, model: Any, me: Me, theta: Params) -> Reply:
        """Counts its visits, and reports them."""
        n = me.memory.get("n", torch.zeros(1)) + 1
        return Reply({"l": theta["l"] + 1}, stats={"n": n, "l": theta["l"]}, keep={"n": n})

    def drawing(self, model: Any, me: Me, theta: Params) -> Reply:
        return Reply({}, stats={"draw": torch.rand(3, generator=me.rng), "round": torch.tensor(me.round)})

    def drawing_again(self, model: Any, me: Me, theta: Params) -> Reply:
        return self.drawing(model, me, theta)

    def unknown(self, model: Any, me: Me, theta: Params) -> Reply:
        return Reply({"h": torch.zeros(2)})

    def misshaped(self, model: Any, me: Me, theta: Params) -> Reply:
        return Reply({"g": torch.zeros(2, 1)})

    def retyped(self, model: Any, me: Me, theta: Params) -> Reply:
        return Reply({"g": torch.zeros(2, dtype=torch.float64)})

    def diverged(self, model: Any, me: Me, theta: Params) -> Reply:
        return Reply({"g": torch.tensor([0.0, float("nan")])})

    def diverged_at_home(self, model: Any, me: Me, theta: Params) -> Reply:
        return Reply({"l": torch.tensor([float("inf"), 0.0])})

    def weighing_nan(self, model: Any, me: Me, theta: Params) -> Reply:
        return Reply({"g": torch.zeros(2)}, weight=float("nan"))

    def weighing_less(self, model: Any, me: Me, theta: Params) -> Reply:
        return Reply({"g": torch.zeros(2)}, weight=-1.0)

    def weighing_more(self, model: Any, me: Me, theta: Params) -> Reply:
        return Reply({"g": torch.zeros(2)}, weight=4)

    def telling(self, model: Any, me: Me, theta: Params) -> Reply:
        return Reply({}, stats={"secret": torch.full((1,), SECRET)})

    def speechless(self, model: Any, me: Me, theta: Params) -> Reply:
        return None  # type: ignore[return-value]

    def complaining(self, model: Any, me: Me, theta: Params) -> Reply:
        raise UserError("this will not do")

    def failing(self, model: Any, me: Me, theta: Params) -> Reply:
        raise ZeroDivisionError("oh")


class Shared(Odd):
    """Nothing is local: what a client trained is its own model."""

    share: ClassVar[Mapping[str, Scope]] = {"g": GLOBAL, "l": GLOBAL, "f": FIXED}


def job(method: Method | None = None) -> Job:
    return Job(method or Odd(), NoClip(), seed=7)  # type: ignore[arg-type]


def go(
    pass_: str, client: ClientState | None = None, inbox: Params | None = None, **more: Any
) -> tuple[Reply, ClientState]:
    it = more.get("job", job())
    down = {n: torch.tensor([1.0, 2.0]) for n in it.first_server().params}
    task = Task(pass_, more.get("round", 5), down, inbox or {})
    return client_step(it, more.get("who", 3), it.find_pass(pass_), task, client or ClientState(), NoData())


def test_a_leaky_method_leaks_nothing() -> None:
    """A pass returns LOCAL, FIXED and what it keeps: none of it is in what leaves, and LOCAL stays with the client."""
    up, stays = go("leaky")
    assert list(up.params) == ["g"]
    assert up.params["g"].tolist() == [2.0, 3.0]
    assert (up.weight, list(up.stats), up.keep) == (3.0, ["s"], {})
    assert not any((value == SECRET).any() for params in (up.params, up.stats, up.keep) for value in params.values())
    assert stays.local["l"].tolist() == [SECRET, SECRET]
    assert list(stays.local) == ["l"]
    assert stays.memory["k"].tolist() == [SECRET]


@pytest.mark.parametrize("engine", [LocalEngine, PostedEngine])
def test_no_engine_leaks(engine: str) -> None:
    """Through every engine the server gets g and s, and the secret is with the client alone."""
    it = job()
    each = engine(it, {0: NoData(), 1: NoData()})
    replies = each(it.method.leaky, it.first_server(), [0, 1])  # type: ignore[attr-defined]
    assert sorted(replies) == [0, 1]
    assert all((list(r.params), list(r.stats), r.keep) == (["g"], ["s"], {}) for r in replies.values())
    assert each.clients[1].local["l"].tolist() == [SECRET, SECRET]


def test_fixed_parameters_come_from_the_seed_every_time() -> None:
    """What a pass returned for a FIXED parameter is nowhere: the next visit has its first value."""
    it, seen = job(), list[Params]()

    class Looking(Odd):
        def look(self, model: Any, me: Me, theta: Params) -> Reply:
            seen.append({n: v.clone() for n, v in theta.items()})
            return Reply({})

    _, stays = go("leaky", job=it)
    go("look", stays, job=job(Looking()))
    assert torch.equal(seen[0]["f"], it.start["f"])
    assert seen[0]["l"].tolist() == [SECRET, SECRET]
    assert list(seen[0]) == ["g", "l", "f"]


def test_the_server_holds_shared_parameters_only() -> None:
    """Neither LOCAL nor FIXED parameters are on the server at the start."""
    assert list(job().first_server().params) == ["g"]
    assert list(job(Shared()).first_server().params) == ["g", "l"]


def test_destruction_inside_a_pass_reaches_nobody() -> None:
    """Parameters, memory and mail are the pass's own copies, and so are the dicts."""
    it = job()
    start = {n: v.clone() for n, v in it.start.items()}
    down, mail = {"g": torch.tensor([1.0, 2.0])}, {"quota": torch.tensor([4.0])}
    client = ClientState(local={"l": torch.tensor([5.0, 6.0])}, memory={"m": torch.tensor([7.0])})
    _, stays = client_step(it, 0, it.find_pass("destroying"), Task("destroying", 0, down, mail), client, NoData())
    assert (down["g"].tolist(), mail["quota"].tolist()) == ([1.0, 2.0], [4.0])
    assert (client.local["l"].tolist(), client.memory["m"].tolist()) == ([5.0, 6.0], [7.0])
    assert (stays.local["l"].tolist(), stays.memory["m"].tolist()) == ([5.0, 6.0], [7.0])
    assert all(torch.equal(it.start[n], start[n]) for n in start)
    assert (list(mail), list(client.memory), list(it.start)) == (["quota"], ["m"], ["g", "l", "f"])


def test_a_clients_state_is_not_the_servers_memory() -> None:
    """Whatever the server does to a reply in place, the client's own copies stay as they were."""
    up, stays = go("leaky", job=job(Shared()))
    up.params["g"].fill_(-1)
    assert stays.tuned["g"].tolist() == [2.0, 3.0]


def test_memory_comes_back_and_versions_count() -> None:
    """Three visits: the pass finds what it kept and its LOCAL parameters; what it does not mention stays."""
    client = ClientState(memory={"other": torch.tensor([8.0])})
    for n in (1, 2, 3):
        up, client = go("recalling", client)
        assert up.stats["n"].item() == n
        assert client.version == n
    assert client.memory["other"].item() == 8.0
    assert torch.equal(client.local["l"], job().start["l"] + 1 + 1 + 1)


def test_tuned_is_kept_only_where_nothing_is_local() -> None:
    """A client without LOCAL parameters remembers its own training; one with them has those instead."""
    assert list(go("leaky", job=job(Shared()))[1].tuned) == ["g", "l"]
    assert go("leaky", job=job(Shared()))[1].local == {}
    assert go("leaky")[1].tuned == {}


def test_draws_have_an_address() -> None:
    """The same seed, round, client and pass give the same numbers; another of any of them gives others."""

    def draw(pass_: str = "drawing", **more: Any) -> list[float]:
        return go(pass_, **more)[0].stats["draw"].tolist()

    other = Job(Odd(), NoClip(), seed=8)  # type: ignore[arg-type]
    draws = [draw(), draw(round=6), draw(who=4), draw("drawing_again"), draw(job=other)]
    assert draw() == draws[0]
    assert len({tuple(d) for d in draws}) == 5
    assert draws[0] == torch.rand(3, generator=generator(7, "round", 5, "client", 3, "drawing")).tolist()


@pytest.mark.parametrize(
    ("pass_", "told"),
    [
        ("unknown", r"returned an unknown parameter 'h'; known: g, l, f"),
        ("misshaped", r"g came back as \(2, 1\), it is \(2,\)"),
        ("retyped", r"g came back as torch\.float64, it is torch\.float32"),
        ("diverged", r"g is no longer finite; .* smaller lr"),
        ("diverged_at_home", r"l is no longer finite"),
        ("weighing_nan", r"a reply of a client with 3 samples weighs 0 to 3, got nan"),
        ("weighing_less", r"a reply of a client with 3 samples weighs 0 to 3, got -1"),
        ("weighing_more", r"a reply of a client with 3 samples weighs 0 to 3, got 4"),
        ("telling", r"its statistics are not as declared: secret is not declared"),
        ("speechless", r"a pass gives back a Reply, got NoneType"),
        ("complaining", r"this will not do"),
    ],
)
def test_errors_say_where(pass_: str, told: str) -> None:
    """Method, pass, client and round stand before what is wrong."""
    with pytest.raises(UserError, match=rf"^Odd\.{pass_}, client 3, round 6: {told}"):
        go(pass_)


def test_a_bug_in_a_pass_keeps_its_kind_and_says_where() -> None:
    """An exception that is no UserError is raised as it is, with a note."""
    with pytest.raises(ZeroDivisionError, match="oh") as caught:
        go("failing")
    assert caught.value.__notes__ == ["in Odd.failing, client 3, round 6"]


def test_bytes_are_counted() -> None:
    """Down: g, 2 floats, and 3 whole numbers of mail; up: g and s."""
    task = Task("leaky", 0, {"g": torch.zeros(2)}, {"mail": torch.zeros(3, dtype=torch.int64)})
    assert task.bytes == 2 * 4 + 3 * 8
    each = LocalEngine(job(), {0: NoData()})
    each.step(each.job.find_pass("leaky"), 0, task)
    (visited,) = each.log
    assert (visited.bytes_down, visited.bytes_up) == (32, 12)
    assert (visited.client, visited.pass_name, visited.samples, visited.weight) == (0, "leaky", 3, 3.0)


class Blurred(PrivacyStep):
    def __call__(self, reply: Reply, at: Leaving) -> Reply:
        return Reply({"g": reply.params["g"] * 0 + at.start["g"]}, 1.0, {})


def test_the_privacy_step_is_the_last_thing_before_leaving() -> None:
    """Whatever it makes of a reply is what leaves; what stays is untouched by it."""
    blurred = replace(job(), privacy=Blurred())
    task = Task("leaky", 0, blurred.first_server().params)
    up, stays = client_step(blurred, 3, blurred.find_pass("leaky"), task, ClientState(), NoData())
    assert up.params["g"].tolist() == [0.0, 0.0]
    assert (up.weight, up.stats) == (1.0, {})
    assert stays.local["l"].tolist() == [SECRET, SECRET]


def test_a_pass_that_nobody_has() -> None:
    it = job()
    for address in ("nothing", "labels.vote"):
        with pytest.raises(UserError, match=f"there is no pass '{address}' here"):
            it.find_pass(address)
