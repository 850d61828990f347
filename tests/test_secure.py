"""Secure sums: what is added up, what the server sees, who may be lost, and what nobody gets twice."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from fedtailor.base.errors import UserError
from fedtailor.client.job import Task
from fedtailor.core.statistics import Form
from fedtailor.core.types import Params, Reply
from fedtailor.remote import vault as vault_module
from fedtailor.remote.messages import (
    KeysRequest,
    MaskedReply,
    MaskedRequest,
    Message,
    OpenReply,
    OpenRequest,
    PublicKeys,
    Request,
)
from fedtailor.remote.policy import ANYTHING, SitePolicy
from fedtailor.remote.refusal import Refused
from fedtailor.remote.sums import SecureSum
from fedtailor.remote.vault import KEPT, Held, Vault, as_added, pair, what_is_sent
from fedtailor.secure import keys as crypto
from fedtailor.secure.encoding import UNIT, Layout, Words, most
from fedtailor.secure.masked import Masked
from remote import RUN, Killed

SENT = {"params": {"w": torch.tensor([0.5, -1.0, 3.0])}, "inbox": {}}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


# --- the numbers ------------------------------------------------------------------------------------------------------


def layout(clients: int, words: int = 3, stats: Iterable[str] = ()) -> Layout:
    return Layout({"w": torch.arange(words) / 4}, {name: torch.zeros(2) for name in stats}, clients)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.lists(st.floats(-50, 50, width=32), min_size=3, max_size=3)), min_size=1)
)
def test_a_sum_stands_for_the_weighted_mean(replies: list[tuple[int, list[float]]]) -> None:
    """Up to half a unit of each client, by the weight of all, and float32's own rounding."""
    form, n = layout(len(replies)), len(replies)
    total = np.zeros(form.words, np.uint64)
    for weight, change in replies:
        total += form.encoded(Reply({"w": form.start["w"] + torch.tensor(change)}, weight))
    weights = np.array([weight for weight, _ in replies])
    values = np.array([(form.start["w"] + torch.tensor(change)).double().numpy() for _, change in replies])
    mean, found = weights @ values / weights.sum(), form.mean(total, n)
    bound = n * UNIT / 2 / weights.sum() + 2**-23 * np.abs(mean).max()
    assert np.abs(found.params["w"].double().numpy() - mean).max() <= bound
    assert found.weight == weights.sum() / n


def test_who_sends_nothing_of_a_parameter_or_statistic_does_not_count_for_it() -> None:
    form = layout(9, stats=("s", "never"))
    one = Reply({"w": form.start["w"] + 1}, 2.0, {"s": torch.tensor([1.0, 2.0])})
    two = Reply({}, 5.0, {"s": torch.tensor([3.0, 0.0])})
    found = form.mean(form.encoded(one) + form.encoded(two) + form.encoded(Reply({}, 5.0)), 3)
    assert torch.equal(found.params["w"], form.start["w"] + 1)
    assert found.stats.keys() == {"s"}
    assert torch.equal(found.stats["s"], torch.tensor([2.0, 1.0]))
    assert found.weight == 4


def test_what_could_wrap_around_is_refused_and_what_is_let_through_cannot() -> None:
    form = layout(50)
    largest = Reply({"w": form.start["w"].double() - most(50)}, 1.0)  # in float64, to be exactly at the bound
    total = sum((form.encoded(largest) for _ in range(50)), np.zeros(form.words, np.uint64))
    assert np.allclose(form.mean(total, 50).params["w"], form.start["w"] - most(50))
    with pytest.raises(UserError, match=r"more than .* that each of 50 clients may add to a secure sum"):
        form.encoded(Reply({"w": form.start["w"] + 2 * most(50)}, 1.0))
    with pytest.raises(UserError, match="a weighted change of nan"):
        form.encoded(Reply({"w": form.start["w"] + torch.nan}, 1.0))


def test_counts_are_not_added_up() -> None:
    for form in (Form(torch.zeros(3), counts=True), Form(torch.zeros(3, dtype=torch.int64))):
        with pytest.raises(UserError, match="votes counts pictures"):
            Layout.of({}, {"votes": form}, 4)


