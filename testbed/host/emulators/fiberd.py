"""fiberd as an :class:`~testbed.host.emulators.emulator.Emulator`: start the C helper in the plant and control it.

The line protocol is described in ``testbed/fiberd/control.h`` and docs/fiberd.md.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from testbed.core.physics.impairment import EmulatedDirection, Impairment
from testbed.core.topology.topology_limits import MOST_DIRECTIONS
from testbed.errors import HostError, LabError, MissingTool
from testbed.host import installation
from testbed.host.emulators.emulator import (
    DROP_CAUSES,
    DirectionStats,
    EmulatorInfo,
    PacketRecord,
    RecordedPacket,
    refuse_impossible,
)

__all__ = ["Fiberd", "find_binary"]

ANSWER_TIMEOUT_S: Final = 5.0
STOP_TIMEOUT_S: Final = 10.0
DEFAULT_PRIORITY: Final = 40
"""SCHED_FIFO priority: above all processes of a job, below the kernel's threads (50)."""

_BINARY: Final = Path(__file__).resolve().parents[2] / "fiberd" / "fiberd"


def find_binary() -> Path:
    """Return the compiled helper that was installed with the package. Raises MissingTool."""
    if os.access(_BINARY, os.X_OK):
        return _BINARY
    raise MissingTool("fiberd", installation.rebuilding(), "it was not compiled when the package was installed")


