"""Every part by name: the module whose `run(options)` measures it, and a sentence."""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from .options import Options
from .rows import Row


class Part(NamedTuple):
    module: str
    idea: str
    flower: bool = False  # whether it needs Flower

    def run(self, options: Options) -> list[Row]:
        """It is imported when it is asked for: some need what others do not."""
        measure: Callable[[Options], list[Row]] = import_module(f"benchmarks.{self.module}").run
        return measure(options)


PARTS = {
    "step": Part("step", "one training step, method by method, against what the authors' codes do"),
    "round": Part("round", "a federated round with 20 and with 100 clients, on every engine"),
    "growth": Part("growth", "exponents: classes, prompt tokens, pictures, and clients that nobody visits"),
    "beside": Part("beside", "two runs side by side against one alone"),
    "start": Part("start", "what a command, an import, the first round and the default run take"),
    "warm": Part("warm", "a client that stays against one started for each message", flower=True),
    "secure": Part("secure", "a round with secure sums against one whose replies the server sees"),
    "doors": Part("doors", "strangers who connect to a server and stall: what it holds, for how long", flower=True),
    "sites": Part("sites", "how many sites a server carries: CPU, memory and seconds a round", flower=True),
    "faults": Part("faults", "bad settings, files and disks: what came of each"),
    "attacks": Part("attacks", "what clients send, attacked: tuners beside each other, with privacy and without"),
    "compile": Part("compiled", "torch.compile, bf16 and ONNX Runtime on the towers, against ours"),
}
