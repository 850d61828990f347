"""A site's policy: what it says, what it refuses, and what it counts by itself."""

from __future__ import annotations

import json
import math
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

import fedtailor
from fedtailor.base.errors import UserError
from fedtailor.core.types import Reply
from fedtailor.labelers import LABELERS
from fedtailor.methods import METHODS
from fedtailor.privacy.base import Leaving
from fedtailor.privacy.gaussian import Gaussian
from fedtailor.privacy.ledger import of_releases
from fedtailor.privacy.noise import Noise
from fedtailor.remote import spending
from fedtailor.remote.audit import read_lines
from fedtailor.remote.engine import invitation_of
from fedtailor.remote.messages import Invitation
from fedtailor.remote.policy import ANYTHING, Permission, SitePolicy, noise_of, read_policy
from fedtailor.remote.refusal import SENTENCES, UNFIT, Refused
from fedtailor.remote.spending import Spending
from fedtailor.tuners import TUNERS
from remote import RUN, RemoteWorld, here
from world import world

TEMPLATE = Path(fedtailor.__file__).parent / "flower" / "templates" / "client" / "policy.toml"
PRIVATE = {"privacy": "gaussian", "privacy.noise": 4.0, "privacy.counts_noise": 4.0, "fraction": 1.0}


def permission(folder: Path, **policy: Any) -> Permission:
    return Permission(SitePolicy(**policy), Spending(folder / "spent.json"))


def invited(method: str = "fedavg", tuner: str = "text_prompt", run: str = RUN, **more: Any) -> Invitation:
    return invitation_of(world(method, tuner, **more), run)


# --- the file -------------------------------------------------------------------------------------------------------


def test_what_init_hands_out_says_the_defaults() -> None:
    """Every key is in it, each with the value that it has where there is no file."""
    assert read_policy(TEMPLATE) == SitePolicy()
    assert set(tomllib.loads(TEMPLATE.read_text())) == set(SitePolicy.model_fields)


def test_the_defaults_name_what_there_is() -> None:
    """Whatever is new is allowed by nobody until somebody has thought about it."""
    refused = set(TUNERS) - set(SitePolicy().tuners)
    assert refused == {"none", "head", "adapter", "meta_prompt", "lora", "resnet"}
    assert set(SitePolicy().labelers) == set(LABELERS)
    released = {name for name in METHODS if name.endswith("-released")}
    others = {"creff", "rucr", "zeroshot", "central"} | {
        name for name, entry in METHODS.items() if set(entry.tuner.split("+")) & refused and name != "tailor"
    }
    assert set(METHODS) - set(SitePolicy().methods) == released | others


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("round = 3", r"policy\.toml: unknown key 'round'; did you mean 'rounds'\?"),
        ('tuners = ["haed"]', r"policy\.toml: unknown tuner 'haed'; did you mean 'head'\? \(fedtailor list tuners\)"),
        ('methods = "all"', "methods: "),
        ('rounds = "3"', "rounds: input should be a valid integer, got '3'"),
        ("rounds = true", "rounds: "),
        ("rounds = -1", "rounds: input should be greater than or equal to 0"),
        ("epsilon = 3", 'epsilon is of privacy = "gaussian"'),
        ("epsilon = inf", "epsilon: input should be a finite number"),
        ('privacy = "laplace"', "privacy: input should be 'none' or 'gaussian'"),
        ('secure = "masked"', "secure: input should be 'none' or 'required'"),
        ("together = 2", "together: input should be greater than or equal to 3"),
        ('peers = ["ssh-ed25519 AAAA"]', r"peers: the line in a site's client\.pub"),
        ('weights = ["123"]', "weights: .*first 12 digits"),
        ('[hub]\n"openai/clip" = "main"', "hub: .*commit"),
        ('[hub]\n"../clip" = "' + "a" * 40 + '"', "hub: .*commit"),
        ("rounds = ", "is not a readable policy"),
    ],
)
def test_a_policy_that_says_something_else(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(UserError, match=told):
        read_policy(tmp_path / "policy.toml")
    with pytest.raises(UserError, match="is not a readable policy"):
        read_policy(tmp_path / "none.toml")


# --- who may take part ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "run", "code"),
    [
        ({"methods": ["fedprox"]}, {}, "policy-method"),
        ({}, {"method": "rucr", "tuner": "resnet"}, "policy-method"),
        ({}, {"tuner": "head"}, "policy-tuner"),
        ({}, {"tuner": "text_prompt+lora"}, "policy-tuner"),
        ({"labelers": ["cpl"]}, {"labels": "copl"}, "policy-labeler"),
        ({"rounds": 2}, {}, "policy-rounds"),
        ({"weights": ["0123456789ab"]}, {}, "weights"),
        ({"privacy": "gaussian"}, {}, "policy-privacy"),
        ({"privacy": "gaussian", "noise": 4.1}, PRIVATE, "policy-privacy"),
        ({"privacy": "gaussian"}, {**PRIVATE, "privacy.unit": "picture"}, "policy-privacy"),
        ({"privacy": "gaussian", "counts_noise": 4.1}, PRIVATE, "policy-privacy"),
        ({"privacy": "gaussian"}, {**PRIVATE, "privacy.noise": 0}, "policy-privacy"),
        ({"privacy": "gaussian"}, {**PRIVATE, "privacy.generator": "seeded"}, "policy-privacy"),
        # The noise of four clients together is twice the noise of one.
        ({"privacy": "gaussian", "noise": 2.1}, {**PRIVATE, "privacy.against": "others"}, "policy-privacy"),
        ({"secure": "required"}, {}, "policy-secure"),
        ({"orders_per_day": 1}, {}, "policy-orders"),
    ],
)
def test_what_a_policy_does_not_allow(policy: dict[str, Any], run: dict[str, Any], code: str, tmp_path: Path) -> None:
    """And the same run is allowed by a policy that differs in that alone."""
    asked, told = permission(tmp_path, **policy), invited(**run)
    if code == "policy-orders":
        asked.to_join(told)
    with pytest.raises(Refused) as refused:
        asked.to_join(told)
    assert refused.value.why == code
    assert Permission(ANYTHING, Spending(tmp_path / "x")).to_join(told).method.name == run.get("method", "fedavg")


