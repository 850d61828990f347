"""How a dataset's papers' codes prepare its pictures, as settings; preprocess.py does it."""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

Pixels = NDArray[np.uint8]
Triple = tuple[float, float, float]
Positive = Annotated[float, Field(gt=0)]
# Of the shorter side, then a centre crop · "bilinear": to the square · "late": the same, after mean and std
Resize = Literal["bicubic", "bilinear", "late"]


class PaperPreprocess(BaseModel):
    """How a dataset is prepared in its papers' codes; by default as for CLIP. Strict, since it is sent to sites."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    mean: Triple | None = None  # None: the checkpoint's
    std: tuple[Positive, Positive, Positive] | None = None
    resize: Resize = "bicubic"
    augment: bool = False


AS_CLIP = PaperPreprocess()
