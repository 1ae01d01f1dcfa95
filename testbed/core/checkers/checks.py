"""Was the training right? Checkers, in the manner of Jepsen, on what the ranks recorded of themselves.

What is right for the job's strategy is asked of its twin. Each operation is tagged with attempt (from 1), process group
and sequence. Each checker has a verdict true, false or unknown (None), never true on missing data:

- **sums**: what came out of each operation is what it must be (``sums.py``).
- **hangs**: no operation took longer than its bound, which the agents chose (half of the process group's timeout).
- **parameters**: tensors are equal on the ranks that the twin names, and each step and each attempt begins with what
  the one before left (``equality.py``).
- **updates**: the inner optimizer's updates and the exchanges in the outer parameters are as many as they must be, and
  steps of outer optimizers are right (``update_counts.py``).
- **exchanges**: each fragment is exchanged once in its round, with the twin's bytes (``exchanges.py``).
- **served**: what a server of outer parameters took and gave: each push once, none staler than allowed, and what is
  pulled is what was served (``server_exchanges.py``).

The last two are missing where there is nothing for them to judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.core.checkers.equality import PARAMETERS, equality
from testbed.core.checkers.exchanges import exchanges
from testbed.core.checkers.finding import Checker
from testbed.core.checkers.hangs import hangs
from testbed.core.checkers.server_exchanges import served
from testbed.core.checkers.sums import sums
from testbed.core.checkers.update_counts import counts
from testbed.core.records.check_record import CheckLog, Grouped
from testbed.core.records.rank_log import RankLog
from testbed.core.training.layout import Layout
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Twin

__all__ = ["Checked", "check"]


_METRICS = {"sums": "wrong_sums", "hangs": "hangs", "parameters": "stale_parameters", "updates": "lost_updates"}
"""Metrics of the checkers that judge every job; the others fail a run by themselves."""


@dataclass(frozen=True)
class Checked:
    """``checkers``: those of the module. Empty where no rank recorded anything."""

    checkers: tuple[Checker, ...] = ()

    @property
    def holds(self) -> bool | None:
        verdicts = [checker.holds for checker in self.checkers]
        return False if False in verdicts else None if None in verdicts or not verdicts else True

    def metrics(self) -> dict[str, float | None]:
        """Return the metrics by the names of ``core.experiment.expect.METRICS``."""
        metrics = {checker.id: checker.metric for checker in self.checkers}
        return {metric: metrics.get(checker) for checker, metric in _METRICS.items()}


def check(logs: Sequence[CheckLog], twin: Twin | None = None, ranks: Sequence[RankLog] = ()) -> Checked:
    """Run the checkers on the records of all ranks of a job, over all its attempts.

    ``twin``: that of the job's strategy; without it, all ranks step together and have equal parameters, and what is
    exchanged is not compared. ``ranks``: the step records, which say how each attempt ended.
    """
    if not any(log.began or log.steps for log in logs):
        return Checked()
    records = Grouped.of(logs, twin.longest_gap if twin else 1)
    judged = [sums(records, twin), hangs(records)]
    usual = twin or _Together({}, Layout(("",) * records.world_size, ()))
    judged += [equality(records, usual), counts(records, usual)]
    if twin and any(tag.group for tag in records.operations):  # which former versions lack
        judged.append(exchanges(records, twin))
    if twin and not twin.together:
        judged.append(served(records, ranks, twin))
    return Checked(tuple(judged))


class _Together(Twin):
    """What every strategy did before there was another one: all ranks step together."""

    name = "unknown"
    summary = "all ranks have equal parameters after each step"

    def operations(self, step: int) -> tuple[Operation, ...]:
        return ()

    def equal(self, step: int) -> tuple[Equal, ...]:
        return (Equal(PARAMETERS, tuple(range(self.layout.world_size))),)
