"""CPU seconds, wall seconds and peak memory of a piece of work in this process, and of whole processes.

CPU seconds are of all threads. Memory is the highest of resident memory while the work runs, less what was resident
before it began; what earlier work left unused in the allocator is given back first.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
LINUX = sys.platform == "linux"
LOOK = 0.004  # seconds between two looks at another process
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    wall_s: float
    peak_mb: float


def memory_mb(field: str, process: str = "self") -> float:
    """A process's VmRSS (now) or VmHWM (its highest), from Linux's own count; elsewhere this one's highest for both."""
    if not LINUX:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # in bytes on a Mac
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/{process}/status")


def forget_peak() -> float:
    """Give unused memory back, count the highest from here, and say what is resident now."""
    gc.collect()
    if LINUX:
        with suppress(OSError, AttributeError):  # another libc
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):  # a container may forbid it: the peak is then that of the whole process
            Path("/proc/self/clear_refs").write_text("5")
    return memory_mb("VmRSS")


def measured(work: Callable[[], T]) -> tuple[T, Cost]:
    before = forget_peak()
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return result, Cost(cpu, wall, max(0.0, memory_mb("VmHWM") - before))


def environment(**more: str) -> dict[str, str]:
    """This one's, with this repository before all else that can be imported."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), **more}


def spent(commands: Sequence[Sequence[str]], where: Path, env: Mapping[str, str]) -> list[Cost]:
    """What whole processes took, all begun at the same moment; peak_mb is all that each had."""
    costs: dict[int, Cost] = {}

    def wait(number: int, process: subprocess.Popen[bytes], log: Path) -> None:
        megabytes = 0.0
        while True:
            # The system's own highest counts what this process had when it began the other, so it is looked at there.
            with suppress(OSError, RuntimeError):
                megabytes = max(megabytes, memory_mb("VmHWM", str(process.pid)))
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            time.sleep(LOOK)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - began
        if process.returncode == 0:
            costs[number] = Cost(usage.ru_utime + usage.ru_stime, wall, megabytes)
        else:
            failed.append(f"{' '.join(process.args)[:200]}: {log.read_text()[-2000:]}")  # type: ignore[arg-type]

    failed: list[str] = []
    threads, began = [], time.perf_counter()
    for number, command in enumerate(commands):
        log = where / f"{time.time_ns()}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(list(command), cwd=where, env=dict(env), stdout=file, stderr=file)
        threads.append(threading.Thread(target=wait, args=(number, process, log)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    if failed:
        raise RuntimeError("; ".join(failed))
    return [costs[number] for number in range(len(commands))]
