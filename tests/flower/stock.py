"""A SuperLink and SuperNodes by Flower's own commands, on loopback, and `flwr run` of our app on them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from deployed import SITES, free_ports, until

from fedtailor.flower.app_folder import write_app

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


class Stock:
    def __init__(self, folder: Path, data: Path, *, simulated: bool = False) -> None:
        self.folder, self.data = folder, data
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (self.port,) = free_ports(1)
        own = {"OMP_NUM_THREADS": "1", "FEDTAILOR_CACHE": str(folder / "cache"), "FLWR_HOME": str(folder / "flwr")}
        self.environment = {**os.environ, **QUIET, **own}
        write_app(folder / "app")
        (folder / "flwr").mkdir()
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "there"\n[superlink.there]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        words = ["--simulation"] if simulated else []
        self.spawn("superlink", "superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port), *words)
        until(lambda: self.flwr("ls", "there").returncode == 0, told=self.logs)
        for k in () if simulated else range(SITES):
            self.supernode(k)

    def spawn(self, name: str, kind: str, *words: str) -> None:
        command = [str(Path(sys.executable).with_name(f"flower-{kind}")), *words]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def supernode(self, k: int) -> None:
        home, data = self.folder / f"home-{k}", self.data / f"site-{k}"
        config = f'home="{home}" data="folder:{data}" partition-id={k}'
        port = str(free_ports(1)[0])
        at = ("--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", port)
        self.spawn(f"supernode-{k}", "supernode", "--insecure", *at, "--node-config", config)

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("flwr")), *words]
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)

    def run(self, config: str, *more: str) -> str:
        """To its end; what was told of it."""
        return self.flwr("run", "app", "there", "--stream", "--run-config", config, *more).stdout

    def kill(self, name: str) -> None:
        """As if the power had failed: with what it has started, at once."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))
