"""Compute of a step: real, declared, or real inside declared time.

On a few shared cores the real compute of many ranks takes as long as the cores allow, and hides what the fiber does.
Declared compute takes the time that the workload states, whatever the cores do beside it:

``real``      the small GPT at its own speed.
``declared``  a model that sleeps: parameters of the declared size, gradients that differ by rank, no arithmetic to
              speak of. Its loss is that of a convex toy problem, not of a language model.
``paced``     the small GPT inside declared time: loss is real, time is declared.

Declared time passes layer by layer inside autograd's forward (T/3) and backward pass (2T/3, twice as many operations),
so that exchanges overlap it as they overlap real layers; one wait per step would hide that. Each layer sleeps to an
absolute deadline: what was late before is not late again. T is compute as the step records have it, so the usual time
of the optimizer, and of a real layer behind its deadline, is learned and taken off.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from testbed_agents.model import GPT, Shape, cross_entropy

__all__ = ["VECTORS_PER_BLOCK", "Compute", "Pace", "SleepingModel"]

Kind: TypeAlias = Literal["real", "declared", "paced"]

FORWARD_SHARE = 1 / 3
VECTORS_PER_BLOCK = 4
"""Tensors of a sleeping layer: as many as a transformer's layer has matrices."""
TOLERANCE_S = 1e-3
TOLERANCE_SHARE = 0.02
"""A step that took longer than declared by more than the greater of these two is an overrun."""
REMEMBERED = 9
"""Steps from whose median the usual time of optimizer and layers is taken."""
MOST_REHEARSED = 5_000_000
"""Parameters of a sleeping model before the job; a copy of a large one would cost its memory again."""
MOST_REHEARSED_S = 0.15
"""Declared time of a step before the job."""
MOST_LEARNED = 0.5
"""Share of the declared time that may be taken off for what is learned."""


class Pace:
    """Deadlines of the layers of a step. Inactive outside :meth:`begin` and :meth:`end`: evaluation runs at full speed.

    Attributes:
        calls: calls of a layer's forward pass in a step: layers of this rank, times micro-batches.
        excused_s: time of this step in which the rank was blocked by communication before its gradients were ready.
    """

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.excused_s = 0.0
        self._active = False
        self._due_t = self._woken_t = 0.0
        self._slot_s = 0.0
        self._woken_in = -1
        self._usual_s: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    def __deepcopy__(self, memo: object) -> Pace:
        return self  # copies of a model are paced by the same clock

    def begin(self, seconds: float) -> None:
        """Begin a step whose layers take ``seconds`` in all."""
        self._active, self._due_t, self.excused_s, self._woken_in = True, time.monotonic(), 0.0, -1
        self._slot_s = seconds / self.calls

    def end(self) -> None:
        self._active = False

    def excuse(self, seconds: float) -> None:
        """Move all later deadlines of this step: the rank was blocked by communication, not computing."""
        if self._active:
            self._due_t += seconds
            self.excused_s += seconds
            self._woken_t += seconds

    def forward(self) -> None:
        """Return when the forward pass of the next layer is due to end."""
        if self._active:
            self._sleep(FORWARD_SHARE * self._slot_s)

    def backward(self, layer: int, real: bool = False) -> None:
        """Return when the backward pass of ``layer`` is due to end; by its usual time earlier if it is to come."""
        if not self._active:
            return
        if not real:
            self._sleep((1 - FORWARD_SHARE) * self._slot_s)
            return
        if self._woken_in >= 0:  # the backward pass of that layer took until now
            self._usual_s[self._woken_in].append(time.monotonic() - self._woken_t)
        learned = statistics.median(self._usual_s[layer]) if self._usual_s[layer] else 0.0
        self._sleep((1 - FORWARD_SHARE) * self._slot_s, learned)
        self._woken_in, self._woken_t = layer, time.monotonic()

    def _sleep(self, slot_s: float, earlier_s: float = 0.0) -> None:
        self._due_t += slot_s
        if (left_s := self._due_t - earlier_s - time.monotonic()) > 0:
            time.sleep(left_s)


