"""What ends a command in the middle of its work: Ctrl-C, or a disk that takes no more. Either can be gone on from."""

import errno
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..base.errors import Interrupted, UserError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# What is no defect of ours: a disk that is full, or no longer what it was; a file of somebody else's; an odd path.
REFUSED = FULL | {errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP}


def command(*words: object) -> str:
    """As it can be typed into a shell, whatever is in a word."""
    return shlex.join(["fedtailor", *map(str, words)])


@contextmanager
def resumable(how: Callable[[], str]) -> Iterator[None]:
    """Ends with a sentence that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; {how()}") from None
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        room = "make room there; " if error.errno in FULL else ""
        raise UserError(f"stopped: {refusal(error)}; {room}{how()}") from error


def refusal(error: OSError) -> str:
    return f"{error.strerror} ({error.filename})" if error.filename else str(error.strerror)
