"""One measured thing in a process of its own: `call(module, function, arguments)` runs it there and brings its result.

A process has its own memory to measure, its own caches to fill and its own number of threads. With --quick, functions
are called where they are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from typing import Any

from .measure import environment
from .options import Options


def call(options: Options, module: str, function: str, torch_threads: int = 0, **arguments: Any) -> dict[str, Any]:
    task = json.dumps([module, function, torch_threads or options.threads, arguments])
    if options.quick:
        return obey(task)
    command = [sys.executable, "-m", "benchmarks.child", task]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    if done.returncode:
        raise RuntimeError(f"{module}.{function} {arguments} failed:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def obey(task: str) -> dict[str, Any]:
    module, function, threads, arguments = json.loads(task)
    work = getattr(import_module(f"benchmarks.{module}"), function)
    from fedtailor.base.workers import torch_threads  # sets how OpenMP waits, then imports torch

    with torch_threads(threads):
        result: dict[str, Any] = json.loads(json.dumps(work(**arguments)))
    return result


if __name__ == "__main__":
    print(json.dumps(obey(sys.argv[1])))
