"""pipeline: decoder blocks split into stages, one a site; activations and their gradients cross the fiber.

Rank i of each site forms a pipeline with the ranks i of the others; it trains on the windows of all of them together,
in micro-batches. Inside a site the ranks of a stage are data-parallel.

Order of the micro-batches: "gpipe" runs all forward, then all backward (Huang et al. 2019, arXiv:1811.06965); "1f1b"
runs one backward for each forward once ``in_flight`` are on their way (Narayanan et al. 2021, arXiv:2104.04473). With
``in_flight`` 0 each stage computes it (:func:`needed_in_flight`) from what it measures: the time that activations take
to the last stage and back, by probes of 4 bytes and of 64 KiB when the groups are made, and its compute per
micro-batch, the least of the steps so far; the first step has all in flight. The
order of sums does not depend on it, so runs stay equal bit for bit.

Own isend and irecv, not torch.distributed.pipelining, though that runs on gloo: its 1F1B keeps as many in flight as
there are stages left, and receives when it needs the activations, which costs gloo another delay for each message (a
sender waits for the receiver's buffer). Here all receives of a step are posted when it begins.

The input embedding and the output layer are at different sites, so they are not tied: both begin with the same values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from testbed_agents.exchange.gradients import reduce_gradients
from testbed_agents.strategies.strategy import Context, Strategy, filled, flatten, unflatten

__all__ = ["Pipeline", "needed_in_flight"]

PROBES = 3
"""How often each size is sent there and back; the first ones also pay for TCP's slow start."""
PROBE_ELEMENTS = 16_384


def needed_in_flight(round_trip_s: float, micro_batch_s: float, behind: int = 1) -> int:
    """Return how many micro-batches keep a stage busy: one of its own, one in each stage behind it, and on the fiber.

    On the fiber are 2 (d + A/B) / t_mb: ``round_trip_s`` of A bytes of activations over a delay d at a rate B; t_mb is
    ``micro_batch_s``, compute of one, forward and backward. ``behind``: stages after this one.

    >>> needed_in_flight(2 * (5e-3 + 50e3 / 20e6), 12.5e-3), needed_in_flight(0.0, 12.5e-3)
    (4, 2)
    """
    return 1 + behind + math.ceil(round_trip_s / micro_batch_s)