def test_a_sum_that_no_replies_have_is_noticed() -> None:
    form = layout(4)
    total = form.encoded(Reply({"w": form.start["w"]}, 3.0))
    for word, value in ((0, -1.0), (1, 5.0), (2, 99.0)):
        wrong = total.copy()
        wrong[word] = np.int64(value / UNIT).astype(np.uint64)
        with pytest.raises(UserError, match="somebody did not keep to it"):
            form.mean(wrong, 4)


# --- keys, masks, shares ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("least", "holders"), [(2, 3), (3, 4), (5, 7), (34, 50)])
def test_shares(least: int, holders: int) -> None:
    """So many put the secret together, whichever they are; one fewer does not."""
    secret = crypto.new_seed()
    shares = crypto.split(secret, least, holders)
    Random(0).shuffle(shares)
    assert crypto.join(shares[:least]) == secret
    assert crypto.join(shares[: least - 1]) != secret
    with pytest.raises(UserError, match="do not go together"):
        crypto.join([shares[0], shares[0], *shares[2:least]])


def test_two_sides_agree_and_nobody_else() -> None:
    one, other, third = crypto.new_pair(), crypto.new_pair(), crypto.new_pair()
    key = crypto.agreed(one.private, other.public, "a")
    assert key == crypto.agreed(other.private, one.public, "a")
    assert key not in (crypto.agreed(one.private, other.public, "b"), crypto.agreed(third.private, one.public, "a"))
    with pytest.raises(UserError, match="a public key is none"):
        crypto.agreed(one.private, bytes(32), "a")
    sealed = crypto.seal(key, b"text", "1 to 2")
    assert crypto.unseal(key, sealed, "1 to 2") == b"text"
    for key_, sealed_, about in ((key[::-1], sealed, "1 to 2"), (key, sealed[:-1], "1 to 2"), (key, sealed, "2 to 1")):
        with pytest.raises(UserError, match="cannot be opened"):
            crypto.unseal(key_, sealed_, about)


@pytest.mark.parametrize(("neighbours", "clients"), [(0, 5), (4, 5), (4, 6), (6, 40)])
def test_neighbours_are_each_others(neighbours: int, clients: int) -> None:
    graph = Masked(neighbours=neighbours).graph(range(clients), Random(1))
    wanted = min(neighbours or clients - 1, clients - 1)
    for k, near in graph.items():
        assert len(set(near) - {k}) == wanted
        assert all(k in graph[other] for other in near)
    assert neighbours in (0, 4) or graph != Masked(neighbours=neighbours).graph(range(clients), Random(2))


def test_two_sets_of_survivors_are_never_both_opened() -> None:
    """Of the holders of a secret, more than half are needed, and no fewer than two thirds."""
    for holders in range(3, 200):
        assert 2 * (least := Masked().least(holders)) > holders
        assert 2 * holders <= 3 * least <= 3 * holders


# --- the protocol, among clients without a model ----------------------------------------------------------------------

STAGES = ("train.keys", "train.shares", "train.pass", "train.open")


