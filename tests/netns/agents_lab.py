"""Nodes on one bridge, created with `ip` alone, and a fork server controlled in JSON lines; no testbed code."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from builders import ROOT
from builders.commands import run_line
from builders.json_files import read_lines
from oracles import oracle

AGENTS = ROOT / "agents"
Message = dict[str, Any]


run = run_line


class Nodes:
    """Network namespaces ``<prefix>n<i>`` with ``fabric0`` = 10.88.0.<i+1>/24, joined in ``<prefix>s``.

    Each also has a process that holds separate mount, UTS and IPC namespaces, with hostname ``node-<i>``.
    """

    def __init__(self, prefix: str, count: int) -> None:
        self.prefix, self.count = prefix, count
        self._holders: list[subprocess.Popen[bytes]] = []

    def name(self, node: int) -> str:
        return f"{self.prefix}n{node}"

    def address(self, node: int) -> str:
        return f"10.88.0.{node + 1}"

    def build(self) -> None:
        switch = f"{self.prefix}s"
        run(f"ip netns add {switch}")
        run(f"ip -n {switch} link add br0 type bridge")
        run(f"ip -n {switch} link set br0 up")
        for node in range(self.count):
            name, port = self.name(node), f"port{node}"
            run(f"ip netns add {name}")
            run(f"ip -n {switch} link add {port} type veth peer name fabric0 netns {name}")
            run(f"ip -n {switch} link set {port} master br0 up")
            run(f"ip -n {name} addr add {self.address(node)}/24 dev fabric0")
            for interface in ("lo", "fabric0"):
                run(f"ip -n {name} link set {interface} up")
            holder = subprocess.Popen(
                ["unshare", "--mount", "--uts", "--ipc", "sh", "-c", f"hostname node-{node} && echo up && exec cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._holders.append(holder)
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"up\n"

    def remove(self) -> None:
        for holder in self._holders:
            holder.communicate()
        for name in (*(self.name(node) for node in range(self.count)), f"{self.prefix}s"):
            run(f"ip netns del {name}", check=False)

    def namespaces(self, node: int) -> dict[str, str]:
        holder = self._holders[node].pid
        return {
            "net": f"/run/netns/{self.name(node)}",
            **{kind: f"/proc/{holder}/ns/{kind}" for kind in ("mnt", "uts", "ipc")},
        }

    def inside(self, node: int, *argv: str, check: bool = True) -> str:
        return run("ip netns exec", self.name(node), *argv, check=check)


class Parent:
    """A fork server under test. ``events`` has all its reports, in order."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "testbed_agents.fork_server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"PYTHONPATH": str(AGENTS)},
                start_new_session=True,
            )
        self.events: list[Message] = []
        self._incoming: queue.Queue[Message] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._incoming.put(json.loads(line))

    def say(self, message: Message) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def wait_for(self, count: int, timeout_s: float, wanted: Callable[[Message], bool]) -> list[Message]:
        """Wait for the next ``count`` events that are ``wanted``; others are kept in ``events`` only."""
        found: list[Message] = []

        def complete() -> bool:
            while len(found) < count and not self._incoming.empty():
                self.events.append(self._incoming.get())
                if wanted(self.events[-1]):
                    found.append(self.events[-1])
            return len(found) == count

        try:
            oracle.until(complete, timeout_s, f"{count} events")
        except AssertionError as error:
            raise AssertionError(f"{error}; {len(found)} so far, last: {self.events[-8:]}") from None
        return found

    def next(self, event: str, count: int = 1, timeout_s: float = 30.0) -> list[Message]:
        return self.wait_for(count, timeout_s, lambda report: report["event"] == event)

    def close(self) -> int:
        """Close stdin; return the exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=15)


@contextmanager
def nodes_up(prefix: str, count: int) -> Iterator[Nodes]:
    nodes = Nodes(f"{prefix}{os.getpid()}", count)
    try:
        nodes.build()
        yield nodes
    finally:
        nodes.remove()


@contextmanager
def fork_server(log: Path) -> Iterator[Parent]:
    """Run a fork server that has loaded torch."""
    parent = Parent(log)
    try:
        (warm,) = parent.next("warm", timeout_s=60)
        assert warm["torch"]
        yield parent
    finally:
        parent.process.kill()
        parent.process.wait()


class Ranks:
    """Ranks that a fork server starts in nodes, one for each of ``sites``, and the records of their jobs in ``folder``.

    ``defaults``: fields of each message that begins a job.
    """

    def __init__(self, parent: Parent, nodes: Nodes, folder: Path, sites: Sequence[str], /, **defaults: Any) -> None:
        self.parent, self.nodes, self.folder, self.sites, self.defaults = parent, nodes, folder, sites, defaults

    def deploy(self, count: int | None = None, port: int = 9100) -> list[Message]:
        """Start a fresh process for each of the first ``count`` ranks; return their reports when they are ready."""
        sites = self.sites[:count]
        for rank, site in enumerate(sites):
            place = {"node": f"node-{rank}", "site": site, "namespaces": self.nodes.namespaces(rank)}
            self.parent.say({"do": "rank", "rank": rank, "metrics": [self.nodes.address(rank), port], **place})
        return sorted(self.parent.next("ready", len(sites)), key=lambda event: int(event["rank"]))

    def train(self, **changed: Any) -> None:
        self.parent.say(
            {
                "do": "train",
                "job": self.folder.name,
                "world_size": len(self.sites),
                "master": [self.nodes.address(0), 29500],
                "interface": "fabric0",
                "directory": str(self.folder),
                "seed": 0,
                "model": {"layers": 2, "heads": 2, "width": 64},
                **self.defaults,
                **changed,
            }
        )

    def begin(self, **changed: Any) -> list[Message]:
        """Begin a job of fresh processes; return their reports when they were ready."""
        ready = self.deploy(changed.get("world_size"))
        self.train(**changed)
        return ready

    def finish(self, count: int | None = None) -> None:
        """Wait until the ranks have succeeded."""
        ends = self.parent.next("finished", count or len(self.sites), timeout_s=60)
        assert [end["status"] for end in ends] == ["ok"] * len(ends), ends

    def stop(self) -> None:
        self.parent.say({"do": "stop", "job": self.folder.name})

    def records(self, rank: int) -> list[Message]:
        return records(self.folder, rank)

    def steps(self, rank: int) -> list[Message]:
        return steps(self.folder, rank)

    def until_steps(self, count: int, rank: int = 0, bound_s: float = 20) -> None:
        """Wait until a rank has recorded so many steps."""
        path = self.folder / f"rank-{rank}.jsonl"
        oracle.until(lambda: path.exists() and len(self.steps(rank)) >= count, bound_s, f"{count} steps")


def records(directory: Path, rank: int) -> list[Message]:
    return read_lines(directory / f"rank-{rank}.jsonl")


def steps(directory: Path, rank: int) -> list[Message]:
    return [record for record in records(directory, rank) if record["kind"] == "step"]
