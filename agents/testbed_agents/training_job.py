"""A job as its ranks know it: what is trained, how it ended, and why it failed."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed_agents.model import Shape
from testbed_agents.records import Fence
from testbed_agents.status_file import Order

__all__ = ["Control", "Job", "Outcome", "Seat", "TrainingFailed", "reason_of"]


class TrainingFailed(Exception):
    """The job cannot continue; the message is one sentence for the user. ``step``: the last completed step."""

    def __init__(self, reason: str, step: int = 0) -> None:
        super().__init__(reason)
        self.step = step


@dataclass(frozen=True)
class Seat:
    """The number of this rank, and where it runs."""

    rank: int
    node: str
    site: str


@dataclass(frozen=True)
class Job:
    """Parameters of a job, the same for all ranks; fields as in the message ``train`` (docs/design.md).

    Attributes:
        master: address and port of the store at rank 0.
        interface: network interface for gloo.
        timeout_s: timeout of a wait inside a collective.
        attempt: number of the attempt, from 1.
        resume: (step, attempt) of the checkpoint to resume from, which all ranks have; None: start from the beginning.
        checkpoint_every: steps between two checkpoints; 0: none.
        sites: the site of each rank, in rank order; empty: all at one.
        calibrate: operations to time alone before the first step (``calibration.py``).
        evaluate_every: steps between two evaluations of the outer parameters on held-out text; 0: none.
        strategy: name of the strategy; ``options`` are arguments of its constructor.
        compute: what is declared of the compute of a step (``compute.Compute``); None for real compute.
    """

    job: str
    world_size: int
    master: tuple[str, int]
    interface: str
    directory: Path
    steps: int
    seed: int = 0
    timeout_s: float = 30.0
    batch: int = 4
    shape: Shape = field(default_factory=Shape)
    data: str | None = None
    learning_rate: float = 1e-3
    attempt: int = 1
    resume: tuple[int, int] | None = None
    checkpoint_every: int = 0
    sites: tuple[str, ...] = ()
    strategy: str = "ddp"
    options: Mapping[str, Any] = field(default_factory=dict)
    compute: Mapping[str, Any] | None = None
    evaluate_every: int = 0
    calibrate: tuple[Mapping[str, Any], ...] = ()

    @property
    def speeds(self) -> Mapping[str, float]:
        """Declared speeds of sites, relative to the fastest ones."""
        return dict((self.compute or {}).get("speeds", {}))

    @property
    def tokens_per_step(self) -> int:
        """Tokens of this rank in an inner step."""
        return self.batch * self.shape.context

    def evaluates_after(self, step: int) -> bool:
        """Return whether an evaluation is due after ``step``: every so many steps, and after the last one."""
        return self.evaluate_every > 0 and (step % self.evaluate_every == 0 or step == self.steps)

    @property
    def fence(self) -> Fence:
        return Fence(self.directory, self.attempt)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Job:
        """Parse a message. Raises TrainingFailed if a field is missing or invalid."""
        try:
            address, port = message["master"]
            return cls(
                job=str(message["job"]),
                world_size=int(message["world_size"]),
                master=(str(address), int(port)),
                interface=str(message["interface"]),
                directory=Path(message["directory"]),
                steps=int(message["steps"]),
                seed=int(message.get("seed", 0)),
                timeout_s=float(message.get("timeout_s", 30.0)),
                batch=int(message.get("batch", 4)),
                shape=Shape(context=int(message.get("context", 64)), **message.get("model", {})),
                data=message.get("data"),
                learning_rate=float(message.get("learning_rate", 1e-3)),
                attempt=int(message.get("attempt", 1)),
                resume=(int(resume[0]), int(resume[1])) if (resume := message.get("resume")) else None,
                checkpoint_every=int(message.get("checkpoint_every", 0)),
                sites=tuple(str(site) for site in message.get("sites", ())),
                strategy=str(message.get("strategy", {}).get("name", "ddp")),
                options=dict(message.get("strategy", {}).get("options", {})),
                compute=message.get("compute"),
                evaluate_every=int(message.get("evaluate_every", 0)),
                calibrate=tuple(message.get("calibrate", ())),
            )
        except KeyError as error:
            raise TrainingFailed(f"the train message has no {error}") from error
        except (TypeError, ValueError) as error:
            raise TrainingFailed(f"invalid train message: {error}") from error


class Control:
    """Commands to a running job, from another thread.

    Attributes:
        stop, save: end the job after the running step; ``save`` with a checkpoint.
        slower_by: extends the compute of each step by this share of the declared compute, or of the previous step's
            real compute.
    """

    slower_by: float = 0.0

    def __init__(self) -> None:
        self.stop, self.save = threading.Event(), threading.Event()

    @property
    def request(self) -> Order:
        """What this rank asks the other ranks for."""
        return "stop" if self.stop.is_set() else "save" if self.save.is_set() else ""


@dataclass(frozen=True)
class Outcome:
    """How a job ended on this rank.

    Attributes:
        status: ok; stopped; or saved, which is stopped with a checkpoint of the last step.
        step: last completed step.
        fingerprint: of the final parameters.
    """

    status: str
    step: int
    fingerprint: str


def reason_of(error: BaseException) -> str:
    """Return the first sentence of an exception for users: without source locations, never empty, of bounded length.

    From gloo, for instance: "Connection closed by peer [10.1.1.2]:41234".
    """
    first = str(error).strip().partition("\n")[0]
    # torch wraps one message in another, "… when running the callback: RuntimeError: [/…/pair.cc:545] Read error …"
    first = re.split(r"\[[^\]\s]+\.\w+:\d+\]\s*|when running the callback: ", first)[-1]
    first = first.partition(". ")[0].rstrip(" .")
    return (first or type(error).__name__)[:300]