class Pipeline(Strategy):
    """``schedule``: "1f1b" or "gpipe". ``in_flight``: micro-batches of the first stage; 0: computed."""

    def __init__(self, stages: int = 2, schedule: str = "1f1b", micro_batches: int = 4, in_flight: int = 0) -> None:
        self._stages, self._schedule, self._count, self._wanted = stages, schedule, micro_batches, in_flight

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        groups = context.groups
        if self._stages != len(groups.site_names):
            raise ValueError(f"expected {self._stages} stages at as many sites, got {len(groups.site_names)} sites")
        if len({len(ranks) for ranks in groups.members.values()}) > 1:
            raise ValueError("expected equally many ranks at each site")
        self.context, self.module = context, model
        whole: Any = model
        self._model, layers = whole, len(whole.blocks)
        if layers % self._stages:
            raise ValueError(f"expected layers that {self._stages} stages divide, got {layers}")
        replicas = groups.replicas()
        self._group, self._mates = replicas.across, replicas.across_ranks
        self._inside, self._ranks_inside = replicas.inside, len(replicas.inside_ranks)
        self._stage = self._mates.index(groups.rank)
        self._first, self._last = self._stage == 0, self._stage == self._stages - 1
        self._shapes = [(name, parameter.shape) for name, parameter in model.named_parameters()]
        own = range(layers // self._stages * self._stage, layers // self._stages * (self._stage + 1))
        self._keep(own)
        self._micro_batch_s, self._elements = 0.0, 0
        self._probed_s = (0.0, 0.0)
        if self._schedule == "1f1b" and not self._wanted:
            self._probed_s = self._probe(1), self._probe(PROBE_ELEMENTS)
        if context.compute is not None:
            context.compute.calls(len(own) * self._count)
        return list(model.parameters())

    def _keep(self, own: range) -> None:
        """Remove what belongs to other stages from the model. Blocks keep their index, and so their names."""
        model = self._model
        for index in range(len(model.blocks)):
            if index not in own:
                model.blocks[index] = nn.Identity()
        before, after = (getattr(model, part, ()) for part in ("before_blocks", "after_blocks"))
        kept = (before if self._first else ()) + (after if self._last else ())
        for name in {*before, *after} - set(kept):
            delattr(model, name)

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Return the mean loss of this pipeline's micro-batches at the last stage, None at the others."""
        step = _Step(self, inputs, targets)
        began, waited = time.monotonic(), self.context.waited_s
        self._elements = math.prod(self.activations(inputs.shape))
        in_flight = self.in_flight
        forward = backward = 0
        while backward < self._count:
            if forward < self._count and forward - backward < in_flight:
                step.forward(forward)
                forward += 1
                if forward == self._count:  # before the last gradient leaves, so that earlier stages find the loss
                    self.context.before_backward(step.mean_loss() if self._last else None)
            else:
                step.backward(backward)
                backward += 1
        took_s = (time.monotonic() - began - (self.context.waited_s - waited)) / self._count
        self._micro_batch_s = min(took_s, self._micro_batch_s or took_s)
        with self.context.waiting():
            step.finish()
        self.context.gradients_ready()
        reduce_gradients(list(self._model.parameters()), self._mean_inside)
        return step.mean_loss() if self._last else None

    @property
    def in_flight(self) -> int:
        """Micro-batches that this stage runs forward before the first one comes back."""
        if self._schedule == "gpipe":
            return self._count
        if self._last:
            return 1
        if self._wanted:
            behind = (self._stages - 1 - self._stage) / (self._stages - 1)
            return min(self._count, 1 + math.ceil((self._wanted - 1) * behind))
        if not self._micro_batch_s:
            return self._count
        behind = self._stages - 1 - self._stage
        return min(self._count, needed_in_flight(self._round_trip_s(self._elements), self._micro_batch_s, behind))

    def _probe(self, elements: int) -> float:
        """Return how long so many float32 take to the last stage and back, at best. A collective call of a pipeline."""
        times = []
        for _ in range(PROBES):
            there, back = torch.zeros(elements), torch.empty(elements)
            arriving = None if self._first else self.receive(there, -1, 0)
            returning = None if self._last else self.receive(back, +1, 0)
            if arriving is not None:
                arriving.wait()
            began, sent = time.monotonic(), []
            if returning is not None:
                sent.append(self.send(there, +1, 0))
                returning.wait()
                times.append(time.monotonic() - began)
            if not self._first:
                sent.append(self.send(there, -1, 0))
            for work in sent:
                work.wait()
        return min(times, default=0.0)

    def _round_trip_s(self, elements: int) -> float:
        """Return how long activations take to the last stage and back, from probes of two other sizes."""
        little_s, much_s = self._probed_s
        return little_s + max(0.0, much_s - little_s) * elements / PROBE_ELEMENTS

    def activations(self, windows: torch.Size) -> tuple[int, int, int]:
        """Return the shape of a micro-batch's activations; ``windows``: (batch, time) of one rank."""
        size, remainder = divmod(windows[0] * self._stages, self._count)
        if remainder:
            raise ValueError(
                f"expected micro-batches that divide the {windows[0] * self._stages} windows of a pipeline, "
                f"got {self._count}"
            )
        return size, windows[1], self._model.width

    def send(self, tensor: Tensor, to: int, tag: int) -> Any:
        """Begin to send to the stage ``to`` places further."""
        return dist.isend(tensor, self._mates[self._stage + to], group=self._group, tag=tag)

    def receive(self, tensor: Tensor, of: int, tag: int) -> Any:
        """Begin to receive from the stage ``of`` places further."""
        return dist.irecv(tensor, self._mates[self._stage + of], group=self._group, tag=tag)

    def _mean_inside(self, flat: Tensor) -> Tensor:
        if self._ranks_inside > 1:
            dist.all_reduce(flat.div_(self._ranks_inside), group=self._inside)
        return flat

    def fingerprints(self) -> dict[str, Iterable[Tensor]]:
        return {"stage": [parameter.detach() for parameter in self._model.parameters()]}

    def outer_parameters(self) -> list[Tensor]:
        """Return the parameters of all stages in the order of the model's, the output layer last if it is untied.

        A collective call of each pipeline: every stage sends all it has to the others.
        """
        own = dict(self._model.named_parameters())
        names: list[Any] = [None] * self._stages
        dist.all_gather_object(names, list(own), group=self._group)
        shapes = dict(self._shapes)
        gathered: dict[str, Tensor] = {}
        for stage, of_stage in enumerate(names):
            tensors = {name: torch.empty(shapes[name]) for name in of_stage}
            flat = flatten(own.values() if stage == self._stage else tensors.values())
            dist.broadcast(flat, self._mates[stage], group=self._group)
            unflatten(flat, tensors.values())
            for name, tensor in tensors.items():
                gathered[name if name not in gathered else f"output.{name}"] = tensor
        return [gathered[name] for name in (*shapes, *(name for name in gathered if name not in shapes))]

    def outer_model(self, model: nn.Module) -> nn.Module | None:
        *tied, output = self.outer_parameters()
        if filled(model, tied) is None:
            return None
        whole: Any = model
        whole.leave = lambda x: functional.linear(whole.last_norm(x), output)
        return model


class _Step:
    """One step of one stage: its micro-batches, what is on its way, and the losses."""

    def __init__(self, pipeline: Pipeline, inputs: Tensor, targets: Tensor) -> None:
        self._pipeline = pipeline
        self._context, self._model = pipeline.context, pipeline._model
        self._count, self._first, self._last = pipeline._count, pipeline._first, pipeline._last
        self._shape = pipeline.activations(inputs.shape)
        self._sent: list[tuple[Any, Tensor]] = []
        self._received: dict[int, Tensor] = {}
        self._outputs: dict[int, Tensor] = {}
        self._losses: list[Tensor] = []
        self._tokens = self._exchange_tokens(inputs, targets)
        tags = range(self._count)
        self._activations = [] if self._first else [self._expect(-1, self._tag(micro)) for micro in tags]
        self._gradients = [] if self._last else [self._expect(+1, self._tag(micro)) for micro in tags]

    def _tag(self, micro: int) -> int:
        return 1 + self._pipeline._stages + micro

    def _expect(self, of: int, tag: int) -> tuple[Any, Tensor]:
        buffer = torch.empty(self._shape)
        return self._pipeline.receive(buffer, of, tag), buffer

    def _exchange_tokens(self, inputs: Tensor, targets: Tensor) -> list[tuple[Any, Tensor]]:
        """Send this rank's inputs to the first stage and its targets to the last one.

        Returns, at these two, the windows of each stage: what to wait for (None for the own), and (batch, time).
        """
        pipeline, own_stage, windows = self._pipeline, self._pipeline._stage, []
        for end, own in ((0, inputs), (pipeline._stages - 1, targets)):
            if own_stage != end:
                tokens = own.contiguous()
                self._sent.append((pipeline.send(tokens, end - own_stage, 1 + own_stage), tokens))
                continue
            for stage in range(pipeline._stages):
                tokens = own if stage == own_stage else torch.empty_like(own)
                work = None if stage == own_stage else pipeline.receive(tokens, stage - own_stage, 1 + stage)
                windows.append((work, tokens))
        return windows

    def _windows(self, micro: int) -> Tensor:
        """Return the tokens of a micro-batch: inputs at the first stage, targets at the last one."""
        size, batch = self._shape[0], self._tokens[0][1].shape[0]
        low, high = micro * size, (micro + 1) * size
        parts = []
        for stage in range(low // batch, -(-high // batch)):
            work, tokens = self._tokens[stage]
            if work is not None:
                self._wait(work)
                self._tokens[stage] = (None, tokens)
            parts.append(tokens[max(0, low - stage * batch) : high - stage * batch])
        return torch.cat(parts)

    def _wait(self, work: Any) -> None:
        with self._context.waiting():
            work.wait()

    def forward(self, micro: int) -> None:
        if self._first:
            x = self._model.enter(self._windows(micro))
        else:
            work, x = self._activations[micro]
            self._wait(work)
            self._received[micro] = x.requires_grad_()
        for block in self._model.blocks:
            x = block(x)
        if self._last:
            loss = self._context.loss(self._model.leave(x), self._windows(micro))
            self._losses.append(loss.detach())
            x = loss / self._count
        else:
            self._send(x.detach(), +1, micro)
        self._outputs[micro] = x

    def backward(self, micro: int) -> None:
        output = self._outputs.pop(micro)
        if self._last:
            output.backward()  # type: ignore[no-untyped-call]
        else:
            work, gradient = self._gradients[micro]
            self._wait(work)
            output.backward(gradient)  # type: ignore[no-untyped-call]
        if not self._first:
            sent = self._received.pop(micro).grad
            assert sent is not None  # of a tensor that took part in the output
            self._send(sent, -1, micro)

    def _send(self, tensor: Tensor, to: int, micro: int) -> None:
        tensor = tensor.contiguous()
        self._sent.append((self._pipeline.send(tensor, to, self._tag(micro)), tensor))

    def finish(self) -> None:
        """Wait until all that was sent has left."""
        for work, _ in self._sent:
            work.wait()

    def mean_loss(self) -> Tensor:
        """Return the mean loss over the micro-batches so far: of the last stage."""
        return torch.stack(self._losses).mean()
