"""Pictures through the frozen image tower, as far as one stage, in chunks."""

import hashlib
import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base.errors import UserError
from ..base.workers import in_order
from ..data.dataset import Images, Indices, Readable
from ..data.preprocess import Preprocess
from .block import Rng
from .model import Clip

FORMAT = "fedtailor cache 5"
CHUNK = 16  # pictures encoded at once
HALF = {"patches"}  # stages kept in fp16: a row for each patch, all of which are normalised before use

Some = Sequence[int] | Indices


@dataclass(frozen=True)
class Encoder:
    """The frozen image tower as far as one stage, with the transform before it."""

    clip: Clip
    digest: str  # of the weights
    transform: Preprocess
    stage: str
    device: torch.device
    precision: torch.dtype | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float16 if self.stage in HALF else np.float32)

    def key(self, images: Images) -> str:
        parts = [FORMAT, self.digest, images.fingerprint, repr(self.transform), self.stage, str(self.precision)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def chunks(self, images: Readable, indices: Some, rng: Rng = None) -> Generator[Tensor]:
        """Chunk after chunk, on the CPU; the next few are read and encoded meanwhile, each by one thread.

        A picture comes out the same, to the bit, whichever others are beside it and however many threads there are:
        every matrix product has the same size, and none is divided between threads.
        """
        parts = (indices[begin : begin + CHUNK] for begin in range(0, len(indices), CHUNK))
        threads = torch.get_num_threads()

        def view(part: Some) -> Tensor:
            return torch.stack([self.transform(images.read(int(i)), rng) for i in part])

        if self.transform.augment and rng is not None:  # drawn here, one after the other
            yield from in_order((partial(self.encode, view(part)) for part in parts), threads)
        elif self.device.type == "cpu":
            yield from in_order((partial(lambda part: self.encode(view(part)), part) for part in parts), threads)
        else:  # one thread of ours feeds the device
            yield from map(self.encode, in_order((partial(view, part) for part in parts), threads))

    def encode(self, pixels: Tensor) -> Tensor:
        short = CHUNK - len(pixels)  # matrix products of other sizes round differently, so every chunk is a full one
        whole = torch.cat([pixels, pixels[-1:].expand(short, -1, -1, -1)]) if short else pixels
        with torch.no_grad(), torch.autocast(self.device.type, self.precision, enabled=self.precision is not None):
            values = self.clip.vision(whole.to(self.device), "pixels", self.stage)[: len(pixels)].float().cpu()
        if self.stage not in HALF:
            return values
        half = values.half()
        if not half.isfinite().all():
            raise UserError(
                f"activations at the stage {self.stage!r} reach {values.abs().max():.3g}; they are kept in fp16, which "
                "ends at 65504. Try backbone.precision=fp32 if it is fp16; else this backbone's weights are damaged"
            )
        return half