class Fiberd:
    """A running fiberd, created by :meth:`start`. Thread-safe."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, log_path: Path) -> None:
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._control = control
        self._log_path = log_path
        self._received = b""
        self._talking = threading.Lock()  # one request and its answer at a time
        self._reaping = threading.Lock()
        self._out_of_step = False
        self.info = EmulatorInfo("fiberd", "unknown")

    @classmethod
    def start(
        cls,
        netns: str | Path,
        directions: Sequence[EmulatedDirection],
        seed: int,
        log_path: Path,
        priority: int = DEFAULT_PRIORITY,
    ) -> Fiberd:
        """Start forwarding between existing interfaces of the plant, impaired from the first packet on.

        Args:
            netns: the plant's network namespace: a path, or a name known to ``ip netns``.
            directions: at most :data:`MOST_DIRECTIONS`; their interfaces may be up or down.
            seed: of random loss; the same seed and the same packets lose the same packets.
            log_path: receives fiberd's stderr.
            priority: SCHED_FIFO priority; normal scheduling if 0 or not permitted. ``info`` has the result.

        Raises:
            MissingTool: fiberd was not compiled. LabError: fiberd failed to start; the message has its output.
        """
        # Before fiberd starts: when it exits, it takes the ends down.
        refuse_impossible({direction.name: direction.impairment for direction in directions})
        if len(directions) > MOST_DIRECTIONS:
            raise LabError(f"{len(directions)} directions are too many for fiberd; use at most {MOST_DIRECTIONS}")
        binary = find_binary()
        namespace = str(netns) if "/" in str(netns) else f"/run/netns/{netns}"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        argv = [str(binary), "--netns", namespace, "--seed", str(seed % 2**64)]
        argv += ["--priority", str(priority), "--parent", str(os.getpid()), "--directions", str(MOST_DIRECTIONS)]
        try:
            with log_path.open("ab") as log:
                process = subprocess.Popen(argv, stdin=theirs.fileno(), stdout=log, stderr=log, start_new_session=True)
        except OSError as error:
            ours.close()
            raise HostError(f"cannot start {binary}: {error}") from error
        finally:
            theirs.close()
        self = cls(process, ours, log_path)
        try:
            self._ask([f"add {direction.name} {direction.ingress} {direction.egress}" for direction in directions])
            self.set({direction.name: direction.impairment for direction in directions})
            answer = dict(word.split("=", 1) for word in self._ask(["go"])[0].split())
            self.info = EmulatorInfo("fiberd", _scheduling(answer))
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def set(self, changes: Mapping[str, Impairment], flush: Collection[str] = ()) -> None:
        """Replace the impairments of these directions; packets in flight are neither lost nor reordered.

        Packets in flight in the directions of ``flush`` are dropped, counted as ``down``; no port loses its carrier.
        Each direction changes atomically; several change within microseconds of each other.

        Raises:
            LabError: unknown direction, impossible value, or fiberd has ended or does not answer.
        """
        refuse_impossible(changes)
        lines = [
            f"set {name} " + " ".join(f"{key}={value}" for key, value in _values(impairment).items())
            for name, impairment in changes.items()
        ]
        self._ask(lines + [f"flush {name}" for name in flush])

    def differences(self, expected: Mapping[str, Impairment]) -> list[str]:
        """Read the values in force back; return one sentence per difference. Raises LabError as :meth:`set`."""
        values_in_force = dict(
            _parse_values(reply) for reply in self._ask([f"get {name}" for name in expected], collect=True)
        )
        return [
            f"{name}: {key} is {values_in_force.get(name, {}).get(key)}, expected {value}"
            for name, impairment in expected.items()
            for key, value in _values(impairment).items()
            if not _same(values_in_force.get(name, {}).get(key), value)
        ]

    def stats(self) -> tuple[DirectionStats, ...]:
        """Return one record per direction, in the order of the start.

        Raises:
            LabError: fiberd has ended or does not answer.
        """
        return tuple(_parse_stats(line) for line in self._ask(["stats"], collect=True))

    def record(self, nonce: int) -> PacketRecord:
        """Return the packets recorded so far, then record those with this nonce in their mark (0: none).

        Raises:
            LabError: fiberd has ended, does not answer, or lacks the memory.
        """
        packets: list[RecordedPacket] = []
        lost: int | None = None
        while lost is None:
            for line in self._ask(["recorded"], collect=True):
                kind, *fields = line.split()
                if kind == "lost":
                    lost = int(fields[0])
                else:
                    packets.append(RecordedPacket(fields[0], *map(int, fields[1:])))
        self._ask([f"record {nonce}"])
        return PacketRecord(tuple(packets), lost)

    def segmented(self) -> tuple[str, ...]:
        """Return nothing: fiberd splits super-packets itself."""
        return ()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until fiberd ends; return its exit status (negative: killed by a signal), or None after ``timeout_s``.

        If fiberd was killed, its ends are still up and the caller must take them down.
        """
        with self._reaping:
            if self._process.returncode is not None:
                return self._process.returncode
            pidfd = os.dup(self._pidfd)
        try:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            if not poller.poll(None if timeout_s is None else math.ceil(timeout_s * 1000)):
                return None
        finally:
            os.close(pidfd)
        with self._reaping:
            status = self._process.wait()  # returns at once: it is dead, and this reaps it
            if self._pidfd >= 0:
                os.close(self._pidfd)
                self._pidfd = -1
        return status

    def stop(self) -> None:
        """Let fiberd take all ends down and end. Idempotent."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        if self.wait(STOP_TIMEOUT_S) is None:
            self._process.kill()
            self.wait()
        with self._talking:
            self._control.close()

    # -- requests and answers --------------------------------------------------------------------------------------

    def _ask(self, lines: Sequence[str], collect: bool = False) -> list[str]:
        """Send commands in one write and read their answers.

        Returns the text after each ``ok``; with ``collect``, the lines before it.
        """
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        answers: list[str] = []
        errors: list[str] = []
        with self._talking:
            if self._out_of_step:
                raise LabError(f"fiberd (pid {self.pid}) was killed: no answer within {ANSWER_TIMEOUT_S:g} s")
            try:
                self._send("".join(f"{line}\n" for line in lines).encode(), deadline)
                ended = 0
                while ended < len(lines):
                    line = self._read_line(deadline)
                    status, _, text = line.partition(" ")
                    if status == "ok":
                        ended += 1
                        if not collect:
                            answers.append(text)
                    elif status == "error":
                        ended += 1
                        errors.append(text)
                    else:
                        answers.append(line)
            except TimeoutError as error:
                # fiberd has one thread: while it does not answer, it forwards no packets, and a late answer could not
                # be matched to its request. Killing it makes this a visible cut, not a black hole behind ports that are
                # up.
                self._out_of_step = True
                self._process.kill()
                raise LabError(
                    f"fiberd (pid {self.pid}) did not answer within {ANSWER_TIMEOUT_S:g} s and was killed"
                ) from error
            except OSError as error:
                raise LabError(self._obituary()) from error
        if errors:
            raise LabError("fiberd refused: " + "; ".join(errors))
        return answers

    def _send(self, data: bytes, deadline: float) -> None:
        self._control.settimeout(max(deadline - time.monotonic(), 0.001))
        self._control.sendall(data)

    def _read_line(self, deadline: float) -> str:
        while b"\n" not in self._received:
            self._control.settimeout(max(deadline - time.monotonic(), 0.001))
            chunk = self._control.recv(65536)
            if not chunk:
                raise ConnectionResetError("end of file")
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line.decode(errors="replace")

    def _obituary(self) -> str:
        status = self.wait(1.0)
        end = "closed its control socket" if status is None else f"ended with status {status}"
        last_line = ""
        with contextlib.suppress(OSError):
            last_line = self._log_path.read_text(errors="replace").strip().rpartition("\n")[2]
        return f"fiberd (pid {self.pid}) {end}" + (f": {last_line}" if last_line else "")


def _values(impairment: Impairment) -> dict[str, str | float]:
    """Return the impairment by the keys of fiberd's ``set``."""
    chain = impairment.chain
    return {
        "delay_ns": round(impairment.delay_s * 1e9),
        "rate_bps": float(impairment.rate_bps),
        "queue_bytes": impairment.queue_bytes,
        "overhead_bytes": impairment.overhead_bytes,
        "loss": 0.0 if chain else float(impairment.loss),
        "p": float(chain.p) if chain else 0.0,
        "r": float(chain.r) if chain else 0.0,
        "h": float(chain.h) if chain else 0.0,
        "k": float(chain.k) if chain else 1.0,
        "jitter_ns": round(impairment.jitter_s * 1e9),
        "distribution": impairment.jitter_distribution,
        "correlation": float(impairment.jitter_correlation),
        "jitter_reorders": int(impairment.jitter_reorders),
        "corrupt": float(impairment.corrupt),
        "corrupt_survives": int(impairment.corrupt_survives),
        "duplicate": float(impairment.duplicate),
        "reorder": float(impairment.reorder),
        "reorder_by_ns": round(impairment.reorder_by_s * 1e9),
        "largest_bytes": impairment.largest_bytes,
    }


