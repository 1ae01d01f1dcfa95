"""The workload of a job as a value: what the testbed's own agents train, or which program its ranks run.

Experiments, ``run``, ``launch``, ``train`` and Python all use these two, and nothing else describes a workload;
``workload_schema.py`` reads them from a file.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias

from testbed.core.user_text import shown
from testbed.core.workload.progress_source import Progress
from testbed.core.workload.progress_source import to_dict as progress_to_dict
from testbed.errors import UserError

__all__ = ["BUILT", "AgentWorkload", "ProgramWorkload", "Start", "Workload"]

BUILT: Final = ("ddp",)
"""The strategies that the testbed's agents can train by."""

Start: TypeAlias = Literal["direct", "mpi", "per-node"]
"""Who starts a program's ranks."""


@dataclass(frozen=True)
class AgentWorkload:
    """The job of the testbed's agents. A lab's rates are scaled down, so the model is too: its bytes cross the fiber.

    ``data``: path of the text to train on; None for the default. ``timeout_s`` is the process group's timeout: a cut
    of all fibers that lasts longer (plus TCP's retransmission delay) ends the attempt. A failed attempt is restarted up
    to ``restarts`` times, from the newest checkpoint that all ranks have. They write one every ``checkpoint_every``
    steps (0: none; restarts begin at the first step). Raises UserError for a workload that no agent can run.
    """

    steps: int = 500
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
    strategy: str = "ddp"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UserError(f"steps must be at least 1, got {self.steps}")
        if self.heads < 1 or self.width % self.heads:
            raise UserError(f"width must be a multiple of heads, got width {self.width} and {self.heads} heads")
        if self.strategy not in BUILT:
            known = ", ".join(BUILT)
            raise UserError(f"the agents cannot train by strategy {shown(self.strategy)} (available: {known})")

    @property
    def stall_s(self) -> float:
        """Seconds without a committed step after which a job counts as stalled: a wait ends after ``timeout_s``, and
        one collective may have two waits."""
        return 2.0 * self.timeout_s + 20.0

    def to_message(self) -> dict[str, Any]:
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

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of run.json's ``workload``: steps, seed, and every value that is not the default."""
        unlike = {it.name: value for it in fields(self) if (value := getattr(self, it.name)) != it.default}
        return {"steps": self.steps, "seed": self.seed} | unlike


@dataclass(frozen=True)
class ProgramWorkload:
    """A program of the user's, run unchanged on every node, ``ranks_per_node`` times each.

    Attributes:
        command: program and arguments.
        environment: variables beside torchrun's and the testbed's, which they override.
        ranks_per_node: processes on each node, at least 1.
        progress: where its steps are read; None: only calls of ``testbed_agents.step`` are.
        steps: how many steps it makes, if known, for ``after: step 40%`` and for the line of progress.
        for_s: end it in order after this many seconds from its begin; None: it ends by itself.
        timeout_s: it has failed if it has not ended after this many seconds from its begin; None: no limit.
        stall_s: it has failed if it reports no step for this many seconds after its first one; None: no limit.
        folder: its working directory, absolute; None: the caller's.
        start: who starts the ranks: the testbed; an MPI's mpiexec; with ``per-node`` the command, once on each node.
        mpiexec: that of ``mpi``; empty: the one of the library that the program is linked with.
        keep_scratch: whether TESTBED_SCRATCH of each node is kept with the run; else it goes with the lab.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ranks_per_node: int = 1
    progress: Progress | None = None
    steps: int | None = None
    for_s: float | None = None
    timeout_s: float | None = None
    stall_s: float | None = None
    folder: str | None = None
    keep_scratch: bool = False
    start: Start = "direct"
    mpiexec: str = ""

    def __post_init__(self) -> None:
        if not self.command:
            raise UserError("expected a command: program and arguments, got none")
        if self.ranks_per_node < 1:
            raise UserError(f"ranks_per_node must be at least 1, got {self.ranks_per_node}")

    @property
    def processes_per_node(self) -> int:
        """How many processes the testbed knows on each node: those of ``per-node`` start the ranks themselves."""
        return 1 if self.start == "per-node" else self.ranks_per_node

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of run.json's ``workload``; variables of the environment may be secrets and stay out."""
        limits = {name: getattr(self, name) for name in ("steps", "for_s", "timeout_s", "stall_s", "folder")}
        return {
            "command": shlex.join(self.command),
            "ranks_per_node": self.ranks_per_node,
            **({} if self.progress is None else {"progress": progress_to_dict(self.progress)}),
            **{name: value for name, value in limits.items() if value is not None},
            **({} if self.start == "direct" else {"start": self.start}),
        }


Workload: TypeAlias = AgentWorkload | ProgramWorkload
