"""What goes back and forth between a server and clients that are elsewhere, as bytes.

A charter opens a run at a client, an order asks for a pass, an exam for a test; each is answered, if only by a refusal.
Every order names the state that it starts from and a serial number that its answer must bear, so that nothing counts
twice, and a client that has lost its state is noticed.
"""

from __future__ import annotations

import json
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, TypeAdapter, ValidationError

from ..base.errors import UserError
from ..client.codec import from_bytes, to_bytes
from ..core.types import Params
from ..data.preprocess import PaperPreprocess
from ..evaluation.metrics import Score

TensorGroups = dict[str, Params]
RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # it becomes a folder's name at the client
Serial = Annotated[str, Field(pattern=r"^[0-9a-f]{8}-[0-9]{1,18}$")]  # and this a part of a file's name
MAX_TEXT = 2000  # letters of a reason: it is printed and logged
RefusalCode = Literal["unfit", "stranger", "lost", "failed"]


class Message(BaseModel):
    """Strict, since it comes from elsewhere."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    tensors: ClassVar[tuple[str, ...]] = ()  # the groups that come with it


class Invitation(Message):
    """All that a client needs for a run besides its own pictures and CLIP's weights."""

    kind: Literal["charter"] = "charter"
    run: RunId  # the run's name for as long as it lives
    client: NonNegativeInt  # this client's number in it
    version: str  # fedtailor's
    settings: str  # run.toml
    weights: str  # the hash of CLIP
    classes: tuple[str, ...]
    template: str
    paper: PaperPreprocess  # how pictures are prepared, with preprocess=paper
    groups: dict[str, tuple[NonNegativeInt, ...]]  # head, mid, tail


class Ready(Message):
    """A client that can take part."""

    kind: Literal["present"] = "present"
    samples: NonNegativeInt
    tests: NonNegativeInt


class Numbered(Message):
    run: RunId
    client: NonNegativeInt
    serial: Serial


class PassRequest(Numbered):
    """A pass to run."""

    tensors: ClassVar[tuple[str, ...]] = ("params", "inbox")
    kind: Literal["order"] = "order"
    version: NonNegativeInt  # of the state to start from
    mark: Serial | Literal[""]  # and the serial of the order that made it
    kept: NonNegativeInt  # no state older than this will be asked for again
    pass_name: str
    round: NonNegativeInt


class PassReply(Numbered):
    """What became of an order."""

    tensors: ClassVar[tuple[str, ...]] = ("params", "stats")
    kind: Literal["answer"] = "answer"
    version: NonNegativeInt  # of the state after the pass
    samples: NonNegativeInt
    seconds: NonNegativeFloat
    weight: float


class EvaluateRequest(Numbered):
    """A test on the client's own test pictures."""

    tensors: ClassVar[tuple[str, ...]] = ("params",)
    kind: Literal["exam"] = "exam"
    version: NonNegativeInt
    mark: Serial | Literal[""]


class EvaluateReply(Numbered):
    """How an exam went, and how right pseudo-labels are where a client knows the truth."""

    kind: Literal["marks"] = "marks"
    personal: Score  # the client's own model
    shared: Score  # what the server has for it
    zero_shot: Score
    pseudo: tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt, NonNegativeInt] | None
    # labels, right ones, pictures with a label, pictures


class Refusal(Message):
    """Unfit: for this run at all. Stranger: to the run, whose charter is due first. Lost: the state that was named.
    Failed: in what was asked."""

    kind: Literal["refusal"] = "refusal"
    serial: Serial | Literal[""] = ""  # of the order or exam; of a charter, or what could not be read, there is none
    why: RefusalCode
    text: str = Field(max_length=MAX_TEXT)


ANY: TypeAdapter[Message] = TypeAdapter(
    Annotated[
        Invitation | Ready | PassRequest | PassReply | EvaluateRequest | EvaluateReply | Refusal,
        Field(discriminator="kind"),
    ]
)


def encode_message(letter: Message, **tensors: Params) -> bytes:
    return to_bytes(tensors, {"letter": letter.model_dump(mode="json")})


def decode_message(data: bytes) -> tuple[Message, TensorGroups]:
    """The letter and its tensors; an error if it is not whole, or has anything in it that is not due."""
    groups, note = from_bytes(data, notes_due=("letter",))
    try:
        letter = ANY.validate_json(json.dumps(note["letter"]))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise UserError(f"a letter is not one of ours ({where}: {problem['msg']})") from error
    if extra := {*groups, *note} ^ {*letter.tensors, "letter"}:
        due = ", ".join(letter.tensors) or "none"
        raise UserError(f"a letter is not one of ours (its tensors are to be {due}; {min(extra)} is amiss)")
    return letter, groups
