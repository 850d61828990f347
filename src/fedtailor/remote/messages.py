"""What a server and its remote clients say to each other, as bytes.

An invitation opens a run at a client; then come requests to run a pass or to evaluate. Each gets a reply, if only a
refusal. A request names the state that it starts from, and its reply bears the request's id: so nothing counts twice,
and a client that has lost its state is noticed.
"""

import json
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, TypeAdapter, ValidationError

from ..base.errors import UserError, explain
from ..client.codec import from_bytes, to_bytes
from ..core.types import Params
from ..data.paper import PaperPreprocess
from ..evaluation.metrics import Score

TensorGroups = dict[str, Params]
RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # it becomes a folder's name at the client
RequestId = Annotated[str, Field(pattern=r"^[0-9a-f]{8}-[0-9]{1,18}$")]  # and this a part of a file's name
MAX_TEXT = 2000  # characters of a reason: it is printed and logged
# The client cannot take part at all, has no invitation, has lost the state that was named, or failed in what was asked.
RefusalCode = Literal["unfit", "unknown-run", "lost-state", "failed"]


class Message(BaseModel):
    """Strict, since it comes from another machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    tensors: ClassVar[tuple[str, ...]] = ()  # the groups that come with it


class Invitation(Message):
    """All that a client needs for a run besides its own pictures and CLIP's weights."""

    kind: Literal["invitation"] = "invitation"
    run: RunId
    client: NonNegativeInt  # this client's number in the run
    version: str  # fedtailor's
    settings: str  # run.toml
    weights: str  # the hash of CLIP
    classes: tuple[str, ...]
    template: str
    paper: PaperPreprocess  # how pictures are prepared, with preprocess=paper
    groups: dict[str, tuple[NonNegativeInt, ...]]  # head, mid, tail


class Ready(Message):  # to take part
    kind: Literal["ready"] = "ready"
    samples: NonNegativeInt
    tests: NonNegativeInt


class Numbered(Message):  # a request, or the reply to it
    run: RunId
    client: NonNegativeInt
    request_id: RequestId


class Request(Numbered):
    version: NonNegativeInt  # of the state to start from
    state_id: RequestId | Literal[""]  # the request that made that state


class PassRequest(Request):
    tensors: ClassVar[tuple[str, ...]] = ("params", "inbox")
    kind: Literal["pass-request"] = "pass-request"
    kept: NonNegativeInt  # no state older than this will be asked for again
    pass_name: str
    round: NonNegativeInt


class PassReply(Numbered):
    tensors: ClassVar[tuple[str, ...]] = ("params", "stats")
    kind: Literal["pass-reply"] = "pass-reply"
    version: NonNegativeInt  # of the state after the pass
    samples: NonNegativeInt
    seconds: NonNegativeFloat
    weight: float


class EvaluateRequest(Request):  # on the client's own test pictures
    tensors: ClassVar[tuple[str, ...]] = ("params",)
    kind: Literal["evaluate-request"] = "evaluate-request"


class EvaluateReply(Numbered):
    kind: Literal["evaluate-reply"] = "evaluate-reply"
    personal: Score  # the client's own model
    shared: Score  # what the server has for it
    zero_shot: Score
    # Where the client knows the truth: pseudo-labels, right ones, pictures with a label, pictures.
    pseudo: tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt, NonNegativeInt] | None


class Refusal(Message):
    kind: Literal["refusal"] = "refusal"
    request_id: RequestId | Literal[""] = ""  # of an invitation, or what could not be read, there is none
    why: RefusalCode
    text: str = Field(max_length=MAX_TEXT)


Known = Invitation | Ready | PassRequest | PassReply | EvaluateRequest | EvaluateReply | Refusal
ANY: TypeAdapter[Message] = TypeAdapter(Annotated[Known, Field(discriminator="kind")])


def encode(message: Message, **tensors: Params) -> bytes:
    return to_bytes(tensors, {"message": message.model_dump(mode="json")})


def decode(data: bytes) -> tuple[Message, TensorGroups]:
    """The message and its tensors; an error if it is not whole, or has anything in it that is not due."""
    groups, note = from_bytes(data, notes_due=("message",))
    try:
        message = ANY.validate_json(json.dumps(note["message"]))
    except ValidationError as error:
        raise UserError(f"a message is not one of ours ({explain(error, got=False)})") from error
    if extra := {*groups, *note} ^ {*message.tensors, "message"}:
        due = ", ".join(message.tensors) or "none"
        raise UserError(f"a message is not one of ours (its tensors are to be {due}; {min(extra)} is amiss)")
    return message, groups
