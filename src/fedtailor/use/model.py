"""A tuned model: `load("runs/mine").predict(["photo.jpg"])`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base.errors import UserError
from ..base.progress import ProgressFn
from ..base.rng import generator
from ..clip.encoder import Encoder
from ..clip.load import Checkpoint
from ..core.method import Method
from ..core.model import PRECISIONS, Model
from ..core.types import Params
from ..data.dataset import Indices
from ..data.preprocess import Preprocess
from ..evaluation.calibration import Calibration
from ..evaluation.testing import Logits
from ..settings.run import Run
from .class_names import new_classes, with_rows
from .model_file import SHARED, ModelFacts, check_shapes, read_params
from .pictures import Pictures, listed, name_of

WORK = "looking at pictures"
Probabilities = NDArray[np.float32]
Predict = Callable[[Model, Params, Tensor], Tensor]


@dataclass(frozen=True)
class Prediction:
    picture: str
    classes: tuple[tuple[str, float], ...]  # the likeliest first, each with its probability
    unsure: bool | None = None  # None: the model is not calibrated

    @property
    def label(self) -> str:
        return self.classes[0][0]

    @property
    def confidence(self) -> float:
        return self.classes[0][1]


@dataclass(frozen=True)
class Answers:
    """(B, C) logits of some of the pictures asked about."""

    indices: Indices
    logits: Tensor
    zero_shot: Tensor | None = None


@dataclass(frozen=True, eq=False, repr=False)
class TunedModel:
    """What a run made: a frozen CLIP, and parameters that bend it for all clients or for one."""

    folder: Path
    facts: ModelFacts
    backbone: Checkpoint
    run: Run  # its method and tuner; everything else in it is as by default
    device: str
    added: tuple[str, ...] = ()  # classes that it was not tuned for

    def __repr__(self) -> str:
        return f"<{self.facts.method['name']} for {len(self.classes)} classes and {len(self.clients)} clients>"

    @property
    def classes(self) -> tuple[str, ...]:
        return (*self.facts.classes, *self.added)

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(client.name for client in self.facts.clients)

    @property
    def method(self) -> Method:
        return self.run.method.value

    @cached_property
    def model(self) -> Model:
        return self.model_for(self.classes)

    def model_for(self, classes: Sequence[str]) -> Model:
        return Model.of(
            self.backbone, self.run.tuner.value, classes, self.facts.template, self.device,
            self.facts.backbone.precision, self.method.reads,
        ).remembering()  # fmt: skip

    def first(self, model: Model) -> Params:
        """What the method begins from."""
        return self.method.init(model, generator(self.facts.seed, "init"))

    @cached_property
    def shared(self) -> Params:
        params = read_params(self.folder, SHARED, self.facts)
        first = self.first(self.model_for(self.facts.classes) if self.added else self.model)
        check_shapes(self.folder, params, first)
        return {name: params[name] for name in first}  # in the method's order

    @cached_property
    def asked(self) -> dict[int | None, Logits]:
        return {}

    def number(self, client: int | str | None) -> int | None:
        """A client by its number or its name."""
        if client is None:
            if not self.facts.has_shared:
                raise UserError(f"{self.facts.without}; name a client: {self.some_clients()}")
            return None
        if not self.facts.clients:
            raise UserError(f"{self.folder} has no client's model: {self.facts.without}; ask the shared one")
        if str(client) in self.clients:
            return self.clients.index(str(client))
        if str(client).isdecimal() and int(client) < len(self.clients):
            return int(client)
        raise UserError(f"there is no client {client!r}; {self.some_clients()}")

    def some_clients(self) -> str:
        names = ", ".join(self.clients[:8]) + (", …" if len(self.clients) > 8 else "")
        return f"clients are 0 to {len(self.clients) - 1}, by name {names}"

    def has_own(self, client: int | str) -> bool:
        """Whether a client's model is another than the shared one."""
        number = self.number(client)
        assert number is not None
        return self.facts.clients[number].own

    def logits_of(self, client: int | str | None) -> Logits:
        """(B, C) of pictures at the stage where the tuner enters. What they need of the text tower is computed once."""
        number = self.number(client)
        if number not in self.asked:
            theta, predict = self.parameters(number)
            self.asked[number] = lambda x: predict(self.model, theta, x)
        return self.asked[number]

    def parameters(self, client: int | str | None) -> tuple[Params, Predict]:
        """A model's parameters, on the device, and by which of the method's two it predicts."""
        number, theta, predict = self.number(client), dict(self.shared), self.method.predict_shared
        if number is not None:
            facts = self.facts.clients[number]
            theta |= read_params(self.folder, facts.file, self.facts) if facts.file else {}
            check_shapes(self.folder, theta, self.shared)
            predict = getattr(self.method, facts.predict)
        return {name: self.model.put(value) for name, value in self.grown(theta).items()}, predict

    def grown(self, theta: Params) -> Params:
        """With a row for each class that was added, as the method would begin it."""
        if not self.added:
            return theta
        rows = (*self.run.tuner.value.class_rows(), *self.method.class_rows)
        name = f"{self.facts.method['name']} with tuner {self.facts.tuner['name']}"
        return with_rows(theta, self.first(self.model), rows, len(self.facts.classes), name)

    def with_classes(self, names: Sequence[str]) -> TunedModel:
        """The same model, asked about more classes: they are known by their sentences alone."""
        new = new_classes(names, self.classes)
        more = replace(self, added=(*self.added, *new))
        more.grown(self.shared)  # where this cannot be, it shows here
        return more

    def calibration(self, client: int | str | None = None) -> Calibration | None:
        number = self.number(client)
        own = number is not None and self.facts.clients[number].own
        return self.facts.calibration.personal if own else self.facts.calibration.shared

    def answers(
        self,
        pictures: Pictures,
        client: int | str | None = None,
        zero_shot: bool = False,
        beside: bool = False,
        progress: ProgressFn | None = None,
    ) -> Iterator[Answers]:
        """Batch after batch, of those that can be read: of the tuned model, of CLIP as it is, or (`beside`) both."""
        plain, indices = self.model.zero_shot_logits, np.arange(len(pictures.items))
        asked = (plain if zero_shot else self.logits_of(client), *((plain,) if beside else ()))
        done, tell = 0, progress or (lambda *_: None)
        tell(WORK, done, len(indices))
        with closing(self.encoder.chunks(pictures, indices)) as chunks:
            for x in chunks:
                good = [i for i in range(len(x)) if done + i not in pictures.failed]
                if good:
                    with torch.no_grad():
                        answers = Answers(indices[done:][good], *(ask(x[good]).cpu() for ask in asked))
                    yield answers
                done += len(x)
                tell(WORK, done, len(indices))

    @cached_property
    def encoder(self) -> Encoder:
        it, precision = self.facts.preprocessing, PRECISIONS[self.facts.backbone.precision]
        transform = Preprocess(it.size, it.mean, it.std, it.resize)
        return Encoder(self.model.clip, self.backbone.digest, transform, self.model.stage, self.model.device, precision)

    def probabilities(
        self, pictures: Any, client: int | str | None = None, *, zero_shot: bool = False
    ) -> Probabilities:
        """(N, C), in the order of `classes`; calibrated where the model is."""
        given = Pictures(listed(pictures))
        T = self.temperature(client, zero_shot)
        found = [(answers.logits / T).softmax(dim=1) for answers in self.answers(given, client, zero_shot)]
        if given.failed:
            raise UserError("; ".join(given.failed.values()))
        return np.asarray(torch.cat([torch.empty(0, len(self.classes)), *found]).numpy(), np.float32)

    def temperature(self, client: int | str | None, zero_shot: bool = False) -> float:
        fitted = None if zero_shot else self.calibration(client)
        return fitted.temperature if fitted else 1.0

    def predict(
        self, pictures: Any, client: int | str | None = None, top: int = 5, *, zero_shot: bool = False
    ) -> list[Prediction]:
        """The likeliest classes of each picture: a path or a PIL image, or a list of them."""
        items = listed(pictures)
        names = [name_of(item, i) for i, item in enumerate(items)]
        return self.name_them(names, self.probabilities(items, client, zero_shot=zero_shot), client, top, zero_shot)

    def name_them(
        self, names: Sequence[str], found: Probabilities, client: int | str | None, top: int, zero_shot: bool
    ) -> list[Prediction]:
        if top < 1:
            raise UserError(f"top={top}: one class or more")
        fitted = None if zero_shot else self.calibration(client)
        order = np.argsort(-found, axis=1, kind="stable")[:, :top]
        made = []
        for name, row, best in zip(names, found, order, strict=True):
            said = tuple((self.classes[c], float(row[c])) for c in best)
            made.append(Prediction(name, said, said[0][1] < fitted.unsure if fitted else None))
        return made
