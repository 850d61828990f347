"""What ends a command in the middle of its work: Ctrl-C, or a disk that takes no more. Either can be gone on from."""

import errno
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..base.errors import Interrupted, UserError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


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
        if error.errno not in FULL:
            raise
        where = f" ({error.filename})" if error.filename else ""
        raise UserError(f"stopped: {error.strerror}{where}; make room there; {how()}") from error
