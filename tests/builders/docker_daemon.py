"""A docker daemon for tests: without a bridge and without firewall rules, so that it changes nothing of the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from oracles import oracle

START_BOUND_S = 30.0


class Dockerd:
    """A docker daemon that can be ended and started again, with its files in ``folder`` and its images in ``data``.

    ``apart``: in a network namespace of its own, where no image can be downloaded. Without a bridge dockerd removes
    docker0, which belongs to the docker of the machine: with a machine's network no such docker may run.
    """

    def __init__(self, tool: str, folder: Path, data: Path, *, apart: bool = True) -> None:
        self.address = f"unix://{folder}/docker.sock"
        self._folder, self._data = folder, data
        options = [f"--host={self.address}", f"--data-root={data}", f"--exec-root={folder}/exec"]
        options += [f"--pidfile={folder}/pid", "--bridge=none", "--iptables=false", "--ip6tables=false"]
        self._argv = [*(["unshare", "--net"] if apart else []), tool, *options, "--ip-forward=false", "--ip-masq=false"]
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it answers. Raises RuntimeError with its last words."""
        # It serves all modules: it must not look like something that one of them started and left behind.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TESTBED_")}
        with (self._folder / "log").open("ab") as log:
            self._child = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        until = time.monotonic() + START_BOUND_S
        while subprocess.run(["docker", "--host", self.address, "version"], capture_output=True).returncode != 0:
            if self._child.poll() is not None or time.monotonic() > until:
                words = (self._folder / "log").read_text(errors="replace").strip().splitlines()[-3:]
                raise RuntimeError(" ".join(words))
            time.sleep(0.1)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self._child is None:
            return
        self._child.send_signal(number)
        self._child.wait(60)
        self._child = None
        # After SIGKILL its containerd goes on, and would keep the next daemon from starting one; so do containers.
        orphan = self._folder / "exec" / "containerd" / "containerd.pid"
        if number == signal.SIGKILL and orphan.exists():
            pid = int(orphan.read_text())
            os.kill(pid, signal.SIGTERM)
            oracle.until(lambda: not Path(f"/proc/{pid}").exists(), START_BOUND_S, "containerd ends")

    def release(self) -> None:
        """Unmount what an ended daemon leaves: its network namespace's handle, and after SIGKILL its data."""
        subprocess.run(["umount", f"{self._folder}/exec/netns/default"], capture_output=True)
        subprocess.run(["umount", str(self._data)], capture_output=True)
