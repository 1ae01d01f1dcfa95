"""The workload of a job as a value: what the testbed's own agents train, or which program its ranks run.

Experiments, ``run``, ``launch``, ``train`` and Python all use these two, and nothing else describes a workload.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from testbed.core.workload.progress import Progress
from testbed.core.workload.progress import to_dict as progress_to_dict

__all__ = ["AgentWorkload", "ProgramWorkload", "Workload"]


@dataclass(frozen=True)
class AgentWorkload:
    """The job of the testbed's agents. A lab's rates are scaled down, so the model is too: its bytes cross the fiber.

    ``data``: path of the text to train on; None for the default. ``timeout_s`` is the process group's timeout: a cut
    of all fibers that lasts longer (plus TCP's retransmission delay) ends the attempt. A failed attempt is restarted up
    to ``restarts`` times, from the newest checkpoint that all ranks have. They write one every ``checkpoint_every``
    steps (0: none; restarts begin at the first step).
    """

    steps: int
    seed: int = 0
    data: str | None = None
    timeout_s: float = 30.0
    batch: int = 4
    context: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 96
    learning_rate: float = 1e-3
    checkpoint_every: int = 50
    restarts: int = 3

    @property
    def stall_s(self) -> float:
        """Seconds without a committed step after which a job counts as stalled: a wait ends after ``timeout_s``, and
        one collective may have two waits."""
        return 2.0 * self.timeout_s + 20.0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the message that starts the agents' job."""
        return {
            "steps": self.steps,
            "seed": self.seed,
            "data": self.data or None,
            "timeout_s": self.timeout_s,
            "batch": self.batch,
            "context": self.context,
            "model": {"layers": self.layers, "heads": self.heads, "width": self.width},
            "learning_rate": self.learning_rate,
            "checkpoint_every": self.checkpoint_every,
        }


@dataclass(frozen=True)
class ProgramWorkload:
    """A program of the user's, run unchanged on every node, ``ranks_per_node`` times each.

    ``environment``: variables beside torchrun's and the testbed's, which they override. ``progress``: where its steps
    are read; None: where the program calls ``testbed_agents.step``.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ranks_per_node: int = 1
    progress: Progress | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of run.json's ``workload``; variables of the environment may be secrets and stay out."""
        read = {"progress": progress_to_dict(self.progress)} if self.progress is not None else {}
        return {"command": shlex.join(self.command), "ranks_per_node": self.ranks_per_node, **read}


Workload: TypeAlias = AgentWorkload | ProgramWorkload