class Compute:
    """The compute of one rank; see the module. Make it with :meth:`from_message`.

    Attributes:
        kind: real, declared or paced.
        seconds: T, declared compute of a step at a site of speed 1; 0 for real compute.
        speed: of this rank's site: a step takes T / speed.
        noise: standard deviation of a step's time, as a share of it, drawn anew for each rank and inner step.
        overruns: steps so far that took longer than declared, and ``overrun_s``, by how much in all.
    """

    def __init__(
        self,
        kind: Kind = "real",
        seconds: float = 0.0,
        noise: float = 0.0,
        *,
        shape: Shape | None = None,
        elements: int = 0,
        layers: int = 0,
        rank: int = 0,
        seed: int = 0,
        speed: float = 1.0,
    ) -> None:
        if kind != "real" and not (seconds > 0 and speed > 0):
            raise ValueError(f"declared compute must be more than 0 s, got {seconds}")
        if kind == "declared" and not 1 <= layers <= elements:
            raise ValueError(f"a declared model needs at least one parameter per layer, got {elements} in {layers}")
        self.kind, self.seconds, self.noise, self.speed = kind, seconds, noise, speed
        self.overruns, self.overrun_s = 0, 0.0
        self._shape, self._elements, self._layers = shape or Shape(), elements, layers
        self._rank, self._seed = rank, seed
        self._pace = Pace(layers if kind == "declared" else self._shape.layers)
        self._declared_s = self._planned_s = 0.0
        self._slower_by = self._own_s = self._extra_s = 0.0
        self._cpu_t = 0.0
        self._behind_s: deque[float] = deque(maxlen=REMEMBERED)

    @classmethod
    def from_message(
        cls, message: Mapping[str, Any] | None, *, rank: int, seed: int, shape: Shape, site: str = ""
    ) -> Compute:
        """Parse the field ``compute`` of the message ``train``; None is real compute. Raises ValueError, TypeError."""
        if message is None:
            return cls("real", shape=shape, rank=rank, seed=seed)
        return cls(
            "paced" if message.get("real") else "declared",
            float(message["seconds"]),
            float(message.get("noise", 0.0)),
            shape=shape,
            elements=int(message.get("elements", 0)),
            layers=int(message.get("layers", shape.layers)),
            rank=rank,
            seed=seed,
            speed=float(message.get("speeds", {}).get(site, 1.0)),
        )

    def model(self) -> nn.Module:
        """Return the model, with its layers in ``blocks``; the caller has seeded torch alike on all ranks."""
        if self.kind == "declared":
            return SleepingModel(self._elements, self._layers, self._shape.width, self._pace, self._rank, self._seed)
        model = GPT(self._shape)
        if self.kind == "paced":
            for layer, block in enumerate(model.blocks):
                block.register_forward_hook(_Marker(self._pace, layer))
        return model

    def rehearsed(self) -> Compute:
        """Return compute like this one for steps before the job, whose model is not larger than it has to be.

        Declared time needs no measurement; ranks differ in the time of real work, and in the noise of declared time.
        """
        shape, elements = self._shape, min(self._elements, MOST_REHEARSED)
        seconds = self.seconds if self.noise else min(self.seconds, MOST_REHEARSED_S)
        return Compute(
            self.kind, seconds, self.noise, shape=shape, elements=elements, layers=self._layers,
            rank=self._rank, seed=self._seed, speed=self.speed,
        )  # fmt: skip

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of the model's output, a mean over the rank's tokens: ``Context.loss``."""
        return output.mean() if self.kind == "declared" else cross_entropy(output, targets)

    def calls(self, count: int) -> None:
        """Set how often a layer's forward pass runs in a step of this rank (default: each layer of the model once)."""
        self._pace.calls = count

    def excuse(self, seconds: float) -> None:
        """Note that communication blocked the step for ``seconds`` before its last gradient was ready."""
        self._pace.excuse(seconds)

    def begin(self, step: int, slower_by: float = 0.0, inner: int = 1) -> None:
        """Begin ``step``, whose compute is extended by the share ``slower_by``; right after its begin was noted.

        ``inner``: which of the inner steps within it, from 1, where a site takes several.
        """
        self._slower_by, self._extra_s = slower_by, 0.0
        self._cpu_t = time.process_time()
        if self.kind == "real":
            return
        self._declared_s = self.seconds / self.speed * (1 + slower_by) * self._noise_in(step, inner)
        behind_s = statistics.median(self._behind_s) if self._behind_s else 0.0
        self._planned_s = self._declared_s - min(max(behind_s, 0.0), MOST_LEARNED * self._declared_s)
        self._pace.begin(self._planned_s)

    def before_backward(self) -> None:
        """Extend real compute by ``slower_by`` of the previous step's; between forward and backward pass."""
        if self.kind == "real" and (extra_s := self._slower_by * self._own_s) > 0:
            time.sleep(extra_s)
            self._extra_s = extra_s

    def end(self, begin_t: float, ready_t: float, sync_t: float, stepped_t: float) -> dict[str, float]:
        """End a step with the times of its record; return the fields that compute adds to it.

        ``cpu_s``: CPU time of the process in the step, all threads. Of declared compute also ``declared_s``: as
        declared, noise and faults included; and ``overrun_s``: how much longer it took, where that is an overrun.
        """
        self._pace.end()
        took_s = (ready_t - begin_t) + (stepped_t - sync_t)
        fields = {"cpu_s": time.process_time() - self._cpu_t}
        if self.kind == "real":
            self._own_s = took_s - self._extra_s
            return fields
        took_s -= self._pace.excused_s
        self._behind_s.append(took_s - self._planned_s)
        fields["declared_s"] = self._declared_s
        late_s = took_s - self._declared_s
        if late_s > max(TOLERANCE_S, TOLERANCE_SHARE * self._declared_s):
            self.overruns += 1
            self.overrun_s += late_s
            fields["overrun_s"] = late_s
        return fields

    def job_fields(self) -> dict[str, Any]:
        """Return the fields of the job record for declared compute; none for real compute."""
        if self.kind == "real":
            return {}
        return {
            "compute": {
                "kind": self.kind,
                "seconds": self.seconds,
                "noise": self.noise,
                **({"speed": self.speed} if self.speed != 1.0 else {}),
                "layers": self._layers if self.kind == "declared" else self._shape.layers,
            }
        }

    def _noise_in(self, step: int, inner: int = 1) -> float:
        """Return the factor of a step, of mean 1: log-normal, and the same after a resume."""
        if not self.noise:
            return 1.0
        key = f"{step}" if inner == 1 else f"{step}/{inner}"
        drawn = random.Random(f"{self._seed}/{self._rank}/{key}").gauss(0.0, 1.0)
        return math.exp(self.noise * drawn - self.noise**2 / 2)


