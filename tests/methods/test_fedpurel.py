"""FedPuReL: equal to the authors' code, and line by line of Algorithm 1."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedtailor.algorithms.alignment import alignment, temperatures
from fedtailor.core.losses import candidate_loss, entropy, kl
from fedtailor.core.method import branch
from fedtailor.core.types import Batch, Params
from fedtailor.methods import METHODS
from fedtailor.methods.fedpurel import FedPuReL, purified, residual_loss
from fedtailor.methods.released.fedpurel import ReleasedFedPuReL
from fedtailor.simulation.build import Experiment
from fedtailor.simulation.engine import make_engine
from fedtailor.simulation.loop import run_round
from golden_numbers import GoldenCase, close, close_gradient, golden
from torch_optimisers import torch_optimiser
from world import make_tuner, world


def labelled(y: torch.Tensor) -> Batch:
    return Batch(torch.empty(len(y)), y.long(), torch.arange(len(y)))


def test_temperatures_give_both_the_mean_entropy() -> None:
    """Alg. 1, l. 8: τ_zs and τ_ft by bisection to the mean of the two entropies."""
    g = golden("fedpurel_tkl_moderate")
    z, f = g["teacher_logits"], g["student_logits"]
    close(entropy(z.softmax(-1)), g["ent_t"])
    close(entropy(f.softmax(-1)), g["ent_s"])
    tau_zs, tau_ft = temperatures(z, f)
    torch.testing.assert_close(tau_zs.flatten(), g["tau_t"], atol=4e-5, rtol=0)  # a last halving is 2e-5
    torch.testing.assert_close(tau_ft.flatten(), g["tau_s"], atol=4e-5, rtol=0)
    close((z / tau_zs).softmax(-1), g["p_t"])
    close((f / tau_ft).softmax(-1), g["p_s"])
    torch.testing.assert_close(entropy((z / tau_zs).softmax(-1)), g["h_star"], atol=1e-4, rtol=0)


def test_tkl_and_its_gradient() -> None:
    g = golden("fedpurel_tkl_moderate")
    f = g["student_logits"].clone().requires_grad_()
    loss = alignment("tkl", g["teacher_logits"], f)
    close(loss.detach(), g["loss_tkl"])
    close_gradient(torch.autograd.grad(loss, f)[0], g["grad_tkl_wrt_student_logits"])
    task = F.cross_entropy(f, g["labels"].long())
    close(task.detach(), g["loss_ce"])
    close_gradient(torch.autograd.grad(task, f)[0], g["grad_ce_wrt_student_logits"])


def test_tkl_does_not_see_confidence_and_kl_does() -> None:
    """f = 3 z has the same order and shape at another temperature: D_TKL ≈ 0, KL far from it (Table 6, Fig. 6)."""
    z = torch.tensor([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]])
    assert alignment("tkl", z, 3 * z).item() == pytest.approx(0, abs=1e-6)
    assert alignment("kl", z, 3 * z).item() > 0.1
    assert alignment("distil", z, z).item() == pytest.approx(entropy(z.softmax(-1)).mean().item())


def test_distillation_is_kl_plus_a_constant() -> None:
    """−Σ p ln q = KL(p‖q) + H(p): the gradient on f is (q − p) / B of both, so that align=distil trains as align=kl."""
    z = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    f = torch.randn(4, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
    by_hand = (f.softmax(-1) - z.softmax(-1)).detach() / 4
    for kind in ("kl", "distil"):
        (gradient,) = torch.autograd.grad(alignment(kind, z, f), f)
        torch.testing.assert_close(gradient, by_hand)
    (other,) = torch.autograd.grad(alignment("tkl", z, f), f)
    assert not torch.allclose(other, by_hand, atol=1e-3)


def test_kl_by_hand() -> None:
    """½ ln(½/¼) + ½ ln(½/¾) = ½ ln(4/3)."""
    found = kl(torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])).item()
    assert found == pytest.approx(0.5 * math.log(4 / 3))


def test_golden_projections() -> None:
    g = golden("fedpurel_projection")
    cases = sorted({key.rsplit(".", 1)[0] for key in g if key.startswith(("conflict", "agree"))})
    assert len(cases) == 8
    for case in cases:
        strength = float(case.rsplit("lambda", 1)[1])
        found = purified({"a": g[f"{case}.g_task"]}, {"a": g[f"{case}.g_align"]}, strength)["a"]
        close_gradient(found, g[f"{case}.projected"])
        assert torch.equal(found, g[f"{case}.g_task"]) == case.startswith("agree")


def test_projection_tensor_by_tensor_or_jointly() -> None:
    g = golden("fedpurel_projection")
    task, align = ({str(i): g[f"two.{i}.{kind}"] for i in (0, 1)} for kind in ("g_task", "g_align"))
    for i, found in purified(task, align).items():
        close_gradient(found, g[f"two.{i}.projected"])
    # Jointly by hand: (1, 0 | 2) against (−1, 0 | 1): ⟨⟩ = 1, no conflict, though the first tensor alone has one.
    task = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([2.0])}
    align = {"a": torch.tensor([-1.0, 0.0]), "b": torch.tensor([1.0])}
    assert {n: v.tolist() for n, v in purified(task, align, joint=True).items()} == {"a": [1, 0], "b": [2]}
    assert {n: v.tolist() for n, v in purified(task, align).items()} == {"a": [0, 0], "b": [2]}
    # And (3, 0 | 1): ⟨⟩ = −2, ‖‖² = 2, so g + (−1, 0 | 1).
    task["a"], task["b"] = torch.tensor([3.0, 0.0]), torch.tensor([1.0])
    assert {n: v.tolist() for n, v in purified(task, align, joint=True).items()} == {"a": [2, 0], "b": [2]}


def test_nothing_to_project_on() -> None:
    """A zero alignment gradient, or none, leaves the task gradient as it is."""
    g = golden("fedpurel_projection")
    task = {"a": g["zero_align.g_task"]}
    assert torch.equal(purified(task, {"a": torch.zeros(4)})["a"], g["zero_align.projected"])
    assert torch.equal(purified(task, {})["a"], task["a"])


@pytest.mark.parametrize("lam", [0.9, 0.99])
def test_residual_loss(lam: float) -> None:
    """Alg. 1, l. 27; of adapters the fused part alone, λ = 0."""
    g = golden("fedpurel_stage2_loss")
    for kind, weight in (("prompt", lam), ("adapter", 0.0)):
        l_P = g["logits_P"].clone().requires_grad_()
        loss = residual_loss(g["logits_G"], l_P, labelled(g["labels"]), weight)
        close(loss.detach(), g[f"{kind}.lambda{lam}.loss"])
        close_gradient(torch.autograd.grad(loss, l_P)[0], g[f"{kind}.lambda{lam}.grad_wrt_logits_P"])


ADAPTER = {"adapter.in.weight": "img_adap.0.weight", "adapter.in.bias": "img_adap.0.bias"}
ADAPTER |= {"adapter.out.weight": "img_adap.2.weight", "adapter.out.bias": "img_adap.2.bias"}


@pytest.mark.parametrize(
    ("file", "tuner", "options", "align", "names"),
    [
        ("fedpurel_model_prompt", "text_prompt", {"length": 4}, "tkl", {"text.ctx": "prompt_learner.ctx"}),
        ("fedpurel_model_adapter", "adapter", {}, "distil", ADAPTER),
    ],
)
def test_golden_models(file: str, tuner: str, options: dict[str, Any], align: str, names: dict[str, str]) -> None:
    """Teacher, student, both losses and gradients, the projection, and one step of SGD."""
    g, case = golden(file), GoldenCase(make_tuner(tuner, options))
    theta = {f"global.{ours}": g[f"input.{theirs}"].clone().requires_grad_() for ours, theirs in names.items()}
    z, f = case.model.teacher(case.batch), case.logits(branch(theta, "global."))
    close(z, g["teacher_logits"])
    close(f.detach(), g["logits"])
    distance, task = alignment(align, z, f), F.cross_entropy(f, case.labels)
    close(distance.detach(), g["loss_align"])
    close(task.detach(), g["loss_ce"])
    leaves = list(theta.values())
    for loss, key in ((distance, "grad_align"), (task, "grad_ce")):
        for name, found in zip(names.values(), torch.autograd.grad(loss, leaves, retain_graph=True), strict=True):
            close_gradient(found, g[f"{key}.{name}"])
    method = FedPuReL(align=align)  # type: ignore[arg-type]
    found = method.gradient(case.model, {})(theta, case.batch)
    optimiser = torch_optimiser(method.local, leaves)
    for ours in names:
        theta[f"global.{ours}"].grad = found[f"global.{ours}"]
    optimiser.step()
    for ours, theirs in names.items():
        moved = g[f"after_1_step.{theirs}"] - g[f"input.{theirs}"]
        assert (theta[f"global.{ours}"].detach() - g[f"after_1_step.{theirs}"]).norm() <= 2e-4 * moved.norm() + 1e-7
    close(case.logits({n: v.detach() for n, v in branch(theta, "global.").items()}), g["logits_after_1_step"])


def rounds(experiment: Experiment) -> list[Params]:
    """The shared parameters after every round; the engine is left on the experiment's clients."""
    engine, server = make_engine(experiment), experiment.job.first_server()
    found = []
    while server.round < experiment.rounds:
        server, _ = run_round(experiment, server, engine)
        found.append(
            {
                **server.params,
                **{
                    f"client{k}": c.local.get("local.text.ctx", torch.empty(0))
                    for k in range(4)
                    for c in [engine.clients[k]]
                },
            }
        )
    return found