def _parse_values(line: str) -> tuple[str, dict[str, str]]:
    _, name, *assignments = line.split()
    return name, dict(word.split("=", 1) for word in assignments)


def _same(in_force: str | None, asked: str | float) -> bool:
    """Whether a value read back is the one that was sent; fiberd prints numbers with all their digits."""
    if in_force is None:
        return False
    return in_force == asked if isinstance(asked, str) else float(in_force) == float(asked)


def _scheduling(answer: Mapping[str, str]) -> str:
    if answer["scheduling"] == "SCHED_FIFO":
        return f"SCHED_FIFO {answer['priority']}, spin {answer['spin_us']} us"
    return f"{answer['scheduling']}, nice {answer['priority']}"


def _parse_stats(line: str) -> DirectionStats:
    _, name, *assignments = line.split()
    values = dict(word.split("=", 1) for word in assignments)
    return DirectionStats(
        direction=name,
        packets=int(values["packets"]),
        segments=int(values["segments"]),
        bytes=int(values["bytes"]),
        drops={cause: int(values.get(f"drop_{cause}", 0)) for cause in DROP_CAUSES},
        queue_bytes=int(values["queue_bytes"]),
        corrupted=int(values["corrupted"]),
        duplicated=int(values["duplicated"]),
        held_back=int(values["held_back"]),
        emptied=int(values["emptied"]),
        in_flight_packets=int(values["in_flight_packets"]),
        lateness_bounds_s=tuple(int(bound) / 1e6 for bound in values["lateness_bounds_us"].split(",")),
        lateness_counts=tuple(int(count) for count in values["lateness_counts"].split(",")),
    )