class SleepingModel(nn.Module):
    """A model that sleeps: (batch, time) int64 to (batch, time, width) float32, all of whose mean is the loss.

    Its ``elements`` parameters lie in ``blocks``, in vectors of equal length. The loss is the mean of half the squared
    distance to targets that are drawn for each rank; the gradient is the distance itself (that of the sum, which would
    otherwise vanish in a large model), so it differs by rank, element and step, and falls as ranks agree.
    """

    before_blocks: ClassVar[tuple[str, ...]] = ()
    after_blocks: ClassVar[tuple[str, ...]] = ()
    declared: ClassVar[bool] = True
    """That its size stands for another one: gradients are exchanged in as many buckets as at full scale."""

    def __init__(self, elements: int, layers: int, width: int, pace: Pace, rank: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed * 1_000_003 + rank)
        self.width = width
        self.blocks = nn.ModuleList(
            _SleepingLayer(size, layers, layer, pace, generator) for layer, size in enumerate(_parts(elements, layers))
        )

    def enter(self, tokens: Tensor) -> Tensor:
        """Return what goes into the first layer: as many activations as of a real model."""
        return torch.zeros(*tokens.shape, self.width)

    def leave(self, x: Tensor) -> Tensor:
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


class _SleepingLayer(nn.Module):
    def __init__(self, elements: int, layers: int, layer: int, pace: Pace, generator: torch.Generator) -> None:
        super().__init__()
        sizes = [size for size in _parts(elements, VECTORS_PER_BLOCK) if size]
        self.weights = nn.ParameterList(nn.Parameter(0.02 * torch.randn(size)) for size in sizes)
        # Not buffers: DDP would broadcast them, and fully_shard would not shard them with the parameters.
        self._targets = [0.1 * torch.randn(size, generator=generator) for size in sizes]
        self._part, self._layer, self._pace = 0.5 / (layers * elements), layer, pace

    def forward(self, x: Tensor) -> Tensor:
        asleep: Tensor = _Sleep.apply(x, self._pace, self._layer, self._part, self._targets, *self.weights)  # type: ignore[no-untyped-call]
        return asleep


def _parts(elements: int, count: int) -> list[int]:
    """Split ``elements`` into ``count`` parts that differ by one at most, larger ones first.

    >>> _parts(10, 4)
    [3, 3, 2, 2]
    """
    share, remainder = divmod(elements, count)
    return [share + (index < remainder) for index in range(count)]


class _Sleep(torch.autograd.Function):
    """A layer that sleeps in both passes; it adds its part of the loss to what came in."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, pace: Pace, layer: int, part: float, targets: list[Tensor], *weights: Tensor
    ) -> Any:
        ctx.save_for_backward(*weights)
        ctx.pace, ctx.layer, ctx.targets = pace, layer, targets
        pairs = zip(weights, targets, strict=True)
        distance = sum(float((weight - target).square_().sum()) for weight, target in pairs)
        out = x + part * distance
        pace.forward()
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        share = gradient.sum()  # 1 of a mean over everything; less where the loss is divided, as among micro-batches
        weights = zip(ctx.saved_tensors, ctx.targets, strict=True)
        own = [(weight - target).mul_(share) for weight, target in weights]
        ctx.pace.backward(ctx.layer)
        return (gradient, None, None, None, None, *own)


class _Mark(torch.autograd.Function):
    """The identity behind a real layer: its forward pass has run, its backward pass comes next."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pace: Pace, layer: int) -> Any:
        ctx.pace, ctx.layer = pace, layer
        pace.forward()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.pace.backward(ctx.layer, real=True)
        return (*gradients, None, None)


class _Marker:
    """Forward hook of a real layer."""

    def __init__(self, pace: Pace, layer: int) -> None:
        self._pace, self._layer = pace, layer

    def __call__(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        marked: Tensor = _Mark.apply(output, self._pace, self._layer)  # type: ignore[no-untyped-call]
        return marked
