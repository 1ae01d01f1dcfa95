"""Twin of ``torchft-diloco``: torchft's own DiLoCo, as its users run it, beside the testbed's."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.core.training.site_exchange import mean_in_sites
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import EVERY, OUTER_MOMENTUM, OUTER_RATE, choice
from testbed.core.training.twin import Equal, Mistake, Option, Twin
from testbed.core.units import Unreadable, parse_duration_s
from testbed.core.user_text import expected, unknown

__all__ = ["TorchftDiloco"]


def _place(value: object) -> str:
    if not isinstance(value, str):
        raise Unreadable(*expected("the name of a site, or the address of a lighthouse", value, "write a site"))
    return value


class TorchftDiloco(Twin):
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
            "lighthouse", "", _place, "site of the lighthouse; the first one unless it is named; or http://HOST:PORT"
        ),
        Option("exchange.timeout", 8.0, parse_duration_s, "of torchft's collectives"),
        Option("quorum.timeout", 60.0, parse_duration_s, "of torchft's quorum"),
        Option("start", "equal", choice("equal", "copied"), "copied: torchft's init_sync, which its users have on"),
    )
    unpredicted = "torchft makes its own process groups and waits for its quorum, which cannot be timed before the job"
    timed = False

    def mistakes(self) -> Sequence[Mistake]:
        found = []
        sizes = {len(ranks) for ranks in self.layout.members.values()}
        if len(sizes) > 1:
            message = "torchft needs replica groups of the same size, and sites have different numbers of ranks"
            found.append(Mistake("strategy", message, "use as many ranks at each site, or strategy: diloco"))
        place = str(self.values["lighthouse"])
        if place and "://" not in place and place not in self.layout.site_names:
            message, fix = unknown("site of the lighthouse", place, self.layout.site_names)
            found.append(Mistake("lighthouse", message, fix or f"write one of {', '.join(self.layout.site_names)}"))
        return found

    def operations(self, step: int) -> Sequence[Operation]:
        layout = self.layout
        if not 1 <= step <= layout.steps:
            return ()
        found = mean_in_sites(layout, layout.payload_bytes)
        if self._syncs(step) and len(layout.site_names) > 1:
            members = layout.members.values()
            for index in range(layout.slices):
                ranks = tuple(each[index] for each in members)
                found.append(
                    Operation(
                        "all_reduce", ranks, layout.payload_bytes, "pseudo-gradients", f"torchft:{index}", watched=False
                    )
                )
        return found

    def busy_steps(self) -> Sequence[int]:
        return (self._every,)

    def equal(self, step: int) -> Sequence[Equal]:
        if step == 0 or self._syncs(step):
            return (Equal("parameters", tuple(range(self.layout.world_size))),)
        return tuple(Equal("parameters", ranks) for ranks in self.layout.members.values())

    def committed(self, step: int) -> float:
        return float(step if step >= self.layout.steps else step - step % self._every)

    def outer_updates(self, step: int) -> int:
        return -(-step // self._every) if step >= self.layout.steps else step // self._every

    @property
    def longest_gap(self) -> int:
        return self._every

    @property
    def _every(self) -> int:
        return int(self.values["every"])

    def _syncs(self, step: int) -> bool:
        return 1 <= step <= self.layout.steps and (step % self._every == 0 or step == self.layout.steps)
