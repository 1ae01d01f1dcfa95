"""The workload of a job as a value: what the testbed's own agents train, or which program its ranks run.

Experiments, ``run``, ``launch``, ``train`` and Python all use these two, and nothing else describes a workload;
``workload_schema.py`` reads them from a file.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Literal, TypeAlias

from testbed.core.training.layout import gpt_tensors
from testbed.core.training.strategies_built import BUILT, twin_class
from testbed.core.units import format_duration
from testbed.core.workload.declared_compute import MOST_ELEMENTS, DeclaredCompute, format_count, full_scale_buckets
from testbed.core.workload.progress_source import Progress
from testbed.core.workload.progress_source import to_dict as progress_to_dict
from testbed.errors import UserError

__all__ = ["BUCKETS", "BUILT", "AgentWorkload", "ProgramWorkload", "Start", "Workload"]

BUCKETS: Final = "buckets"
"""The option of strategies that cut gradients into buckets: as many as at full scale, unless it is written."""

Start: TypeAlias = Literal["direct", "mpi", "per-node"]
"""Who starts a program's ranks."""


@dataclass(frozen=True)
class AgentWorkload:
    """The job of the testbed's agents. A lab's rates are scaled down, so the model is too: its bytes cross the fiber.

    ``data``: path of the text to train on; None for the default. ``timeout_s`` is the process group's timeout: a cut
    of all fibers that lasts longer (plus TCP's retransmission delay) ends the attempt. A failed attempt is restarted up
    to ``restarts`` times, from the newest checkpoint that all ranks have. They write one every ``checkpoint_every``
    steps (0: none; restarts begin at the first step). ``strategy`` is a name of :data:`BUILT`; ``options`` are those of
    it that are not left at their default, by the twin's names, parsed. ``compute`` is None for real compute. The outer
    parameters are evaluated on held-out text after every ``evaluate_every`` steps and the last one; 0: never. With
    ``calibrate`` the ranks time their operations alone before the first step, for about 1 s. Raises
    UserError for a workload that no agent can run.
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
    options: Mapping[str, Any] = field(default_factory=dict)
    compute: DeclaredCompute | None = None
    evaluate_every: int = 0
    calibrate: bool = False

    ranks_per_node: ClassVar[int] = 1
    program: ClassVar[None] = None
    """The workload as one of a program; None."""
    program_folder: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UserError(f"steps must be at least 1, got {self.steps}")
        if self.heads < 1 or self.width % self.heads:
            raise UserError(f"width must be a multiple of heads, got width {self.width} and {self.heads} heads")
        options = {option.name for option in twin_class(self.strategy).options}
        if foreign := sorted({*self.options} - options):
            available = ", ".join(sorted(options)) or "none"
            raise UserError(f"strategy {self.strategy} has no option {foreign[0]} (available: {available})")

    @property
    def agents(self) -> AgentWorkload:
        """The workload as one of the agents."""
        return self

    def phase(self, nodes: int) -> tuple[str, str]:
        """Return name and detail of the phase in which the job runs on ``nodes``, one line."""
        strategy = "" if self.strategy == AgentWorkload.strategy else f"{self.strategy}, "
        return "train", f"{strategy}{self.steps} steps on {nodes} ranks"

    @property
    def step_s(self) -> float | None:
        """Declared compute of a step at the slowest site; None if it is not declared."""
        return None if self.compute is None else self.compute.slowest_s

    @property
    def asleep(self) -> bool:
        """Whether a model that sleeps is trained, rather than the agents' GPT."""
        return self.compute is not None and not self.compute.real

    def elements(self, scale: float = 1.0) -> int:
        """Return the parameters of the model in a lab of this ``scale``."""
        if self.compute is not None and self.compute.model is not None:
            return max(1, round(self.compute.model / scale))
        return sum(tensor.elements for tensor in gpt_tensors(self.layers, self.width, self.context))

    def values(self, scale: float = 1.0) -> dict[str, Any]:
        """Return all options of the strategy by name, those that are not written included.

        Gradients of a model of declared size are cut into as many buckets as at full scale.
        """
        option_values = {option.name: option.default for option in twin_class(self.strategy).options}
        if BUCKETS in option_values and self.compute is not None and self.compute.model is not None:
            option_values[BUCKETS] = full_scale_buckets(self.compute.model, self.layers)
        return option_values | dict(self.options)

    def refused(self, scale: float) -> str:
        """Return why a lab of this ``scale`` cannot hold the model; empty if it can."""
        if not self.asleep:
            return ""
        elements = self.elements(scale)
        if elements < self.layers:
            return f"a model of {elements} parameters (scale {scale:g}) cannot have {self.layers} layers"
        if elements > MOST_ELEMENTS:
            most = f"{format_count(MOST_ELEMENTS)} fit a rank's memory"
            return f"the model has {format_count(elements)} parameters in the lab (scale {scale:g}); {most}"
        return ""

    @property
    def stall_s(self) -> float:
        """Seconds without a committed step after which a job counts as stalled: a wait ends after ``timeout_s``, and
        one collective may have two waits."""
        return 2.0 * self.timeout_s + 20.0

    def to_message(self, scale: float = 1.0) -> dict[str, Any]:
        """Return the fields of the message that starts the agents' job, in a lab of this ``scale``."""
        values = self.values(scale)
        options = {option.argument: values[option.name] for option in twin_class(self.strategy).options}
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
            "strategy": {"name": self.strategy, "options": options},
            "evaluate_every": self.evaluate_every,
            **({} if self.compute is None else {"compute": self._compute_message(self.compute, scale)}),
        }

    def _compute_message(self, compute: DeclaredCompute, scale: float) -> dict[str, Any]:
        own: dict[str, Any] = {"seconds": compute.seconds, "real": compute.real, "noise": compute.noise}
        if compute.speeds:
            own["speeds"] = dict(compute.speeds)
        return own if compute.real else {**own, "elements": self.elements(scale), "layers": self.layers}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of run.json's ``workload``: steps, seed, and every value that is not the default.

        Options of the strategy and what is declared of compute have the keys of a file.
        """
        plain = [own_field for own_field in fields(self) if own_field.name not in ("options", "compute", "calibrate")]
        unlike = {
            plain_field.name: value
            for plain_field in plain
            if (value := getattr(self, plain_field.name)) != plain_field.default
        }
        declared = {} if self.compute is None else self.compute.written()
        return {"steps": self.steps, "seed": self.seed} | unlike | dict(self.options) | declared


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

    agents: ClassVar[None] = None
    """The workload as one of the agents; None."""
    seed: ClassVar[int] = 0
    data: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not self.command:
            raise UserError("expected a command: program and arguments, got none")
        if self.ranks_per_node < 1:
            raise UserError(f"ranks_per_node must be at least 1, got {self.ranks_per_node}")

    @property
    def program(self) -> ProgramWorkload:
        """The workload as one of a program."""
        return self

    @property
    def program_folder(self) -> str:
        """The folder that it runs in, seen from the experiment's file."""
        return self.folder or "."

    def phase(self, nodes: int) -> tuple[str, str]:
        """Return name and detail of the phase in which the job runs on ``nodes``, one line."""
        bound_s = self.for_s or self.timeout_s
        until = "" if bound_s is None else f", {'for' if self.for_s else 'at most'} {format_duration(bound_s)}"
        return "program", f"{shlex.join(self.command)} on {nodes * self.ranks_per_node} ranks{until}"

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
