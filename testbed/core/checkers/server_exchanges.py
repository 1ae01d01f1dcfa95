"""Does a server of outer parameters take each push once, none too stale, and give what it has?

Sites that do not wait for each other push what they learned to a server and adopt its outer parameters. What versions
it may make of which pushes, and how stale one may be, is asked of the strategy's twin (``Twin.wrong_exchanges``).
Besides, whatever the strategy: a push is based on the version that its rank adopted last, versions that a rank adopts
never go back, and a job that ended in order has taken up every push, the last of which has the last step in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from testbed.core.checkers.finding import Checker, CheckerFinding, conclude
from testbed.core.records.check_record import Grouped
from testbed.core.records.exchange_record import ExchangeRecord
from testbed.core.records.rank_log import RankLog
from testbed.core.training.twin import Twin

__all__ = ["served"]

_GROUP = "server"
_Listed = Sequence[tuple[int, ExchangeRecord]]
"""Rank and record, in the order of each rank."""


def served(records: Grouped, ranks: Sequence[RankLog], twin: Twin) -> Checker:
    """Judge the exchanges with a server of all ranks, over all attempts. ``ranks``: how each attempt ended."""
    findings: list[CheckerFinding] = []
    for attempt, listed in sorted(records.versions.items()):
        wrong = twin.wrong_exchanges([exchange.fields for _, exchange in listed])
        findings += [CheckerFinding(attempt, 0, None, (), text, _GROUP) for text in wrong]
        parts: dict[int | None, list[tuple[int, ExchangeRecord]]] = defaultdict(list)
        for rank, exchange in listed:
            parts[exchange.fragment].append((rank, exchange))
        for fragment, part in parts.items():
            findings += _based(attempt, fragment, part)
            if ranks and all(_ended(log, attempt) for log in ranks):
                findings += _left(attempt, fragment, part)
            if ranks and all(_completed(log, attempt, twin.layout.steps) for log in ranks):
                findings += _unpushed(attempt, fragment, part, twin.layout.steps)
    everything = [exchange.what for listed in records.versions.values() for _, exchange in listed]
    counts = {what: everything.count(what) for what in ("pushed", "pulled")}
    looked_at = (
        f"{counts['pushed']} pushes and {counts['pulled']} adopted versions of {records.world_size} ranks compared with"
        " what was served"
    )
    undecided = "" if all(counts.values()) else "no exchange with the server was recorded"
    return conclude("served", records, looked_at, findings, len(findings), undecided)


def _ended(log: RankLog, attempt: int) -> bool:
    """Whether a rank ended in order, so after an exchange of all that was left."""
    return any(end.attempt == attempt and end.status in ("ok", "stopped") and not end.forced for end in log.ends)


def _completed(log: RankLog, attempt: int, steps: int) -> bool:
    return any(end.attempt == attempt and end.status == "ok" and end.step == steps for end in log.ends)


def _unpushed(attempt: int, fragment: int | None, listed: _Listed, steps: int) -> Iterator[CheckerFinding]:
    """The last push of a site has the last step of the job."""
    last: dict[str, tuple[int, int]] = {}
    for rank, exchange in listed:
        if exchange.what == "pushed" and "first" in exchange.fields:
            last[exchange.site] = max(last.get(exchange.site, (0, rank)), (exchange.step or 0, rank))
    for site, (step, rank) in last.items():
        if step < steps:
            text = f"the last push of {site} ends with step {step}, the job with step {steps}"
            yield CheckerFinding(attempt, step, None, (rank,), text, _GROUP, fragment)


def _based(attempt: int, fragment: int | None, listed: _Listed) -> Iterator[CheckerFinding]:
    """A push is based on what its rank adopted last."""
    held: dict[int, int] = {}
    for rank, exchange in listed:
        if exchange.what == "pulled" and exchange.version is not None:
            if exchange.version < held.get(rank, exchange.version):
                text = f"rank {rank} adopted version {exchange.version} after version {held[rank]}"
                yield CheckerFinding(attempt, exchange.step or 0, None, (rank,), text, _GROUP, fragment)
            held[rank] = exchange.version
        elif exchange.what == "pushed" and exchange.base is not None and rank in held and exchange.base != held[rank]:
            text = (
                f"rank {rank}: push {exchange.push} is based on version {exchange.base},"
                f" adopted last was version {held[rank]}"
            )
            yield CheckerFinding(attempt, exchange.step or 0, None, (rank,), text, _GROUP, fragment)


def _left(attempt: int, fragment: int | None, listed: _Listed) -> Iterator[CheckerFinding]:
    """No push is left over at the end."""
    newest: dict[int, Mapping[str, int]] = {}
    for rank, exchange in listed:
        if exchange.what == "served":
            before = newest.get(rank, {})
            newest[rank] = {**before, **{site: max(push, before.get(site, 0)) for site, push in exchange.taken.items()}}
    if not newest:
        return
    for rank, exchange in listed:
        taken = min(newest_by_site.get(exchange.site, 0) for newest_by_site in newest.values())
        if exchange.what == "pushed" and exchange.push is not None and exchange.push > taken:
            text = f"push {exchange.push} of {exchange.site} was never taken up"
            yield CheckerFinding(attempt, exchange.step or 0, None, (rank,), text, _GROUP, fragment)
