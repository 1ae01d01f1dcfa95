"""The traffic of a launched program in its report: silences of fibers and nodes, and when faults let it come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from testbed.core.analysis.traffic_gaps import Silence, TrafficGaps, TrafficTrack
from testbed.core.report import formats
from testbed.core.report.report_table import Table
from testbed.core.report.sections.faults_section import Fault

__all__ = ["BackLine", "Silent", "TrafficLine", "came_back", "lead", "lines", "sentences", "table"]

_HEAD = ("traffic", "moved", "silences", "longest silence", "from", "longest outside faults")
_MOST_NODES = 16


@dataclass(frozen=True)
class Silent:
    """A silence: it lasted between ``least_s`` and ``most_s`` (None: to the end of what was seen)."""

    began_s: float
    least_s: float
    most_s: float | None


@dataclass(frozen=True)
class BackLine:
    """What a fault did: ``back_within_s`` is an upper bound, from the fault's beginning; None: it did not return."""

    fault: str
    silence: Silent
    back_within_s: float | None


@dataclass(frozen=True)
class TrafficLine:
    """One track: ``kind`` is site (all fibers toward it), fiber or node. Times since the job began."""

    name: str
    kind: str
    byte_count: int
    interval_s: float
    silences: int
    longest: Silent | None
    longest_calm: Silent | None
    back: tuple[BackLine, ...]


def lines(found: TrafficGaps, origin: float, ranks: Mapping[str, Sequence[int]]) -> tuple[TrafficLine, ...]:
    """Return the tracks in the order of table and JSON; ``ranks`` are those of each node."""
    return tuple(
        TrafficLine(
            name=_name(track, ranks),
            kind=track.kind,
            byte_count=track.byte_count,
            interval_s=track.interval_s,
            silences=len(track.silences),
            longest=_silent(track.longest, origin),
            longest_calm=_silent(track.longest_calm, origin),
            back=tuple(
                BackLine(it.fault, silence, it.back_within_s)
                for it in track.back
                if (silence := _silent(it.silence, origin)) is not None
            ),
        )
        for track in found.tracks
    )


def _name(track: TrafficTrack, ranks: Mapping[str, Sequence[int]]) -> str:
    node, _, way = track.name.partition(", ")
    of = ranks.get(node, ()) if track.kind == "node" else ()
    if not of:
        return track.name
    return f"rank{'s' if len(of) > 1 else ''} {', '.join(map(str, of))} on {node}, {way}"


def _silent(silence: Silence | None, origin: float) -> Silent | None:
    return None if silence is None else Silent(silence.began_t - origin, silence.least_s, silence.most_s)


def _shown(found: Sequence[TrafficLine]) -> list[TrafficLine]:
    """Return all tracks of sites and fibers, and of nodes those with the longest silences."""
    nodes = sorted((it for it in found if it.kind == "node"), key=lambda it: -(it.longest.least_s if it.longest else 0))
    kept = set(map(id, nodes[:_MOST_NODES]))
    return [it for it in found if it.kind != "node" or id(it) in kept]


def lead(found: Sequence[TrafficLine], idle: Sequence[str]) -> str:
    """Return what the table shows; empty without traffic."""
    if not found:
        return ""
    interval = formats.duration(max(it.interval_s for it in found))
    said = (
        f"The bytes of fibers and nodes are counted every {interval}, so a silence is known to within that at either"
        " end, and one that is shorter is not seen. Nothing before the first traffic counts, and nothing after the last"
        " of a program that ended well."
    )
    left_out = len(found) - len(_shown(found))
    if left_out:
        said += f" Of the nodes, the {_MOST_NODES} with the longest silences are shown."
    return f"{said} No traffic at all: {formats.listed(idle)}." if idle else said


def table(found: Sequence[TrafficLine]) -> Table | None:
    return Table.of(_HEAD, _rows(_shown(found)), "Traffic", range(1, len(_HEAD)))


def _rows(found: Iterable[TrafficLine]) -> Iterator[tuple[str, ...]]:
    for it in found:
        yield (
            it.name,
            formats.size(it.byte_count),
            formats.count(it.silences),
            _words(it.longest) if it.longest else "none",
            formats.duration(it.longest.began_s) if it.longest else "",
            _words(it.longest_calm) if it.longest_calm else "none",
        )


def _words(silence: Silent) -> str:
    """``8 s to 10 s``; ``>= 12 s`` of a silence that lasted to the end."""
    if silence.most_s is None:
        return f">= {formats.duration(silence.least_s)}"
    return f"{formats.duration(silence.least_s)} to {formats.duration(silence.most_s)}"


def came_back(found: Sequence[TrafficLine], faults: Sequence[Fault]) -> bool | None:
    """Return whether traffic toward every site was back after every fault; None if no site had any."""
    sites = [it for it in found if it.kind == "site"]
    if not sites or not faults:
        return None
    return all(back.back_within_s is not None for it in sites for back in it.back)


def sentences(found: Sequence[TrafficLine], faults: Sequence[Fault]) -> tuple[str, ...]:
    """Return a sentence for each fault: where it silenced traffic, and by when that was back."""
    sites = [it for it in found if it.kind == "site"]
    return tuple(_sentence(fault, sites) for fault in faults) if sites else ()


def _sentence(fault: Fault, sites: Sequence[TrafficLine]) -> str:
    lasted = ", to the end of the record" if fault.ended_s is None else f" for {fault.lasted}"
    words = f"{fault.words[:1].upper()}{fault.words[1:]} at {formats.duration(fault.began_s)}{lasted}"
    silent = [(it, back) for it in sites for back in it.back if back.fault == fault.fault]
    if not silent:
        interval = formats.duration(max(it.interval_s for it in sites))
        return f"{words}: traffic between the sites never stopped for as long as {interval} between two readings."
    lost = [it.name for it, back in silent if back.back_within_s is None]
    longest = max((back.silence for _, back in silent), key=lambda it: it.least_s)
    names = formats.listed([it.name for it, _ in silent])
    said = f"{words}: no traffic {names} for {_words(longest)}"
    if lost:
        return f"{said}; {formats.listed(lost)} it did not come back."
    within = max(back.back_within_s or 0.0 for _, back in silent)
    return f"{said}; it was back at most {formats.duration(within)} after the fault began."