@pytest.mark.parametrize(
    ("policy", "run"),
    [
        ({}, {}),
        ({}, {"method": "capt", "tuner": "coupled+class_prompt"}),
        ({}, {"method": "fedcopl", "tuner": "text_prompt+visual_prompt"}),
        ({"tuners": "any"}, {"tuner": "head"}),
        ({"privacy": "gaussian", "noise": 4.0, "counts_noise": 4.0}, PRIVATE),
        ({"privacy": "gaussian", "noise": 2.0}, {**PRIVATE, "privacy.against": "others"}),
    ],
)
def test_what_a_policy_allows(policy: dict[str, Any], run: dict[str, Any], tmp_path: Path) -> None:
    assert permission(tmp_path, **policy).to_join(invited(**run)).rounds == 3


def test_a_refusal_is_a_code_that_has_a_sentence(tmp_path: Path) -> None:
    """And the sentence goes up alone: what this site's policy says is not in it."""
    there = RemoteWorld(world("fedavg", "head"), tmp_path, policy=SitePolicy())
    with pytest.raises(UserError) as told:
        there.engine().open()
    why = "; ".join(f"client {k}: {SENTENCES['policy-tuner']}" for k in range(4))
    assert str(told.value) == f"not all clients can take part in this run ({why})"
    assert not any(b"class_prompt" in arrival.data for arrival in there.transport.came)
    (line,) = read_lines(tmp_path / "client-0" / "audit")
    assert "class_prompt" in line.facts["detail"]
    assert set(SENTENCES) > UNFIT


def test_the_default_policy_changes_no_bit(tmp_path: Path) -> None:
    experiment = world("fedavg", "text_prompt", rounds=2, fraction=1.0)
    there = RemoteWorld(experiment, tmp_path, policy=SitePolicy())
    assert there.end() == here(experiment)
    assert there.dropped() == {}


# --- orders ---------------------------------------------------------------------------------------------------------


def test_no_more_orders_of_a_run(tmp_path: Path) -> None:
    """An invitation and two passes: in the third round nobody is left."""
    experiment = world("fedavg", "text_prompt", fraction=1.0)
    there = RemoteWorld(experiment, tmp_path, policy=SitePolicy(orders_per_run=3))
    rounds = there.rounds()
    next(rounds), next(rounds)
    with pytest.raises(UserError, match="0 of 4 clients replied"):
        next(rounds)
    *_, last = read_lines(tmp_path / "client-0" / "audit")
    assert (last.facts["why"], last.facts["detail"]) == ("policy-orders", "3 orders; orders_per_run=3")


def test_another_day_has_orders_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = permission(tmp_path, orders_per_day=2)
    asked.count(RUN), asked.count("f" * 32)
    with pytest.raises(Refused, match="orders_per_day=2"):
        asked.count(RUN)
    asked.spent.save()
    with pytest.raises(Refused, match="orders_per_day=2"):  # a restart changes nothing
        permission(tmp_path, orders_per_day=2).count(RUN)

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: object = None) -> Tomorrow:
            return cls(2999, 1, 1, tzinfo=UTC)

    monkeypatch.setattr(spending, "datetime", Tomorrow)
    again = permission(tmp_path, orders_per_day=2)
    again.count(RUN)
    assert again.spent.orders_of(RUN) == 2


