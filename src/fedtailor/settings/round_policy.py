"""What a round does about clients that are late, gone or wrong, and how small messages are."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RoundPolicy(BaseModel):
    """Engines whose clients are elsewhere follow all of it; clients in this process are never late."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deadline: float = Field(
        3600.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds for each pass; who has not answered by then is out of the round",
    )
    quorum: float = Field(
        1.0, gt=0, le=1, description="part of a round's clients that must answer, or the round is made again"
    )
    oversample: float = Field(
        0.0, ge=0, le=10, description="so much more of the clients are asked (0.5: half as many again); the first count"
    )
    tries: int = Field(3, ge=1, description="of a round that lacks its quorum, before the run stops")
    lost: Literal["stop", "anew"] = Field(
        "stop", description="a client has lost its state: stop the run, or let it begin anew and note it"
    )
    updates: Literal["fp32", "fp16", "int8"] = Field("fp32", description="what clients send up, in how many bits")
    limit: float = Field(256.0, gt=0, allow_inf_nan=False, description="MB; a longer answer is not taken")