@dataclass
class Crowd:
    """A server's sum, and clients whose part of it is on disk alone: each message meets a process started anew."""

    folder: Path
    clients: int = 7
    secure: Masked = field(default_factory=Masked)
    policy: SitePolicy = ANYTHING
    keys: dict[int, EllipticCurvePrivateKey] = field(default_factory=dict)
    came: dict[int, list[Message]] = field(default_factory=dict)
    words: dict[int, Words] = field(default_factory=dict)  # masked, as they came

    def __post_init__(self) -> None:
        self.numbers = count(1)
        rng = np.random.default_rng(0)
        self.replies = {
            k: Reply({"w": SENT["params"]["w"] + torch.from_numpy(rng.normal(size=3)).float()}, float(k + 1))
            for k in range(self.clients)
        }
        self.layout = Layout(SENT["params"], {}, self.clients)
        self.begin()

    def begin(self) -> None:
        task = Task("train", 0, SENT["params"])
        self.sum = SecureSum(self.secure, self.layout, dict.fromkeys(range(self.clients), task))
        self.sent: dict[tuple[int, str], Request] = {}

    def heading(self, k: int) -> dict[str, Any]:
        n = next(self.numbers)
        about = {"request_id": f"00000000-{n}", "version": 0, "state_id": "", "kept": 0}
        return {"run": RUN, "client": k, **about}

    def answer(self, k: int, order: Any) -> Message:
        folder = self.folder / str(k)
        folder.mkdir(parents=True, exist_ok=True)
        vault = Vault(folder, order, self.secure, self.clients, self.policy, self.keys.get(k))
        found = vault.answered()
        if found is None and isinstance(order, MaskedRequest):
            vault.receive_shares(order)
            head = {"run": RUN, "client": k, "request_id": order.request_id}
            found = MaskedReply(**head, version=1, samples=9, seconds=0.0)
            vault.keep_masked(self.layout.encoded(self.replies[k]), found, what_is_sent(order.masking, SENT))
        elif found is None:
            found = vault.answer(order)
        self.words[k] = vault.words
        self.came.setdefault(k, []).append(found)
        return found

    def stage(self, number: int, who: Collection[int]) -> None:
        stage = self.sum.stages[number]
        orders = {k: stage.write(k, self.heading(k))[0] for k in who}
        for k, order in orders.items():
            self.sent[k, stage.kind] = order
            found = self.answer(k, order)
            masked = {"masked": {"words": torch.from_numpy(self.words[k].view(np.int64))}}
            stage.take(k, found, masked if isinstance(found, MaskedReply) else {})

    def run(self, *lost: Collection[int]) -> Params:
        """The mean of those who stay; `lost`: who does not take each stage."""
        there = set(range(self.clients))
        for number in range(4):
            there -= set(lost[number]) if number < len(lost) else set()
            self.stage(number, sorted(there))
        return self.sum.mean().params

    def mean(self, who: Collection[int]) -> Params:
        total = sum((self.layout.encoded(self.replies[k]) for k in who), np.zeros(self.layout.words, np.uint64))
        return self.layout.mean(total, len(who)).params

    def held(self, k: int) -> Held:
        found = Vault(self.folder / str(k), self.sent[k, STAGES[0]], self.secure, self.clients, self.policy).held
        assert found
        return found


@pytest.mark.parametrize("neighbours", [0, 6])
@pytest.mark.parametrize("lost", [(), ((2,),), ((), (5,)), ((), (), (0,)), ((), (), (), (6,)), ((1,), (), (4,), (3,))])
def test_the_sum_of_those_who_stay(lost: tuple[Collection[int], ...], neighbours: int, tmp_path: Path) -> None:
    """To the bit, whoever is lost at whichever stage: the rest is whole numbers. Who is lost in the last is in it."""
    crowd = Crowd(tmp_path, 11, secure=Masked(neighbours=neighbours))
    stay = set(range(11)) - {k for who in lost[:3] for k in who}
    assert torch.equal(crowd.run(*lost)["w"], crowd.mean(stay)["w"])
    assert crowd.sum.survivors == stay