def test_a_site_need_not_tell_how_well_models_do(tmp_path: Path) -> None:
    experiment = world("fedavg", "text_prompt", fraction=1.0, rounds=1)
    there = RemoteWorld(experiment, tmp_path, policy=SitePolicy(tests=False))
    *_, server = there.rounds()
    there.made.evaluate(experiment, server)
    assert there.made.tested == {}
    assert {step.dropped for step in there.made.log} == {SENTENCES["policy-tests"]}


# --- a budget of its own --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("against", ["server", "others"])
def test_a_site_counts_the_noise_that_is_in_its_own_replies(against: str) -> None:
    """What `noise_of` says is the deviation of what leaves, in units of the longest update."""
    step, like = Gaussian(clip=0.2, noise=3.0, against=against), torch.zeros(50_000)
    left = step(Reply({"w": like}), Leaving({"w": like}, {}, 10, 4, Noise(b"key")))
    assert float(left.params["w"].std()) / 0.2 == pytest.approx(noise_of(step, 4)["updates"], rel=0.02)
    assert noise_of(Gaussian(generator="seeded"), 4) == {"updates": 0.0, "counts": 0.0}
    assert noise_of(None, 4) == {"updates": 0.0, "counts": 0.0}


def test_releases_add_up(tmp_path: Path) -> None:
    """By hand: one with noise 3 and one with 4 are as one with 1/√(1/9 + 1/16) = 2.4; four with 6 are one with 3."""
    spent = Spending(tmp_path / "spent.json")
    assert spent.epsilon("updates", 1e-5) == 0.0
    spent.release(["updates"], {"updates": 3.0})
    assert spent.epsilon("updates", 1e-5) == pytest.approx(of_releases(3.0, 1, 1e-5))
    assert spent.epsilon("updates", 1e-5, more=4.0) == pytest.approx(of_releases(2.4, 1, 1e-5))
    for _ in range(4):
        spent.release(["counts"], {"counts": 6.0})
    assert spent.epsilon("counts", 1e-5) == pytest.approx(of_releases(6.0, 4, 1e-5))
    spent.save()
    again = Spending(tmp_path / "spent.json")
    assert again.counts == spent.counts
    again.release(["counts"], {"counts": 0.0})
    assert again.epsilon("counts", 1e-5) == math.inf


def test_an_order_beyond_the_budget_is_refused_across_runs_and_restarts(tmp_path: Path) -> None:
    """Three releases are allowed: two rounds of one run and one of another, at which the process is a new one."""
    experiment = world("fedavg", "text_prompt", **{**PRIVATE, "rounds": 2, "plan.tries": 1})
    limit = of_releases(4.0, 3, 1e-5)
    policy = SitePolicy(privacy="gaussian", epsilon=limit * 1.0001)
    assert RemoteWorld(experiment, tmp_path, policy=policy).end()
    there = RemoteWorld(experiment, tmp_path, policy=policy)
    engine = there.engine()
    engine.invitation = engine.invitation.model_copy(update={"run": "f" * 32})
    there.engine = lambda clients=None: engine  # type: ignore[method-assign]
    rounds = there.rounds()
    next(rounds)
    with pytest.raises(UserError, match="0 of 4 clients replied"):
        next(rounds)
    for k in range(4):
        spent = json.loads((tmp_path / f"client-{k}" / "spent.json").read_text())
        assert spent["released"] == {"updates": {"4.0": 3}, "counts": {}}
        *_, last = read_lines(tmp_path / f"client-{k}" / "audit")
        assert last.facts["detail"] == f"updates: ε is {limit:.3g}, would be {of_releases(4.0, 4, 1e-5):.3g}; " + (
            f"{limit * 1.0001:g} is allowed"
        )


def test_what_was_released_without_noise_leaves_no_budget(tmp_path: Path) -> None:
    """Runs without privacy count too."""
    assert RemoteWorld(world("fedavg", "text_prompt", rounds=1, fraction=1.0), tmp_path, policy=SitePolicy()).end()
    careful = RemoteWorld(world(**PRIVATE), tmp_path, policy=SitePolicy(privacy="gaussian", epsilon=50.0))
    careful.engine().open()
    assert careful.site(0).permission.spent.epsilon("updates", 1e-5) == math.inf
    with pytest.raises(UserError, match="0 of 4 clients replied"):
        next(careful.rounds())


def test_a_damaged_count_is_not_begun_anew_silently(tmp_path: Path) -> None:
    (tmp_path / "spent.json").write_text('{"day": ')
    with pytest.raises(UserError, match="counts what this site has done and released, is damaged"):
        Spending(tmp_path / "spent.json")
