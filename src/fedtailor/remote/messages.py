"""What a server and its remote clients say to each other, as bytes.

An invitation opens a run at a client; then come requests to run a pass (in four steps, if the server is to see sums
alone) or to evaluate, and at last to keep the model. Each gets a reply, if only a refusal. A request names the state
that it starts from, and its reply bears the request's id: so nothing counts twice, and a client that has lost its state
is noticed.

By an invitation's kind and version, and a refusal, two versions of fedtailor tell that they are two: these stay as they
are.
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
RunName = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,99})?$")]  # a part of a folder's name
PassName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,99}$")]  # it is logged
Version = Annotated[int, Field(ge=0, lt=1 << 53)]  # of a state, and a part of its file's name
ShortText = Annotated[str, Field(max_length=300)]  # a class name or a sentence
MAX_CLASSES = 10_000
Members = Annotated[tuple[NonNegativeInt, ...], Field(max_length=MAX_CLASSES)]
MaskingId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # of one secure sum, and a part of a file's name
Key = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # 32 bytes, as all bytes here in hexadecimal digits
Signature = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,150}$")]  # empty: none
Sealed = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){28,200}$")]
Share = Annotated[str, Field(pattern=r"^[0-9a-f]{68}$")]
MAX_PEERS = 10_000
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
    name: RunName  # what people call the run; empty: it has no name but its id
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


class AnyPassRequest(Request):
    tensors: ClassVar[tuple[str, ...]] = ("params", "inbox")
    kept: NonNegativeInt  # no state older than this will be asked for again
    pass_name: PassName
    round: NonNegativeInt


class PassRequest(AnyPassRequest):
    kind: Literal["pass-request"] = "pass-request"


class PassReply(Numbered):
    tensors: ClassVar[tuple[str, ...]] = ("params", "stats")
    kind: Literal["pass-reply"] = "pass-reply"
    version: NonNegativeInt  # of the state after the pass
    samples: NonNegativeInt
    seconds: NonNegativeFloat
    weight: float


# A pass whose replies only their sum is to be seen of: four requests that name the sum, in this order, each answered
# once (remote/vault.py).


class KeysRequest(Request):
    kind: Literal["keys-request"] = "keys-request"
    masking: MaskingId
    pass_name: PassName
    round: NonNegativeInt


class PublicKeys(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    sealing: Key  # to seal shares to this client with
    masking: Key  # to agree on masks with
    signature: Signature = ""  # by the site's own key


class KeysReply(Numbered):
    kind: Literal["keys-reply"] = "keys-reply"
    keys: PublicKeys


class SharesRequest(Request):
    kind: Literal["shares-request"] = "shares-request"
    masking: MaskingId
    peers: Annotated[dict[NonNegativeInt, PublicKeys], Field(max_length=MAX_PEERS)]  # this client's neighbours


class SharesReply(Numbered):
    kind: Literal["shares-reply"] = "shares-reply"
    sealed: Annotated[dict[NonNegativeInt, Sealed], Field(max_length=MAX_PEERS)]  # to each neighbour


class MaskedRequest(AnyPassRequest):
    kind: Literal["masked-request"] = "masked-request"
    masking: MaskingId
    sealed: Annotated[dict[NonNegativeInt, Sealed], Field(max_length=MAX_PEERS)]  # by those neighbours still there


class MaskedReply(Numbered):
    tensors: ClassVar[tuple[str, ...]] = ("masked",)
    kind: Literal["masked-reply"] = "masked-reply"
    version: NonNegativeInt
    samples: NonNegativeInt
    seconds: NonNegativeFloat


class OpenRequest(Request):
    kind: Literal["open-request"] = "open-request"
    masking: MaskingId
    survivors: Annotated[tuple[NonNegativeInt, ...], Field(max_length=MAX_PEERS)]  # of it and its neighbours


class OpenReply(Numbered):
    kind: Literal["open-reply"] = "open-reply"
    shares: Annotated[
        dict[NonNegativeInt, Share], Field(max_length=MAX_PEERS)
    ]  # of a survivor's seed, or another's key


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


class ModelRequest(Request):  # to keep what the run has come to
    tensors: ClassVar[tuple[str, ...]] = ("params", "cluster")  # what all share; what its clusters have otherwise
    kind: Literal["model-request"] = "model-request"


class ModelReply(Numbered):  # it is kept
    kind: Literal["model-reply"] = "model-reply"


class Refusal(Message):
    """A code alone: what went wrong may name files and classes of the site, which are nobody else's business."""

    kind: Literal["refusal"] = "refusal"
    request_id: RequestId | Literal[""] = ""  # of an invitation, or what could not be read, there is none
    version: Annotated[str, Field(max_length=100, pattern=r"^[0-9A-Za-z.+-]*$")] = ""  # fedtailor's, where that is why
    why: RefusalCode

    @property
    def text(self) -> str:
        return SENTENCES[self.why]


SumRequest = KeysRequest | SharesRequest | MaskedRequest | OpenRequest
SumReply = KeysReply | SharesReply | MaskedReply | OpenReply
Known = (
    Invitation | Ready | PassRequest | PassReply | SumRequest | SumReply | EvaluateRequest | EvaluateReply
    | ModelRequest | ModelReply | Refusal
)  # fmt: skip
ANY: TypeAdapter[Message] = TypeAdapter(Annotated[Known, Field(discriminator="kind")])


class AnyInvitation(BaseModel):
    """As much of an invitation as every version can read."""

    model_config = ConfigDict(strict=True)
    kind: Literal["invitation"]
    version: Annotated[str, Field(max_length=100)]


def version_of(data: bytes) -> str:
    """Of the server that an invitation comes from, also where more cannot be read; empty: it is none."""
    try:
        note = from_bytes(data, notes_due=("message",))[1]
        return AnyInvitation.model_validate_json(json.dumps(note["message"])).version
    except (UserError, ValidationError, RecursionError):
        return ""


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
