"""Does a server of outer parameters take each push once, none too stale, and give what it has?

Sites that do not wait for each other push what they learned to a server and pull its outer parameters. Of what the
ranks recorded of that (``exchange`` lines of the step records), in each attempt and fragment:

- the server's versions are one chain: each merge is one version after the one before, on every rank that serves a slice
  the same;
- a push is taken up once, in the order of its site, and by the end of a job that ended in order; a latecomer counts in
  a later version, never twice;
- a push is based on the version that its site pulled last;
- no push is staler than the strategy allows: versions between the one it was based on and the one that took it up;
- what is pulled of a version is what was served, by CRC-32, and the same at every site.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from testbed.core.checkers.finding import Checker, Finding, conclude, named
from testbed.core.records.check_record import Grouped
from testbed.core.records.exchange_record import ExchangeRecord
from testbed.core.records.rank_log import RankLog
from testbed.core.training.twin import Twin

__all__ = ["served"]

_Part = tuple[int, int | None]
"""Attempt and fragment."""


def served(records: Grouped, ranks: Sequence[RankLog], twin: Twin) -> Checker:
    """Judge the exchanges with a server of all ranks, over all attempts."""
    parts: dict[_Part, list[tuple[int, ExchangeRecord]]] = defaultdict(list)
    for log in ranks:
        for each in log.exchanges:
            parts[each.attempt, each.fragment].append((log.rank, each))
    ended = {
        attempt
        for attempt in {it.attempt for log in ranks for it in log.jobs}
        if all(any(it.attempt == attempt and it.status in ("ok", "stopped") for it in log.ends) for log in ranks)
    }
    slices = {rank: index for members in twin.layout.members.values() for index, rank in enumerate(members)}
    judges = [
        _Judge(attempt, fragment, listed, twin.most_stale, attempt in ended, slices)
        for (attempt, fragment), listed in sorted(parts.items(), key=lambda it: (it[0][0], it[0][1] or 0))
    ]
    findings = [found for judge in judges for found in judge.findings()]
    pushes = sum(len(judge.pushed) for judge in judges)
    pulls = sum(judge.pulls for judge in judges)
    looked_at = f"{pushes} pushes and {pulls} pulls of {records.world_size} ranks compared with what was served"
    undecided = "" if pushes and pulls else "no exchange with the server was recorded"
    return conclude("served", records, looked_at, findings, len(findings), undecided)


@dataclass
class _Judge:
    """The exchanges of one fragment in one attempt; ``listed`` are (rank, record) in the order of each rank."""

    attempt: int
    fragment: int | None
    listed: Sequence[tuple[int, ExchangeRecord]]
    most_stale: int | None
    ended: bool
    slices: Mapping[int, int]
    pushed: dict[tuple[int, int], ExchangeRecord] = field(default_factory=dict)
    """(rank, push) -> its record."""

    def __post_init__(self) -> None:
        self.pushed = {(rank, it.push): it for rank, it in self._of("pushed") if it.push is not None}
        self.pulls = sum(1 for _ in self._of("pulled"))

    def findings(self) -> Iterator[Finding]:
        yield from self._chain()
        yield from self._once()
        yield from self._based()
        yield from self._equal()

    def _of(self, what: str) -> Iterator[tuple[int, ExchangeRecord]]:
        return ((rank, it) for rank, it in self.listed if it.what == what)

    def _found(self, step: int | None, ranks: Sequence[int], text: str) -> Finding:
        group = "server" if self.fragment is None else f"server, fragment {self.fragment}"
        return Finding(self.attempt, step or 0, None, tuple(sorted(ranks)), text, group, self.fragment)

    def _chain(self) -> Iterator[Finding]:
        """The server's versions: one after the other, and with the same pushes on every rank that serves."""
        last: dict[int, int] = {}
        merged: dict[int, tuple[int, object]] = {}
        for rank, it in self._of("served"):
            if it.version is None:
                continue
            if rank in last and it.version != last[rank] + 1:
                yield self._found(it.step, [rank], f"version {it.version} was served after version {last[rank]}")
            last[rank] = it.version
            first, pushes = merged.setdefault(it.version, (rank, it.taken))
            if pushes != it.taken:
                text = f"version {it.version} has other pushes on rank {rank} than on rank {first}"
                yield self._found(it.step, [rank], text)

    def _once(self) -> Iterator[Finding]:
        """Each push of a site in order and once; none too stale; all of them by the end."""
        newest: dict[tuple[int, str], int] = {}
        for rank, it in self._of("served"):
            for site, push in it.taken.items():
                before = newest.get((rank, site))
                if before is not None and push <= before and it.single:
                    yield self._found(it.step, [rank], f"push {push} of {site} was taken up after push {before}")
                newest[rank, site] = max(push, before or 0)
            age = None if it.base is None or it.version is None else it.version - 1 - it.base
            if age is not None and self.most_stale is not None and age > self.most_stale:
                text = f"push {it.push} of {it.site} was {age} versions old, {self.most_stale} allowed"
                yield self._found(it.step, [rank], text)
        if not self.ended or not newest:
            return
        taken: dict[str, int] = {}
        for (_, site), push in newest.items():
            taken[site] = min(push, taken.get(site, push))
        for (rank, push), it in self.pushed.items():
            if push > taken.get(it.site, 0):
                yield self._found(it.step, [rank], f"push {push} of {it.site} was never taken up")

    def _based(self) -> Iterator[Finding]:
        """A push is based on what its rank pulled last."""
        held: dict[int, int] = {}
        for rank, it in self.listed:
            if it.what == "pulled" and it.version is not None:
                if it.version < held.get(rank, it.version):
                    text = f"rank {rank} pulled version {it.version} after version {held[rank]}"
                    yield self._found(it.step, [rank], text)
                held[rank] = it.version
            elif it.what == "pushed" and it.base is not None and rank in held and it.base != held[rank]:
                text = f"push {it.push} is based on version {it.base}, version {held[rank]} was pulled last"
                yield self._found(it.step, [rank], f"rank {rank}: {text}")

    def _equal(self) -> Iterator[Finding]:
        """What is pulled of a version is what was served, and the same everywhere."""
        known: dict[tuple[int | None, int], tuple[int, int, str]] = {}
        both = [*self._of("served"), *self._of("pulled")]
        for rank, it in both:
            if it.version is None or it.crc is None:
                continue
            place = self.slices.get(rank) if it.what == "served" else it.slice
            first, crc, what = known.setdefault((place, it.version), (rank, it.crc, it.what))
            if crc != it.crc:
                text = f"version {it.version} on {named([rank])} is not the one that rank {first} {what}"
                yield self._found(it.step, [rank], text)
