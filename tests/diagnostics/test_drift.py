"""How differently clients change their parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from seen_rounds import fedcopl, seen_round

from fedtailor.core.types import OWN
from fedtailor.evaluation.diagnostics.drift import changed, drift, own_towers, rows, spread, towers
from fedtailor.simulation.build import Experiment
from fedtailor.tuners import TUNERS
from world import JOINS, world

CAPT = "coupled+class_prompt"


def test_spread_by_hand() -> None:
    """Σ‖m_k‖² / ‖Σ m_k‖² and the mean of 1 − cos over pairs.

    (3, 4), (4, 3): 50 / 98 and 1 − 24/25; a third, (−7, −7), undoes the sum: cosines 0.96, −0.9899, −0.9899
    """
    m = torch.tensor([[3.0, 4.0], [4.0, 3.0]], dtype=torch.float64)
    assert spread(m) == {"diversity": pytest.approx(50 / 98), "cosine_distance": pytest.approx(0.04), "clients": 2}
    undone = torch.cat([m, -m.sum(0, keepdim=True)])
    assert spread(undone) == {
        "diversity": None,
        "cosine_distance": pytest.approx(1 - (0.96 - 2 * 49 / (5 * 98**0.5)) / 3),
        "clients": 3,
    }
    assert spread(m[:1]) == {"diversity": 1, "cosine_distance": None, "clients": 1}
    assert spread(torch.cat([m, 0 * m]))["cosine_distance"] == pytest.approx(0.04)  # type: ignore[index]  # no direction
    assert spread(0 * m) == {"diversity": None, "cosine_distance": None, "clients": 2}
    assert spread(None) is None


def test_rows_by_hand() -> None:
    """Parameters side by side, zero where a client did not touch one; who touched none of them is left out."""
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
    moves = {4: {"a": a, "b": b}, 1: {"b": 2 * b}, 2: {"c": a}}
    found = rows(moves, {"a", "b"})
    assert found is not None
    assert found.tolist() == [[6, 0, 0], [3, 1, 2]]
    assert rows(moves, {"d"}) is None


@pytest.mark.parametrize("tuner", [*(name for name in TUNERS if name != "none"), *JOINS])
def test_every_tuner_parameter_has_a_tower(tuner: str) -> None:
    """Told by what a tuner does with it. What is said here is the table of docs/tuners.md."""
    known = dict.fromkeys(("text", "class", "general", "meta", "generator"), "text")
    found = own_towers(world("fedavg", tuner).job.model)
    assert found
    assert found == {name: known.get(name.split(".")[0], "image") for name in found}


def test_deep_contexts_are_text() -> None:
    """Those of later layers too, which no class sentence begins with."""
    found = own_towers(world("fedavg", "coupled", **{"tuner.depth": 2}).job.model)
    assert {name for name in found if found[name] == "text"} == {"general.ctx", "general.deep1"}
    assert found["couple.1.weight"] == "image"


def test_a_methods_prefix_changes_no_tower() -> None:
    """FedPuReL's two branches are one tower each; a parameter beside the tuner's has none."""
    job = world("fedpurel", "text_prompt").job
    assert towers(job) == {"global.text.ctx": "text", "local.text.ctx": "text"}
    job.start["local.U"] = torch.zeros(1)
    assert "local.U" not in towers(job)


def test_a_round_of_fedavg() -> None:
    """From what each client last trained, minus what it was sent."""
    seen = seen_round(world("fedavg", "text_prompt+visual_prompt"), number=2)
    tuned = {k: seen.clients[k].tuned for k in seen.cohort}
    found = drift(seen)
    for tower, name in (("text", "text.ctx"), ("image", "visual.ctx")):
        moved = torch.stack([(tuned[k][name] - seen.before.params[name]).double().flatten() for k in seen.cohort])
        assert found[tower]["diversity"] == pytest.approx(float(moved.square().sum() / moved.sum(0).square().sum()))
        a, b = moved
        assert found[tower]["cosine_distance"] == pytest.approx(1 - float(a @ b / (a.norm() * b.norm())))
    assert found["all"]["diversity"] not in (found["text"]["diversity"], found["image"]["diversity"])
    assert found["all"]["clients"] == 2


def test_what_stays_with_a_client_counts() -> None:
    """FedCoPL's text prompts never leave: from where this client's own stood, not from the first value."""
    seen = seen_round(fedcopl(fraction=1.0), number=2)
    moved = torch.stack(
        [
            (seen.clients[k].local["text.ctx"] - seen.clients_before[k].local["text.ctx"]).double().flatten()
            for k in seen.cohort
        ]
    )
    assert drift(seen)["text"]["diversity"] == pytest.approx(float(moved.square().sum() / moved.sum(0).square().sum()))
    assert drift(seen)["image"]["clients"] == 4


def test_of_several_passes_each_parameter_has_its_own() -> None:
    """Interleaved FedPuReL trains φ_g, then φ_k; asking for labels or counts changes nothing."""
    seen = seen_round(world("fedpurel-released", "text_prompt"), number=2)
    passes = [sorted(changed(seen.job, traffic)) for traffic in seen.trace]
    assert passes == [["global.text.ctx"]] * 2 + [["local.text.ctx"]] * 2
    assert drift(seen)["all"]["clients"] == 2
    one = {t.client: changed(seen.job, t)["global.text.ctx"] for t in seen.trace[:2]}
    two = {t.client: changed(seen.job, t)["local.text.ctx"] for t in seen.trace[2:]}
    m = torch.stack([torch.cat([one[k].flatten(), two[k].flatten()]) for k in seen.cohort])
    assert drift(seen)["text"] == spread(m)


def capt(**more: object) -> Experiment:
    return world("capt", CAPT, **{"fraction": 1.0, "rounds": 6, "method.n_similar": 2, "method.n_diverse": 2, **more})


def test_what_a_client_holds_back_counts() -> None:
    """CAPT's F_k between two global aggregations: since it was last the server's."""
    seen = seen_round(capt(**{"method.bandit": False, "method.period": 4}), number=3)
    assert all("couple.0.bias" not in t.reply.params for t in seen.trace)
    name = "couple.0.bias"
    moves = {t.client: changed(seen.job, t) for t in seen.trace}
    for k in seen.cohort:
        now, sent = seen.clients[k].memory[name], seen.before.params[name]
        assert torch.equal(moves[k][name], now.double() - sent.double())
    assert drift(seen)["image"]["clients"] == 4


def test_the_servers_own_data_is_no_client() -> None:
    """Not even if a pass trained on it."""
    seen = seen_round(world("fedavg", "text_prompt"))
    assert drift(replace(seen, trace=[*seen.trace, replace(seen.trace[0], client=OWN)])) == drift(seen)
