"""How long to wait before looking again."""


class Backoff:
    """Pauses in seconds, each longer than the last up to a limit, from the first again after a reset."""

    def __init__(self, first: float, most: float, growth: float = 2.0) -> None:
        self.first, self.most, self.growth = first, most, growth
        self.reset()

    def reset(self) -> None:
        self.seconds = self.first

    def next(self) -> float:
        seconds, self.seconds = self.seconds, min(self.growth * self.seconds, self.most)
        return seconds
