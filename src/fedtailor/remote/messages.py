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
from .refusal import SENTENCES, RefusalCode

TensorGroups = dict[str, Params]
RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # it becomes a folder's name at the client
RequestId = Annotated[str, Field(pattern=r"^[0-9a-f]{8}-[0-9]{1,18}$")]  # and this a part of a file's name
PassName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,99}$")]  # it is logged
Version = Annotated[int, Field(ge=0, lt=1 << 53)]  # of a state, and a part of its file's name
ShortText = Annotated[str, Field(max_length=300)]  # a class name or a sentence
MAX_CLASSES = 10_000
Members = Annotated[tuple[NonNegativeInt, ...], Field(max_length=MAX_CLASSES)]
MAX_SETTINGS = 100_000  # characters


class Message(BaseModel):
    """Strict, since it comes from another machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    tensors: ClassVar[tuple[str, ...]] = ()  # the groups that come with it
    kind: str


class Invitation(Message):
    """All that a client needs for a run besides its own pictures and CLIP's weights."""

    kind: Literal["invitation"] = "invitation"
    run: RunId
    client: NonNegativeInt  # this client's number in the run
    version: Annotated[str, Field(max_length=100)]  # fedtailor's
    settings: Annotated[str, Field(max_length=MAX_SETTINGS)]  # run.toml
    weights: Annotated[str, Field(max_length=100)]  # the hash of CLIP
    classes: Annotated[tuple[ShortText, ...], Field(max_length=MAX_CLASSES)]
    template: ShortText
    paper: PaperPreprocess  # how pictures are prepared, with preprocess=paper
    groups: Annotated[dict[str, Members], Field(max_length=3)]  # head, mid, tail


class Ready(Message):  # to take part
    kind: Literal["ready"] = "ready"
    samples: NonNegativeInt
    tests: NonNegativeInt


class Numbered(Message):  # a request, or the reply to it
    run: RunId
    client: NonNegativeInt
    request_id: RequestId


class Request(Numbered):
    version: Version  # of the state to start from
    state_id: RequestId | Literal[""]  # the request that made that state


class PassRequest(Request):
    tensors: ClassVar[tuple[str, ...]] = ("params", "inbox")
    kind: Literal["pass-request"] = "pass-request"
    kept: NonNegativeInt  # no state older than this will be asked for again
    pass_name: PassName
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
    """A code alone: what went wrong may name files and classes of the site, which are nobody else's business."""

    kind: Literal["refusal"] = "refusal"
    request_id: RequestId | Literal[""] = ""  # of an invitation, or what could not be read, there is none
    version: Annotated[str, Field(max_length=100, pattern=r"^[0-9A-Za-z.+-]*$")] = ""  # fedtailor's, where that is why
    why: RefusalCode

    @property
    def text(self) -> str:
        return SENTENCES[self.why] + (f" ({self.version} there)" if self.version else "")


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
    except RecursionError as error:
        raise UserError("a message is not one of ours (it is nested too deeply)") from error
    if extra := {*groups, *note} ^ {*message.tensors, "message"}:
        due = ", ".join(message.tensors) or "none"
        raise UserError(f"a message is not one of ours (its tensors are to be {due}; {min(extra)} is amiss)")
    return message, groups
