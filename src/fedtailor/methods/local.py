"""Local: every client trains alone. What the others' data is worth to it is what federated methods add to this.

Departures: none. A client trains in the rounds in which it would have taken part, and all of them in the first.
Nothing is shared, so there is no global model to test.
"""

from __future__ import annotations

from ..core.method import Method
from ..core.types import LOCAL


class LocalOnly(Method):
    share = {"*": LOCAL}  # noqa: RUF012  # a ClassVar of the base
    everyone_first = True