def test_two_phases() -> None:
    """T rounds that leave no personal part, then one closing round over all clients that leaves φ_g alone."""
    experiment = world("fedpurel", "text_prompt", rounds=2, **{"method.T_p": 3})
    assert experiment.rounds == 3
    first, second, closed = rounds(experiment)
    assert all(len(second[f"client{k}"]) == 0 for k in range(4))
    assert not torch.equal(first["global.text.ctx"], second["global.text.ctx"])
    assert torch.equal(second["global.text.ctx"], closed["global.text.ctx"])
    start = experiment.job.start["local.text.ctx"]
    assert all(not torch.equal(closed[f"client{k}"], start) for k in range(4))
    assert world("fedpurel", "text_prompt", **{"method.T_p": 0}).rounds == 3


def test_interleaved() -> None:
    """As released: all clients in round 0; then only the cohort's personal parts move, each against the new φ_g."""
    experiment = world("fedpurel-released", "text_prompt", rounds=2)
    assert experiment.rounds == 2
    method = experiment.job.method
    assert method.cohort(0, 4, 0.5, torch.Generator()) == [0, 1, 2, 3]
    assert len(method.cohort(1, 4, 0.5, torch.Generator())) == 2
    first, second = rounds(experiment)
    assert all(len(first[f"client{k}"]) for k in range(4))
    assert sum(not torch.equal(first[f"client{k}"], second[f"client{k}"]) for k in range(4)) == 2


