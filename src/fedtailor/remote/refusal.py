"""Why a client does not do what it was asked: a code, and the sentence that goes with it.

Only the code is sent. What it was about here, which may name files and classes of the site, stays in the site's logs.
"""

import errno
from typing import Literal, get_args

from ..base.errors import Diverged, UserError
from ..client.data import OutOfTime
from ..data.pictures import BrokenPicture

# With these a client cannot take part in a run at all, or will not keep its model: to ask again is of no use.
UnfitCode = Literal[
    "weights", "backbone", "pictures", "settings", "policy-method", "policy-tuner", "policy-labeler",
    "policy-rounds", "policy-privacy", "policy-secure", "policy-pictures", "policy-models",
]  # fmt: skip
RefusalCode = Literal[
    UnfitCode, "version", "policy-orders", "policy-tests", "policy-budget", "unknown-run", "lost-state", "unreadable",
    "too-large", "beyond", "masking", "policy-together", "peers", "range", "out-of-time", "full-disk", "diverged",
    "failed",
]  # fmt: skip

SENTENCES: dict[RefusalCode, str] = {
    "version": "it has another version of fedtailor; install the same on both",
    "weights": "its CLIP has other weights than the server's; start it with --backbone and the same CLIP",
    "backbone": "it takes no CLIP from where the server says; start it with --backbone and the same CLIP",
    "pictures": "its pictures cannot be read, or do not fit this run; its own log says more",
    "settings": "it cannot carry out these settings; its own log says more",
    "policy-method": "its policy does not allow this method",
    "policy-tuner": "its policy does not allow this tuner",
    "policy-labeler": "its policy does not allow this labeler",
    "policy-rounds": "its policy does not allow so many rounds",
    "policy-privacy": "its policy asks for more privacy than this run has",
    "policy-secure": "its policy asks for secure=masked",
    "policy-pictures": "it has fewer pictures than its policy asks for",
    "policy-orders": "its policy allows no more passes and tests of this run, or none today",
    "policy-tests": "its policy allows no tests on its pictures",
    "policy-models": "its policy keeps no models of runs",
    "policy-budget": "its privacy budget does not allow another release",
    "unknown-run": "it has no invitation to this run",
    "lost-state": "it does not have the state that was named, or has it damaged",
    "unreadable": "a message to it was not whole, not one of ours or not for it",
    "too-large": "a message to it or from it is longer than it allows",
    "beyond": "it was asked for what is not part of this run",
    "masking": "it was asked for a step of a secure sum that is not due, or was taken already",
    "policy-together": "its policy asks for more sites in a secure sum",
    "peers": "the keys of its neighbours in a secure sum are not those of sites that it knows, or damaged",
    "range": "its update is too large for a secure sum; a smaller lr may help",
    "out-of-time": "the pass took longer than it allows",
    "full-disk": "its disk is full",
    "diverged": "a parameter is no longer finite; training diverged, a smaller lr may help",
    "failed": "something went wrong there; its own log says more",
}

UNFIT = frozenset(get_args(UnfitCode))


class Refused(UserError):  # noqa: N818  # as it reads
    """A code for the server, and a text for the site alone."""

    def __init__(self, why: RefusalCode, text: str) -> None:
        super().__init__(text)
        self.why: RefusalCode = why


def code_of(error: BaseException | None, otherwise: RefusalCode = "failed") -> RefusalCode:
    """Of whatever went wrong; a cause tells more than what was made of it."""
    if isinstance(error, Refused):
        return error.why
    if isinstance(error, BrokenPicture):
        return "pictures"
    if isinstance(error, OutOfTime):
        return "out-of-time"
    if isinstance(error, Diverged):
        return "diverged"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "full-disk"
    return otherwise if error is None else code_of(error.__cause__, otherwise)
