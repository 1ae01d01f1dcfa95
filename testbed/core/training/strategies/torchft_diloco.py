"""Twin of ``torchft-diloco``: torchft's own DiLoCo, as its users run it, beside the testbed's."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.core.training.periodic_exchange import PeriodicExchange
from testbed.core.training.site_exchange import slice_groups, unknown_site
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import EVERY, OUTER_MOMENTUM, OUTER_RATE, choice, text
from testbed.core.training.twin import Equal, Mistake, Option
from testbed.core.units import parse_duration_s

__all__ = ["TorchftDiloco"]


class TorchftDiloco(PeriodicExchange):
    """Every local rank of a site is a member of its own group across sites, and sends the whole model.

    torchft makes these groups itself, anew whenever its membership changes: the watched process group does not see
    them, so their sums are not checked and not timed one by one. Bytes on the fiber, equality and the version are.
    """

    name = "torchft-diloco"
    summary = "torchft's own DiLoCo for comparison: each local rank sends the whole model (needs the extra 'torchft')"
    source = "torchft 0.2, torchft/local_sgd.py"
    sliced = False
    options = (
        EVERY,
        OUTER_RATE,
        OUTER_MOMENTUM,
        Option(
            "lighthouse",
            "",
            text("the name of a site, or the address of a lighthouse", "write a site"),
            "site of the lighthouse; the first one unless it is named; or http://HOST:PORT",
        ),
        Option("exchange.timeout", 8.0, parse_duration_s, "of torchft's collectives"),
        Option("quorum.timeout", 60.0, parse_duration_s, "of torchft's quorum"),
        Option("start", "equal", choice("equal", "copied"), "copied: torchft's init_sync, which its users have on"),
    )
    unpredicted = "torchft makes its own process groups and waits for its quorum, which cannot be timed before the job"
    timed = False

    def mistakes(self) -> Sequence[Mistake]:
        mistakes = []
        if len({len(ranks) for ranks in self.layout.members.values()}) > 1:
            message = "torchft needs replica groups of the same size, and sites have different numbers of ranks"
            mistakes.append(Mistake("strategy", message, "use as many ranks at each site, or strategy: diloco"))
        place = str(self.values["lighthouse"])
        if place and "://" not in place:
            mistakes += unknown_site(self.layout, "lighthouse", "site of the lighthouse", place)
        return mistakes

    def operations(self, step: int) -> Sequence[Operation]:
        layout = self.layout
        if not 1 <= step <= layout.steps:
            return ()
        across = slice_groups(layout) if self.exchanges(step) and len(layout.site_names) > 1 else []
        return [
            *self.mean_gradients(step),
            *(
                Operation("all_reduce", ranks, layout.payload_bytes, self.payload, f"torchft:{index}", watched=False)
                for index, (_, ranks) in enumerate(across)
            ),
        ]

    def equal(self, step: int) -> Sequence[Equal]:
        agreeing = [self.layout.everyone] if self.agrees(step) else self.replicas
        return [Equal("parameters", ranks) for ranks in agreeing]