def test_with_too_few_the_sum_stays_closed_and_other_keys_open_the_next(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    with pytest.raises(UserError, match="4 shares of a secret of client 0, 5 are needed"):
        crowd.run((), (), (), (0, 1, 2))
    first = {k: crowd.held(k).keys for k in range(7)}
    crowd.begin()
    assert torch.equal(crowd.run()["w"], crowd.mean(range(7))["w"])
    assert all(crowd.held(k).keys != first[k] for k in range(7))
    crowd.begin()
    with pytest.raises(Refused, match="4 sites in a sum; 5 are needed here"):
        crowd.run((), (), (0, 1, 2))


def test_a_masked_reply_looks_like_chance_and_only_its_secrets_open_it(tmp_path: Path) -> None:
    """Of two runs that differ in one client's data, all that the server gets of that client is uniform, and so is the
    difference; with the masks taken away, which nobody but the client can compute, its reply is there."""
    seen, crowds = [], []
    for n, data in enumerate((0.0, 1000.0)):
        crowd = Crowd(tmp_path / str(n))
        crowd.layout = Layout({"w": torch.zeros(4000)}, {}, 7)
        crowd.replies = {k: Reply({"w": torch.full((4000,), data if k == 3 else 1.0)}, 5.0) for k in range(7)}
        crowd.begin()
        for stage in range(3):
            crowd.stage(stage, range(7))
        seen.append(crowd.words[3])
        crowds.append(crowd)
    plain = crowds[1].layout.encoded(crowds[1].replies[3])
    for words in (*seen, seen[1] - seen[0]):
        assert kstest(words / 2.0**64, "uniform").pvalue > 1e-9
        assert kstest((words & np.uint64(0xFFFF)) / 2.0**16, "uniform").pvalue > 1e-9
        assert not set(words) & set(plain)
    crowd, held = crowds[1], crowds[1].held(3)
    words = seen[1] - crypto.mask(crypto.derived(bytes.fromhex(held.seed), f"own mask {crowd.sum.id}"), len(plain))
    assert not np.array_equal(words, plain)
    for k, keys in held.peers.items():
        about = pair(crowd.sum.id, 3, k, what_is_sent(crowd.sum.id, SENT))
        key = crypto.agreed(bytes.fromhex(held.masking), bytes.fromhex(keys.masking), about)
        words = words - as_added(crypto.mask(key, len(plain)), 3, k)
    assert np.array_equal(words, plain)


def test_masks_do_not_cancel_among_clients_that_were_sent_different_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that sends one client other parameters gets no sum at all."""
    crowd, real = Crowd(tmp_path), what_is_sent
    for stage in range(2):
        crowd.stage(stage, range(7))
    crowd.stage(2, [k for k in range(7) if k != 3])
    with monkeypatch.context() as patch:
        other = {"params": {"w": torch.zeros(3)}, "inbox": {}}
        patch.setattr("test_secure.what_is_sent", lambda about, _: real(about, other))
        crowd.stage(2, [3])
    crowd.stage(3, range(7))
    with pytest.raises(UserError, match="somebody did not keep to it"):
        crowd.sum.mean()
    tasks = {k: Task("train", 0, SENT["params"], {"quota": torch.tensor(k)}) for k in range(3)}
    with pytest.raises(UserError, match="clients are sent different things"):
        SecureSum(Masked(), crowd.layout, tasks)


# --- nothing twice ----------------------------------------------------------------------------------------------------


def again(order: Any, **change: Any) -> Any:
    return order.model_copy(update=change)


def test_a_request_that_comes_again_gets_the_same_answer_and_another_none(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    for number, kind in enumerate(STAGES):
        crowd.stage(number, range(7))
        order, words = crowd.sent[3, kind], crowd.words[3]
        assert crowd.answer(3, order) == crowd.came[3][-2]
        assert np.array_equal(crowd.words[3], words)
        with pytest.raises(Refused, match="of which"):
            crowd.answer(3, again(order, request_id="00000000-999"))
    assert torch.equal(crowd.sum.mean().params["w"], crowd.mean(range(7))["w"])


@pytest.mark.parametrize("done", range(4))
def test_no_step_is_left_out(done: int, tmp_path: Path) -> None:
    """Nor taken before another."""
    crowd, ahead = Crowd(tmp_path / "a"), Crowd(tmp_path / "b")
    for number in range(done):
        crowd.stage(number, range(7))
    for number in range(4):
        ahead.stage(number, range(7))
    for kind in STAGES[done + 1 :]:
        with pytest.raises(Refused, match=r"of which \w+-request is due"):
            crowd.answer(3, again(ahead.sent[3, kind], masking=crowd.sum.id))


def test_nobody_gives_both_kinds_of_share_of_anyone(tmp_path: Path) -> None:
    """Whatever survivors a server names, in whatever order: of each client, all that is ever given is one kind."""
    crowd = Crowd(tmp_path)
    for number in range(3):
        crowd.stage(number, range(7))
    secrets_of = {k: crowd.held(k) for k in range(7)}
    given: dict[tuple[int, int], set[str]] = {}
    for survivors in ((0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 4), (2, 3, 4, 5, 6), (0, 2, 3, 4, 5, 6)):
        for k in range(7):
            order = OpenRequest(**{n: v for n, v in crowd.heading(k).items() if n != "kept"}, masking=crowd.sum.id,
                                survivors=survivors)  # fmt: skip
            try:
                found = crowd.answer(k, order)
            except Refused:
                continue
            assert isinstance(found, OpenReply)
            for owner, share in found.shares.items():
                given.setdefault((k, owner), set()).add(share)
    assert len(given) == 49
    assert all(len(shares) == 1 for shares in given.values())
    assert all(given[k, k] == {secrets_of[k].shares[k][0]} for k in range(7))  # of its own seed, never of its key


@pytest.mark.parametrize(
    ("survivors", "told"),
    [
        ((0, 1, 2, 4, 5, 6), "survivors"),  # it is told that it is gone itself
        ((0, 1, 2, 3, 4, 5, 9), "survivors"),
        ((3, 3, 3, 3, 3), "survivors"),
        ((0, 1, 2, 3), "4 sites in a sum; 5 are needed"),
    ],
)
def test_survivors_that_cannot_be(survivors: tuple[int, ...], told: str, tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    for number in range(3):
        crowd.stage(number, range(7))
    good, _ = crowd.sum.stages[3].write(3, crowd.heading(3))
    with pytest.raises(Refused, match=told):
        crowd.answer(3, again(good, survivors=survivors))
    assert crowd.answer(3, good)  # and no step was taken by that


def test_after_the_last_step_no_secret_is_left_on_the_disk(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    for number in range(3):
        crowd.stage(number, range(7))
    before = crowd.held(2)
    file = next((tmp_path / "2").glob("masking-*"))
    secrets = [before.seed, before.masking, before.sealing, before.shares[2][1]]
    assert all(secret.encode() in file.read_bytes() for secret in secrets)
    assert file.stat().st_mode & 0o077 == 0
    crowd.stage(3, range(7))
    assert not any(secret.encode() in file.read_bytes() for secret in secrets)


@pytest.mark.parametrize("stage", range(4))
def test_killed_before_an_answer_is_on_the_disk(stage: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has not left; asked again, another process takes the step, once, and the sum is the same."""
    crowd = Crowd(tmp_path)
    for number in range(stage):
        crowd.stage(number, range(7))
    order, _ = crowd.sum.stages[stage].write(3, crowd.heading(3))

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(vault_module, "write_atomic", killed)
        with pytest.raises(Killed):
            crowd.answer(3, order)
    for number in range(stage, 4):
        crowd.stage(number, range(7))
    assert torch.equal(crowd.sum.mean().params["w"], crowd.mean(range(7))["w"])


def test_damaged_on_disk_or_forgotten_it_is_refused(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    crowd.stage(0, range(7))
    crowd.stage(1, range(7))
    file = next((tmp_path / "3").glob("masking-*"))
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(Refused, match="is damaged"):
        crowd.stage(2, [3])
    file.unlink()
    with pytest.raises(Refused, match="keys-request is due"):
        crowd.stage(2, [3])
    for _ in range(KEPT + 3):
        crowd.begin()
        crowd.stage(0, [3])
    assert len(list((tmp_path / "3").glob("masking-*"))) == KEPT


# --- whom a client trusts ---------------------------------------------------------------------------------------------


def public(key: EllipticCurvePrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() + " site"


def signing(folder: Path, strangers: Collection[int] = ()) -> Crowd:
    """Sites that know each other's keys, but for some strangers'."""
    keys = {k: generate_private_key(SECP384R1()) for k in range(4)}
    peers = tuple(public(key) for k, key in keys.items() if k not in strangers)
    return Crowd(folder, 4, policy=ANYTHING.model_copy(update={"peers": peers}), keys=keys)


def test_sites_that_know_each_others_keys(tmp_path: Path) -> None:
    crowd = signing(tmp_path)
    assert torch.equal(crowd.run()["w"], crowd.mean(range(4))["w"])


Forge = Callable[[Crowd, Any], Any]
FORGERIES: dict[str, Forge] = {
    "keys of the server's own": lambda crowd, it: it.model_copy(update={"masking": crypto.new_pair().public.hex()}),
    "no signature": lambda crowd, it: it.model_copy(update={"signature": ""}),
    "another's signature": lambda crowd, it: it.model_copy(update={"signature": crowd.sum.keys[2].signature}),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_keys_that_no_known_site_has_signed(forgery: str, tmp_path: Path) -> None:
    crowd = signing(tmp_path)
    crowd.stage(0, range(4))
    crowd.sum.keys[1] = FORGERIES[forgery](crowd, crowd.sum.keys[1])
    with pytest.raises(Refused, match="the keys of client 1 are signed by none of the other sites in peers"):
        crowd.stage(1, [3])


def test_a_site_that_is_no_peer_and_one_that_plays_two(tmp_path: Path) -> None:
    crowd = signing(tmp_path / "a", strangers=[2])
    crowd.stage(0, range(4))
    with pytest.raises(Refused, match="the keys of client 2 are signed by none"):
        crowd.stage(1, [3])
    crowd = signing(tmp_path / "b")
    crowd.keys[1] = crowd.keys[2]
    crowd.stage(0, range(4))
    with pytest.raises(Refused, match="the keys of client 2 are signed by none"):
        crowd.stage(1, [3])
    crowd.keys[1] = crowd.keys[3]  # nor may a site be its own neighbour
    crowd.begin()
    crowd.stage(0, range(4))
    with pytest.raises(Refused, match="the keys of client 1 are signed by none"):
        crowd.stage(1, [3])


@pytest.mark.parametrize("wrong", ["itself", "beyond", "the same twice", "no key", "too few"])
def test_neighbours_that_cannot_be(wrong: str, tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, 4)
    crowd.stage(0, range(4))
    order, _ = crowd.sum.stages[1].write(3, crowd.heading(3))
    peers = dict(order.peers)  # type: ignore[attr-defined]
    nothing = peers[0].model_copy(update={"sealing": "0" * 64})
    other = PublicKeys(sealing=crypto.new_pair().public.hex(), masking=crypto.new_pair().public.hex())
    change: dict[str, dict[int, Any]] = {
        "itself": {3: other}, "beyond": {4: other}, "the same twice": {1: peers[0]}, "no key": {0: nothing},
    }  # fmt: skip
    peers = {0: peers[0]} if wrong == "too few" else {**peers, **change[wrong]}
    code = "policy-together" if wrong == "too few" else "peers"
    with pytest.raises(Refused) as refused:
        crowd.answer(3, again(order, peers=peers))
    assert refused.value.why == code


def test_a_site_that_wants_more_to_hide_among(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, 7, policy=ANYTHING.model_copy(update={"together": 7}))
    assert torch.equal(crowd.run()["w"], crowd.mean(range(7))["w"])
    crowd.begin()
    with pytest.raises(Refused, match="6 sites in a sum; 7 are needed here"):
        crowd.run((4,))
    crowd.begin()
    with pytest.raises(Refused, match="6 sites in a sum; 7 are needed here"):
        crowd.run((), (4,))


def test_sealed_shares_of_strangers_or_not_whole(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, 4)
    crowd.stage(0, range(4))
    crowd.stage(1, range(4))
    order, _ = crowd.sum.stages[2].write(3, crowd.heading(3))
    sealed = order.sealed  # type: ignore[attr-defined]
    for wrong, code in (
        ({**sealed, 9: sealed[0]}, "masking"),
        ({**sealed, 1: sealed[0]}, "peers"),
        ({0: sealed[0]}, "policy-together"),
    ):
        with pytest.raises(Refused) as refused:
            crowd.answer(3, again(order, sealed=wrong))
        assert refused.value.why == code
    with pytest.raises(Refused, match="keys were given for train in round 1"):
        crowd.answer(3, again(order, round=1))
    assert crowd.answer(3, order)


def test_what_a_server_gets_that_is_no_answer(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, 4)
    crowd.stage(0, range(4))
    with pytest.raises(UserError, match="it sent a keys-reply where another reply was due"):
        crowd.sum.stages[1].take(3, crowd.came[3][0], {})
    crowd.stage(1, range(4))
    with pytest.raises(UserError, match="has not sealed a share to each"):
        crowd.sum.stages[1].take(3, crowd.came[3][1].model_copy(update={"sealed": {}}), {})
    crowd.stage(2, range(4))
    with pytest.raises(UserError, match=r"it sent \(2,\) in torch.int64, not 6 words"):
        crowd.sum.stages[2].take(3, crowd.came[3][2], {"masked": {"words": torch.zeros(2, dtype=torch.int64)}})
    crowd.stage(3, range(4))
    with pytest.raises(UserError, match="has not given a share for each"):
        crowd.sum.stages[3].take(3, crowd.came[3][3].model_copy(update={"shares": {}}), {})


def test_a_wrong_share_of_a_lost_clients_key_is_noticed(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, 7)
    crowd.run((), (), (0,))
    crowd.sum.shares[0][0] = crowd.sum.shares[0][0][:2] + bytes(32)
    with pytest.raises(UserError, match="shares of the key of client 0 are wrong"):
        crowd.sum.mean()


def test_a_keys_request_names_its_pass(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, 4)
    crowd.stage(0, [1])
    order = crowd.sent[1, STAGES[0]]
    assert isinstance(order, KeysRequest)
    assert (order.pass_name, order.round, order.masking) == ("train", 0, crowd.sum.id)
