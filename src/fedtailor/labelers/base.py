"""A labeler: how clients without labels get some. Like a method, it has passes and a server step of its own.

Its labels stay with the client, under the names below; a method's passes see the labelled pictures and nothing else,
never the true labels. A client that misses a labeling keeps its old labels, or has none until the next one (refresh).
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from ..core import Each, Forms, Model, Options, Params, Server

INDEX, LABEL, CANDIDATES = "labels.index", "labels.y", "labels.candidates"  # what a client keeps


class Labeler(Options):
    singly: ClassVar[str] = "does not say that the mean of what clients send is enough (Labeler.singly)"  # or why not
    by_picture: ClassVar[bool] = False  # True: whether a picture is labelled, and how, depends on no other

    refresh: int = Field(0, ge=0, title="R", description="rounds between two labelings; 0: once, at the beginning")

    def due(self, t: int) -> bool:
        return t == 0 or (self.refresh > 0 and t % self.refresh == 0)

    @abstractmethod
    def label(self, server: Server, clients: Sequence[int], each: Each) -> Server:
        """Label the samples of all clients."""

    def statistics(self, name: str, model: Model, theta: Params) -> Forms:
        """What the pass of that name sends up (Method.statistics)."""
        return {}