def test_the_shared_branch_starts_as_promptfl() -> None:
    """Comparisons begin from the same parameters; the personal branch has a start of its own."""
    ours, plain = world("fedpurel", "text_prompt").job.start, world("fedavg", "text_prompt").job.start
    assert torch.equal(ours["global.text.ctx"], plain["text.ctx"])
    assert not torch.equal(ours["local.text.ctx"], plain["text.ctx"])


def test_predictions_add_the_branches() -> None:
    experiment = world("fedpurel", "text_prompt")
    theta, x = experiment.job.start, experiment.tests.features.fetch(experiment.tests.everything)
    model, method = experiment.job.model, experiment.job.method
    l_G, l_P = (model.logits(branch(theta, part), x) for part in ("global.", "local."))
    torch.testing.assert_close(method.predict(model, theta, x), l_G + l_P)
    torch.testing.assert_close(method.predict_shared(model, theta, x), l_G)


@pytest.mark.parametrize("tuner", ["text_prompt", "lora"])
def test_the_teacher_is_asked_once(tuner: str) -> None:
    """CLIP's own features of the training pictures are cached: no step runs the plain tower again."""
    experiment = world("fedpurel", tuner, rounds=1)
    batch = next(experiment.client_data[0].batches(4, True, torch.Generator().manual_seed(0)))
    model = experiment.job.model
    assert (batch.plain is not None) == (model.stage != "features")
    torch.testing.assert_close(model.teacher(batch), model.zero_shot_logits(batch.x), atol=1e-4, rtol=1e-4)


def test_purification_pulls_towards_zero_shot() -> None:
    """The purified step changes D_TKL less than the plain one, to first order never upwards."""
    experiment = world("fedpurel", "text_prompt")
    model, batch = (
        experiment.job.model,
        next(experiment.client_data[0].batches(8, True, torch.Generator().manual_seed(0))),
    )
    theta = {n: (v * 3).requires_grad_() for n, v in experiment.job.start.items() if n.startswith("global.")}

    def distance(at: Params) -> torch.Tensor:
        return alignment("tkl", model.teacher(batch), model.logits(branch(at, "global."), batch.x))

    (slope,) = torch.autograd.grad(distance(theta), list(theta.values()))
    gradients = [FedPuReL(projection=p).gradient(model, {})(theta, batch)["global.text.ctx"] for p in (0.0, 1.0)]
    plain, pure = ((slope * g).sum().item() for g in gradients)
    assert pure == pytest.approx(max(plain, 0.0), abs=1e-5 + 1e-3 * abs(plain))


def test_presets() -> None:
    assert METHODS["fedpurel"].method is FedPuReL
    assert (FedPuReL().lam, ReleasedFedPuReL().lam) == (0.9, 0.99)
    adapter = world("fedpurel-released", "adapter").run
    assert (adapter.method.options["align"], adapter.method.options["lam"]) == ("distil", 0.0)
    assert adapter.method.options["carry"] == "shared"
    prompt = world("fedpurel-released", "text_prompt").run
    assert (prompt.method.options["align"], prompt.method.options["lam"]) == ("tkl", 0.99)
    assert world("fedpurel", "adapter").run.method.options["align"] == "tkl"


def test_candidate_sets_reach_both_terms() -> None:
    """With a candidate-set labeler the two cross-entropies are candidate-set losses."""
    l_G, l_P = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[0.5, 0.0, -1.0]])
    candidates = torch.tensor([[1.0, 0.0, 1.0]])
    batch = Batch(torch.empty(1), torch.tensor([0]), torch.tensor([0]), candidates=candidates)
    expected = 0.1 * candidate_loss(l_G + l_P, candidates) + 0.9 * candidate_loss(l_P, candidates)
    torch.testing.assert_close(residual_loss(l_G, l_P, batch, 0.9), expected)
