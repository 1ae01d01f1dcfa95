"""decoupled: sites never wait; a server merges each fragment once K of M sites have delivered it, after a grace.

The model is cut into P fragments; each site sends what a fragment has moved (``movement``) every H steps, coded in
32, 16, 8 or 4 bits, and trains on. The server at the site ``home`` waits until K sites have delivered a fragment,
then a grace time for the others; the mean of what has come, weighted by the tokens behind it, goes coded to all
sites, which apply it by Nesterov to their own copy of the outer parameters. All decode the same bytes, so all copies
of a version are equal.

What comes later counts in the next round of the fragment, with its own weight, and never twice. While ``HELD`` pushes
of a fragment are not merged, a site sends no more of it; its movement grows and goes with the next one. So a cut
fiber costs no memory, and no step: only a checkpoint and the end of the job are meetings of all sites.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from testbed_agents.checksums import crc32
from testbed_agents.exchange.codec import Codec, of_bits
from testbed_agents.exchange.fragments import Schedule, cut
from testbed_agents.exchange.outer_optimizers import Nesterov
from testbed_agents.exchange.slices import Slice
from testbed_agents.parameter_server.messages import Header
from testbed_agents.parameter_server.movement import Movement
from testbed_agents.parameter_server.quorum_server import QuorumServer
from testbed_agents.parameter_server.server import ParameterServer
from testbed_agents.parameter_server.training import ParameterServerTraining

__all__ = ["Decoupled"]

HELD = 4


class Decoupled(ParameterServerTraining):
    """Options as of the twin.

    ``every``: H. ``fragments``: P. ``quorum``: K, 0: more than half of the sites. ``grace``: s. ``bits``: 32, 16, 8, 4.
    ``outer_rate``, ``outer_momentum``: of Nesterov. ``home``: the site of the server, empty: the first.
    """

    def __init__(
        self,
        every: int = 50,
        fragments: int = 1,
        quorum: int = 0,
        grace: float = 0.05,
        bits: int = 32,
        outer_rate: float = 0.7,
        outer_momentum: float = 0.5,
        home: str = "",
    ) -> None:
        super().__init__(home)
        self._schedule, self._count = Schedule(every, fragments, 0), fragments
        self._quorum, self._grace_s = quorum, grace
        self._codec: Codec = of_bits(bits)
        self._rate, self._momentum = outer_rate, outer_momentum
        self._merged: list[tuple[Header, Tensor]] = []
        """Received and not applied yet, in order."""
        self._applied = 0
        self._ended = False
        self._settled: int | None = None
        """The number of merged updates before the checkpoint at which all sites have met."""

    def build(self, parameters: list[nn.Parameter]) -> None:
        self._quorum = self._quorum or len(self.sites) // 2 + 1
        if self._quorum > len(self.sites):
            raise ValueError(f"expected a quorum of at most {len(self.sites)}, the sites, got {self._quorum}")
        self._fragments = [
            _Fragment(index, Slice(part, self.replicas), self._rate, self._momentum)
            for index, part in enumerate(cut(self.model.named_parameters(), self._count))
        ]
        self._saved = {"numbers": torch.zeros(1 + 5 * self._count, dtype=torch.int64)}
        for index, fragment in enumerate(self._fragments):
            self._saved |= {f"{index}.{name}": tensor for name, tensor in fragment.saved.items()}

    def most_bytes(self) -> int:
        return max(self._codec.bytes(fragment.slice.size) for fragment in self._fragments)

    def make_server(self, lead: bool) -> ParameterServer:
        sizes = [fragment.slice.size for fragment in self._fragments]
        server = QuorumServer(self.sites, lead, self.replicas.hooks, sizes, self._codec, self._quorum, self._grace_s)
        self._saved |= server.saved
        return server

    # -- a step ------------------------------------------------------------------------------------------------------

    def after_step(self, step: int) -> None:
        for index in self._schedule.due(step) if step < self.context.steps else ():
            movement = self._fragments[index].movement
            if movement.taken - movement.included < HELD:
                self._push(index, step)
        self.read()
        self._apply_agreed()

    def finish(self, step: int) -> None:
        """Send what is left of every fragment; wait until all of all sites is merged."""
        for index, fragment in enumerate(self._fragments):
            if step > fragment.since:
                self._push(index, step)
        self.send({"kind": "end"})
        self.wait_for(lambda: self._ended, "the end of the other sites")
        self._apply_agreed()
        self.close()

    def _push(self, index: int, step: int) -> None:
        fragment = self._fragments[index]
        delta = fragment.movement.take(fragment.slice.of_parameters())
        tokens, fragment.tokens = self.tokens - fragment.tokens, self.tokens
        header = {
            "kind": "push",
            "fragment": index,
            "push": fragment.movement.taken,
            "base": fragment.version,
            "first": fragment.since + 1,
            "step": step,
            "tokens": tokens,
        }
        fragment.since = step
        self.push(header, self._codec.encode(delta) if fragment.slice.holds else delta)

    def take(self, header: Header, payload: Tensor) -> None:
        match header["kind"]:
            case "merged":
                self._merged.append((header, payload))
            case "settled":
                self._settled = self._applied + len(self._merged)
            case "final":
                self._ended = True

    def _apply_agreed(self) -> None:
        """Apply the merged updates that all ranks of the site have."""
        arrived = self._applied + len(self._merged)
        # Others may have gone on from a checkpoint already: what they sent since is not in it.
        (agreed,) = self.agree(arrived if self._settled is None else self._settled)
        while self._applied < agreed:
            header, payload = self._merged.pop(0) if self._merged else ({}, torch.empty(0))
            index, version, included = self._numbers_of(header)
            self._applied += 1
            fragment = self._fragments[index]
            fragment.apply(self._codec, payload, included, version)
            self.context.checks.exchange(
                what="pulled",
                site=self.site,
                fragment=index,
                version=version,
                push=included,
                slice=self.replicas.slice,
                crc=crc32([fragment.movement.outer]),
                bytes=payload.numel(),
            )

    def _numbers_of(self, header: Header) -> tuple[int, int, int]:
        """Return fragment, version and the own push of a merged update, on ranks without a slice as well."""
        numbers = torch.zeros(3, dtype=torch.int64)
        if header:
            numbers.copy_(torch.tensor((header["fragment"], header["version"], header["included"][self.site])))
        if self._site_size > self.replicas.slices:
            dist.broadcast(numbers, self.replicas.inside_ranks[0], group=self.replicas.inside)
        fragment, version, included = numbers.tolist()
        return fragment, version, included

    # -- state -------------------------------------------------------------------------------------------------------

    def settle(self, step: int) -> None:
        if self.replicas.slice == 0:
            self.send({"kind": "settled", "step": step})
        self.wait_for(lambda: self._settled is not None, f"the other sites at step {step}")
        self._apply_agreed()
        self._settled = None
        numbers = [self.tokens]
        for fragment in self._fragments:
            numbers += fragment.save()
        self._saved["numbers"].copy_(torch.tensor(numbers))

    def state(self) -> dict[str, Tensor]:
        return self._saved

    def loaded(self) -> None:
        self.tokens, *numbers = self._saved["numbers"].tolist()
        for index, fragment in enumerate(self._fragments):
            fragment.load(*numbers[5 * index : 5 * index + 5])
        if isinstance(self.server, QuorumServer):
            self.server.loaded()

    def fingerprints(self) -> dict[str, Iterable[Tensor]]:
        outer = [
            tensor for fragment in self._fragments for tensor in (fragment.movement.outer, fragment.optimizer.momentum)
        ]
        return {**super().fingerprints(), "outer": outer}

    def outer_slices(self) -> Iterable[tuple[Slice, Tensor]]:
        return [(fragment.slice, fragment.movement.outer) for fragment in self._fragments]

    @property
    def outer_version(self) -> int:
        return self._applied


class _Fragment:
    """This rank's slice of one fragment: outer parameters and their momentum, and what has moved."""

    def __init__(self, index: int, slice_: Slice, rate: float, momentum: float) -> None:
        self.slice = slice_
        self.movement = Movement(slice_.of_parameters())
        self.optimizer = Nesterov(slice_.of_parameters(), rate, momentum, slice_.replicas.hooks, f"outer.{index}")
        self.version = self.since = self.tokens = 0
        """Of the outer parameters; the step of the last push; tokens of the site until then."""
        own = self.movement.outer
        self.saved = {name: own.clone() for name in ("outer", "last", "momentum")}

    def apply(self, codec: Codec, payload: Tensor, included: int, version: int) -> None:
        """Apply a merged update that contains this site's pushes up to ``included``; collective in the site."""
        if self.slice.holds:
            self.optimizer.step(codec.decode(payload, self.slice.size))
        self.version = version
        here = self.slice.of_parameters()
        self.slice.spread(self.movement.rebase(self.optimizer.values, included, here))

    def save(self) -> tuple[int, ...]:
        self.saved["outer"].copy_(self.movement.outer)
        self.saved["last"].copy_(self.movement.last)
        self.saved["momentum"].copy_(self.optimizer.momentum)
        return self.version, self.movement.included, self.movement.taken, self.since, self.tokens

    def load(self, version: int, included: int, taken: int, since: int, tokens: int) -> None:
        self.version, self.since, self.tokens = version, since, tokens
        self.movement.restart(self.saved["outer"], self.saved["last"], included, taken)
        self.optimizer.values.copy_(self.saved["outer"])
        self.optimizer.momentum.copy_(self.saved["momentum"])
