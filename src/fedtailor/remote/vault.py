"""A client's part in a secure sum, and what it must not forget of it, in a file of its own for each sum.

Four steps, each taken once and in order: a client gives its public keys, seals shares of its secrets to its neighbours,
sends its reply under masks, and helps to open the masks of the sum by giving one share for each neighbour: of a
survivor's seed, or of the masking key of one that is gone, never both. Each answer is on the disk before it leaves. The
same request again, as after a crash, gets the same answer; any other for a step that was taken is refused. So there is
one input under one mask, and one set of survivors, whoever asks how often.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from pydantic import BaseModel, ConfigDict, ValidationError

from ..base.errors import UserError
from ..base.files import write_atomic
from ..client.codec import from_bytes, to_bytes
from ..privacy.noise import request_key
from ..secure import keys as crypto
from ..secure.encoding import Words
from ..secure.masked import Masked
from .messages import (
    KeysReply,
    KeysRequest,
    MaskedReply,
    MaskedRequest,
    OpenReply,
    OpenRequest,
    PublicKeys,
    SharesReply,
    SharesRequest,
    SumReply,
    SumRequest,
    TensorGroups,
)
from .policy import SitePolicy, public_key
from .refusal import Refused

STEPS = ("keys-request", "shares-request", "masked-request", "open-request")
KEPT = 8  # sums of a run: one is under way, and late messages may be of another


class Held(BaseModel):
    """All of it but the masked reply. Secrets are erased with the last step."""

    model_config = ConfigDict(extra="forbid")
    pass_name: str
    round: int
    sealing: str  # private keys
    masking: str
    seed: str = ""  # of its own mask
    peers: dict[int, PublicKeys] = {}  # its neighbours'
    shares: dict[int, tuple[str, str]] = {}  # of each neighbour's seed and masking key, and of its own
    keys: KeysReply | None = None  # the answers
    sealed: SharesReply | None = None
    masked: MaskedReply | None = None
    opened: OpenReply | None = None

    @property
    def answers(self) -> list[SumReply]:
        return [answer for answer in (self.keys, self.sealed, self.masked, self.opened) if answer]


@dataclass
class Vault:
    """Of one sum, at one client."""

    folder: Path  # of the run
    order: SumRequest  # what it is asked now
    secure: Masked
    clients: int  # of the run
    policy: SitePolicy
    key: EllipticCurvePrivateKey | None = None  # the site's own, to sign with
    found: Held | None = None  # on disk, or made since
    words: Words = field(default_factory=lambda: np.empty(0, np.uint64))  # its reply under masks

    def __post_init__(self) -> None:
        if self.path.is_file():
            try:
                groups, note = from_bytes(self.path.read_bytes(), ("masked",), ("held",))
                self.found = Held.model_validate_json(note["held"])
                self.words = groups["masked"]["words"].numpy().view(np.uint64)
            except (UserError, ValidationError, KeyError) as error:
                raise Refused("masking", f"{self.path.name} is damaged") from error

    @property
    def path(self) -> Path:
        return self.folder / f"masking-{self.order.masking}"

    @property
    def me(self) -> int:
        return self.order.client

    @property
    def held(self) -> Held:
        assert self.found is not None, "answered() lets nothing through before keys were given"
        return self.found

    @property
    def neighbours(self) -> list[int]:
        return sorted(self.found.peers) if self.found else []

    def answered(self) -> SumReply | None:
        """What this very request was answered before; None if it is the next that is due. All else is refused."""
        done, step = self.found.answers if self.found else [], STEPS.index(self.order.kind)
        if step < len(done) and done[step].request_id == self.order.request_id:
            return done[step]
        if step != len(done):
            due = STEPS[len(done)] if len(done) < len(STEPS) else "nothing"
            raise Refused("masking", f"a {self.order.kind} for sum {self.order.masking[:8]}, of which {due} is due")
        return None

    def write(self) -> None:
        masked = {"words": torch.from_numpy(self.words.view(np.int64))}
        write_atomic(self.path, to_bytes({"masked": masked}, {"held": self.held.model_dump_json()}), private=True)
        others = [path for path in self.folder.glob("masking-*") if path != self.path]
        for path in sorted(others, key=lambda it: it.stat().st_mtime_ns)[: -KEPT + 1]:
            path.unlink(missing_ok=True)

    def answer(self, order: KeysRequest | SharesRequest | OpenRequest) -> SumReply:
        told: dict[str, Any] = {"run": order.run, "client": order.client, "request_id": order.request_id}
        answer: SumReply
        if isinstance(order, KeysRequest):
            sealing, masking = crypto.new_pair(), crypto.new_pair()
            answer = KeysReply(**told, keys=self.public_keys(sealing.public.hex(), masking.public.hex()))
            private = {"sealing": sealing.private.hex(), "masking": masking.private.hex()}
            self.found = Held(pass_name=order.pass_name, round=order.round, **private, keys=answer)
        elif isinstance(order, SharesRequest):
            self.held.sealed = answer = SharesReply(**told, sealed=self.seal_shares(order.peers))
        else:
            self.held.opened = answer = OpenReply(**told, shares=self.chosen_shares(order.survivors))
            self.held.sealing = self.held.masking = self.held.seed = ""
            self.held.shares = {}
        self.write()
        return answer

    def public_keys(self, sealing: str, masking: str) -> PublicKeys:
        """By the site's own key, if it has one."""
        keys = PublicKeys(sealing=sealing, masking=masking)
        if self.key is None:
            return keys
        signature = crypto.sign(self.key, vouched(self.order.run, self.order.masking, self.me, keys))
        return keys.model_copy(update={"signature": signature.hex()})

    # --- shares -------------------------------------------------------------------------------------------------------

    def seal_shares(self, peers: Mapping[int, PublicKeys]) -> dict[int, str]:
        held, run = self.held, self.order.run
        assert held.keys is not None
        self.enough([self.me, *peers])
        check_keys(peers, self.me, held.keys.keys, self.clients)
        if self.policy.peers:
            check_signatures(peers, run, self.order.masking, self.policy, self.key)
        holders = sorted([self.me, *peers])
        least, seed = self.secure.least(len(holders)), crypto.new_seed()
        of_seed, of_key = (crypto.split(it, least, len(holders)) for it in (seed, bytes.fromhex(held.masking)))
        both = dict(zip(holders, zip(of_seed, of_key, strict=True), strict=True))
        held.seed, held.peers = seed.hex(), dict(peers)
        held.shares = {self.me: (both[self.me][0].hex(), both[self.me][1].hex())}
        return {k: crypto.seal(self.sealing_key(k), b"".join(both[k]), self.way(self.me, k)).hex() for k in peers}

    def receive_shares(self, order: MaskedRequest) -> None:
        """Of neighbours that are still there. What they have sealed opens, or no pass is run."""
        held, sealed = self.held, order.sealed
        if (order.pass_name, order.round) != (held.pass_name, held.round):
            raise Refused("masking", f"keys were given for {held.pass_name} in round {held.round + 1}")
        if strangers := sealed.keys() - held.peers.keys():
            raise Refused("masking", f"shares of client {min(strangers)}, which is no neighbour")
        self.enough([self.me, *sealed])
        for k, text in sealed.items():
            try:
                both = crypto.unseal(self.sealing_key(k), bytes.fromhex(text), self.way(k, self.me)).hex()
            except UserError as error:
                raise Refused("peers", str(error)) from error
            held.shares[k] = both[: len(both) // 2], both[len(both) // 2 :]

    def chosen_shares(self, survivors: Collection[int]) -> dict[int, str]:
        held = self.held
        if self.me not in survivors or len(set(survivors)) < len(survivors) or set(survivors) - held.shares.keys():
            raise Refused("masking", f"survivors {sorted(survivors)} of {sorted(held.shares)}")
        self.enough(survivors)
        return {k: of_seed if k in survivors else of_key for k, (of_seed, of_key) in held.shares.items()}

    def enough(self, together: Collection[int]) -> None:
        """Of itself and its neighbours."""
        holders = len(self.held.peers or together) + bool(self.held.peers)
        if len(together) < (least := max(self.secure.least(holders), self.policy.together)):
            raise Refused("policy-together", f"{len(together)} sites in a sum; {least} are needed here")

    # --- masks --------------------------------------------------------------------------------------------------------

    def keep_masked(self, words: Words, reply: MaskedReply, sent: str) -> None:
        """The reply under masks, for good. `sent`: what the server sent with the request, by its hash."""
        held, about = self.held, self.order.masking
        masked = words + crypto.mask(crypto.derived(bytes.fromhex(held.seed), f"own mask {about}"), len(words))
        private = bytes.fromhex(held.masking)
        for k in held.shares.keys() - {self.me}:
            key = crypto.agreed(private, bytes.fromhex(held.peers[k].masking), pair(about, self.me, k, sent))
            masked = masked + as_added(crypto.mask(key, len(words)), self.me, k)
        self.words, held.masked = masked, reply
        self.write()

    def sealing_key(self, k: int) -> bytes:
        theirs = bytes.fromhex(self.held.peers[k].sealing)
        try:
            return crypto.agreed(bytes.fromhex(self.held.sealing), theirs, f"sealed shares {self.order.masking}")
        except UserError as error:
            raise Refused("peers", f"client {k}: {error}") from error

    def way(self, sender: int, to: int) -> str:
        return f"{self.order.run} {self.order.masking} {sender} to {to}"


def what_is_sent(about: str, tensors: TensorGroups) -> str:
    """The hash of all that the server sends with a masked pass. It is in the masks, so that they cancel among clients
    who were sent the same alone: else a server could send one client parameters under which the others change nothing,
    and the sum would be that client's (Pasquini et al., Eluding Secure Aggregation, CCS 2022)."""
    return request_key(b"", (about,), tensors).hex()


def pair(about: str, one: int, other: int, sent: str) -> str:
    """What two clients agree on a mask for."""
    return f"mask {about} {min(one, other)} {max(one, other)} {sent}"


def as_added(mask: Words, me: int, other: int) -> Words:
    """As one of the two adds it; the other adds the opposite."""
    return mask if me < other else np.uint64(0) - mask


def vouched(run: str, about: str, client: int, keys: PublicKeys) -> str:
    """What a site signs: its keys, for this sum, under its number."""
    return f"fedtailor keys {run} {about} {client} {keys.sealing} {keys.masking}"


def check_keys(peers: Mapping[int, PublicKeys], me: int, own: PublicKeys, clients: int) -> None:
    if me in peers or any(k >= clients for k in peers):
        raise Refused("peers", f"client {me} of {clients} was given the neighbours {sorted(peers)}")
    every = [key for keys in (own, *peers.values()) for key in (keys.sealing, keys.masking)]
    if len(set(every)) < len(every):
        raise Refused("peers", "two of its neighbours' keys are the same")


def check_signatures(
    peers: Mapping[int, PublicKeys], run: str, about: str, policy: SitePolicy, own: EllipticCurvePrivateKey | None
) -> None:
    """Each neighbour's keys are signed by another of the sites that this one knows."""
    known = [public_key(line) for line in policy.peers]
    if own:
        known = [key for key in known if key.public_numbers() != own.public_key().public_numbers()]
    for k, keys in sorted(peers.items()):
        text, signature = vouched(run, about, k, keys), bytes.fromhex(keys.signature)
        found = next((key for key in known if crypto.signed(key, signature, text)), None)
        if found is None:
            raise Refused("peers", f"the keys of client {k} are signed by none of the other sites in peers")
        known.remove(found)
