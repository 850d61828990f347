"""CReFF: FedAvg, and a classifier re-trained by the server on features made up from the clients' class gradients.

Shang et al., Federated Learning on Heterogeneous and Long-Tailed Data via Classifier Re-Training with Federated
Features, IJCAI 2022.
Notation: classifier → head.*, re-trained classifier → retrained.*, real features → f, federated features → v, their
number for each class → m.
Departures, all of them in docs/methods/creff.md: a class's gradient is the mean over all the client's pictures of it,
unaugmented, and the re-trained classifier starts as the first head.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..base.rng import generator
from ..core import Form, Forms, Me, Method, Model, Params, Reply, Server, linear_init, weighted_mean

WEIGHT, BIAS, FEATURES = "retrained.weight", "retrained.bias", "creff.features"
Pair = tuple[Tensor, Tensor]  # of a linear classifier's weight and bias, or of what belongs to them


class CReFF(Method):
    neutral = {"m": 0}
    made = ("retrained.*",)

    m: int = Field(100, ge=0, description="federated features of each class; 0: none, which is FedAvg")
    match_steps: int = Field(100, ge=0, description="steps of plain SGD on the federated features, each round")
    match_lr: float = Field(0.1, gt=0, allow_inf_nan=False, description="of these steps")
    retrain_epochs: int = Field(300, ge=0, description="passes over the federated features, each round")
    retrain_batch: int = Field(32, ge=1, description="of these passes")
    retrain_lr: float = Field(0.01, gt=0, allow_inf_nan=False, description="of these passes")

    @property
    def mixing(self) -> str:
        return "sends the gradients of whole classes" if self.m else ""

    @property
    def singly(self) -> str:
        return ""  # of a class's gradients, too, the mean is taken

    def init(self, model: Model, rng: torch.Generator) -> Params:
        theta = model.init(rng)
        return {**theta, WEIGHT: theta["head.weight"].clone(), BIAS: theta["head.bias"].clone()} if self.m else theta

    def train(self, model: Model, me: Me, theta: Params) -> Reply:
        """FedAvg's pass; besides, the gradients of the re-trained classifier go up, class by class."""
        reply = super().train(model, me, {n: value for n, value in theta.items() if n not in (WEIGHT, BIAS)})
        return replace(reply, stats={**reply.stats, **class_gradients(model, me, theta)}) if self.m else reply

    def aggregate(self, server: Server, replies: Mapping[int, Reply]) -> Server:
        server = super().aggregate(server, replies)
        if self.m == 0:
            return server
        rng = generator(server.seed, "creff", server.round)
        classifier, (C, D) = (server.params[WEIGHT], server.params[BIAS]), server.params[WEIGHT].shape
        v = server.state[FEATURES] if FEATURES in server.state else torch.randn(C, self.m, D, generator=rng)
        v = matched(v, mean_gradients(replies), classifier, self.match_steps, self.match_lr)
        weight, bias = retrained(v, self.retrain_epochs, self.retrain_batch, self.retrain_lr, rng)
        return replace(server, params={**server.params, WEIGHT: weight, BIAS: bias}).remember(**{FEATURES: v})

    def statistics(self, name: str, model: Model, theta: Params) -> Forms:
        parts = {"weight": theta[WEIGHT], "bias": theta[BIAS]} if name == "train" and self.m else {}
        classes = range(model.classes)
        return {f"{c}.{part}": Form(like, optional=True) for c in classes for part, like in parts.items()}

    def predict_shared(self, model: Model, theta: Params, x: Tensor) -> Tensor:
        """With the re-trained classifier; clients' own models have the head that they trained."""
        return F.linear(model.features(theta, x), theta[WEIGHT], theta[BIAS]) if self.m else model.logits(theta, x)


@torch.no_grad()
def class_gradients(model: Model, me: Me, theta: Params) -> Params:
    """Of the re-trained classifier on the client's real features: "3.weight" and "3.bias" for class 3, if it has it."""
    y, found = me.data.labels, Params()
    if len(y) == 0:
        return found
    f = torch.cat([model.features(theta, view.x) for view in me.data.views()])
    for c in y.unique().tolist():
        one = model.put(y[y == c])
        found[f"{c}.weight"], found[f"{c}.bias"] = gradient(f[y == c], one, theta[WEIGHT], theta[BIAS])
    return found


def gradient(f: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Pair:
    """(…, C, D) and (…, C): of the mean cross-entropy of a linear classifier on features (…, n, D) labelled (…, n)."""
    wrong = F.linear(f, weight, bias).softmax(-1) - F.one_hot(y, len(bias))  # (…, n, C)
    return wrong.mT @ f / f.shape[-2], wrong.mean(-2)


def mean_gradients(replies: Mapping[int, Reply]) -> dict[int, Pair]:
    """By class: the plain mean over the clients that have it."""
    mean = weighted_mean({k: Reply(reply.stats) for k, reply in replies.items()})
    classes = sorted(int(name.removesuffix(".bias")) for name in mean if name.endswith(".bias"))
    return {c: (mean[f"{c}.weight"], mean[f"{c}.bias"]) for c in classes}


def matched(v: Tensor, real: Mapping[int, Pair], classifier: Pair, steps: int, lr: float) -> Tensor:
    """(C, m, D) federated features, moved so that their classes' gradients point where the real ones do."""
    if not real:
        return v
    classes = torch.tensor(list(real))
    weights, biases = (torch.stack(parts) for parts in zip(*real.values(), strict=True))
    y, now = classes[:, None].expand(-1, v.shape[1]), v[classes]
    for _ in range(steps):
        now.requires_grad_()
        (slope,) = torch.autograd.grad(distance(gradient(now, y, *classifier), (weights, biases)), now)
        now = now.detach() - lr * slope
    return v.index_copy(0, classes, now.detach())


def distance(made: Pair, real: Pair) -> Tensor:
    """Σ 1 − cos over the weight gradient's rows and the bias gradient, of all classes."""
    rows, whole = (1 - F.cosine_similarity(*pair, dim=-1) for pair in zip(made, real, strict=True))
    return rows.sum() + whole.sum()


def retrained(v: Tensor, epochs: int, batch: int, lr: float, rng: torch.Generator) -> Pair:
    """A new linear classifier, trained by plain SGD on as many federated features of every class."""
    C, m, D = v.shape
    weight, bias = linear_init("retrained", D, C, rng).values()
    x, y = v.flatten(0, 1), torch.arange(C).repeat_interleave(m)
    for _ in range(epochs):
        order = torch.randperm(C * m, generator=rng)
        for some in zip(x[order].split(batch), y[order].split(batch), strict=True):
            slopes = gradient(*some, weight, bias)
            weight, bias = weight - lr * slopes[0], bias - lr * slopes[1]
    return weight, bias
