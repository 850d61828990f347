"""Local: every client trains alone. What the others' data is worth to it is what federated methods add to this.

Departures: none. A client trains in the rounds in which it would have taken part, and all of them in the first.
Nothing is shared, so there is no global model to test.
"""

from ..core import LOCAL, Method


class LocalOnly(Method):
    share = {"*": LOCAL}
    everyone_first = True
    by_picture = True
