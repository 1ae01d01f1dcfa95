"""Is a weighted mean that of its members' values, with the shares that the strategy's twin says?

Each member records, of the same elements, what it wanted to add before it was multiplied, its share, and the mean
(``testbed_agents.recording.evidence``). A share that is wrong, on one rank or on all alike, is not the twin's; a mean
that was taken with other shares than the recorded ones is not the sum of share times value.

Each product and each addition rounds to float32, and so does the share itself: n products and n - 1 additions are off
by at most gamma(n + 1) of the sum of the absolute products (Higham, as in ``sums.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from testbed.core.checkers.codecs import Coded
from testbed.core.checkers.finding import CheckerFinding, named
from testbed.core.records.check_record import Grouped
from testbed.core.records.operation_record import Weighed
from testbed.core.training.twin import Twin

__all__ = ["weighed_means"]

_UNIT = 2.0**-24
_TINY = 2.0**-126

_Key = tuple[int, int, str, tuple[int, ...]]


def weighed_means(records: Grouped, twin: Twin) -> Coded:
    """Judge all weighted means of a job."""
    means: dict[_Key, dict[int, Weighed]] = {}
    for rank, listed in records.weighed.items():
        for event in listed:
            means.setdefault((event.attempt, event.taken, event.name, event.ranks), {})[rank] = event
    findings: list[CheckerFinding] = []
    undecided = ""
    for (attempt, taken, name, ranks), members in sorted(means.items()):
        shares = twin.shares(taken, name)
        for rank, own_mean in sorted(members.items()):
            texts = [*_share(own_mean, shares.get(rank)), *_mean(own_mean, members)]
            findings += [
                CheckerFinding(attempt, own_mean.step, None, (rank,), f"{name}: rank {rank}: {problem}", name)
                for problem in texts
            ]
        missing = [rank for rank in ranks if rank not in members]
        late = taken > records.last_step(attempt) - records.longest_gap
        if missing and not late and not undecided:
            undecided = f"{named(missing)} did not record the mean of {name} of step {taken}"
    looked_at = f"{len(means)} weighted means recomputed" if means else ""
    return Coded(tuple(findings), looked_at, undecided)


def _share(own_mean: Weighed, expected: float | None) -> Iterable[str]:
    if expected is None:
        yield f"added its values with a share of {own_mean.share:.6g}, and this mean has no shares"
    elif not math.isclose(own_mean.share, expected, rel_tol=1e-9):
        yield f"added its values with a share of {own_mean.share:.6g}, expected {expected:.6g}"


def _mean(own_mean: Weighed, members: Mapping[int, Weighed]) -> Iterable[str]:
    if len(members) < len(own_mean.ranks) or any(other.at != own_mean.at for other in members.values()):
        return
    gamma = (len(members) + 1) * _UNIT / (1 - (len(members) + 1) * _UNIT)
    for index, got in enumerate(own_mean.mean):
        products = [member.share * member.own[index] for member in members.values()]
        if not all(map(math.isfinite, products)):
            continue  # a value that is not finite is found where it arose
        bound = gamma * math.fsum(map(abs, products)) + 2 * len(products) * _TINY
        if not abs(got - math.fsum(products)) <= bound:
            yield f"element {own_mean.at[index]} of the mean is {got:.9g}, expected {math.fsum(products):.9g}"
            return
