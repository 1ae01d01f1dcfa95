"""The traffic of a launched program in its report: silences of fibers and nodes, and when faults let it come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from testbed.core.analysis.wire.traffic_gaps import Silence, TrafficGaps, TrafficTrack
from testbed.core.json_form import Keywords
from testbed.core.report import formats
from testbed.core.report.blocks import Bullets, Section, Table
from testbed.core.report.sections.faults_section import FaultLine

if TYPE_CHECKING:
    from testbed.core.report.document import Report

__all__ = ["BackLine", "SilenceLine", "TrafficLine", "came_back", "lead", "lines", "section", "sentences", "table"]

_HEAD = ("traffic", "moved", "silences", "longest silence", "from", "longest outside faults")
_MOST_NODES = 16


@dataclass(frozen=True)
class SilenceLine:
    """A silence: it lasted between ``least_s`` and ``most_s`` (None: to the end of what was seen)."""

    began_s: float
    """Since the job began."""
    least_s: float
    most_s: float | None
    """Null: it lasted to the end of what was seen."""


@dataclass(frozen=True)
class BackLine:
    """What a fault did: ``back_within_s`` is an upper bound, from the fault's beginning; None: it did not return."""

    fault: str
    silence: SilenceLine
    back_within_s: float | None
    """From the fault's beginning, an upper bound; null: traffic did not come back."""


@dataclass(frozen=True)
class TrafficLine:
    """One track: ``kind`` is site (all fibers toward it), fiber or node. Times since the job began."""

    name: str
    kind: Annotated[str, Keywords(enum=["site", "fiber", "node"])]
    """Site: all fibers that end there."""
    byte_count: int
    """L2 bytes while the program ran."""
    interval_s: float
    """Between two readings of the counter."""
    silences: int
    longest: SilenceLine | None
    longest_calm: SilenceLine | None
    back: tuple[BackLine, ...]
    """Faults near which there was a silence."""


def lines(gaps: TrafficGaps, origin: float, ranks: Mapping[str, Sequence[int]]) -> tuple[TrafficLine, ...]:
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
                BackLine(returned.fault, silence, returned.back_within_s)
                for returned in track.back
                if (silence := _silent(returned.silence, origin)) is not None
            ),
        )
        for track in gaps.tracks
    )


def _name(track: TrafficTrack, ranks: Mapping[str, Sequence[int]]) -> str:
    node, _, way = track.name.partition(", ")
    of = ranks.get(node, ()) if track.kind == "node" else ()
    if not of:
        return track.name
    return f"rank{'s' if len(of) > 1 else ''} {', '.join(map(str, of))} on {node}, {way}"


def _silent(silence: Silence | None, origin: float) -> SilenceLine | None:
    return None if silence is None else SilenceLine(silence.began_t - origin, silence.least_s, silence.most_s)


def _shown(tracks: Sequence[TrafficLine]) -> list[TrafficLine]:
    """Return all tracks of sites and fibers, and of nodes those with the longest silences."""
    nodes = sorted(
        (track for track in tracks if track.kind == "node"),
        key=lambda track: -(track.longest.least_s if track.longest else 0),
    )
    kept = set(map(id, nodes[:_MOST_NODES]))
    return [track for track in tracks if track.kind != "node" or id(track) in kept]


def lead(tracks: Sequence[TrafficLine], idle: Sequence[str]) -> str:
    """Return what the table shows; empty without traffic."""
    if not tracks:
        return ""
    interval = formats.duration(max(track.interval_s for track in tracks))
    sentence = (
        f"The bytes of fibers and nodes are counted every {interval}, so a silence is known to within that at either"
        " end, and one that is shorter is not seen. Nothing before the first traffic counts, and nothing after the last"
        " of a program that ended well."
    )
    left_out = len(tracks) - len(_shown(tracks))
    if left_out:
        sentence += f" Of the nodes, the {_MOST_NODES} with the longest silences are shown."
    return f"{sentence} No traffic at all: {formats.listed(idle)}." if idle else sentence


def table(tracks: Sequence[TrafficLine]) -> Table | None:
    return Table.of(_HEAD, _rows(_shown(tracks)), "Traffic", range(1, len(_HEAD)))


def _rows(tracks: Iterable[TrafficLine]) -> Iterator[tuple[str, ...]]:
    for track in tracks:
        yield (
            track.name,
            formats.size(track.byte_count),
            formats.count(track.silences),
            _words(track.longest) if track.longest else "none",
            formats.duration(track.longest.began_s) if track.longest else "",
            _words(track.longest_calm) if track.longest_calm else "none",
        )


def _words(silence: SilenceLine) -> str:
    """``8 s to 10 s``; ``>= 12 s`` of a silence that lasted to the end."""
    if silence.most_s is None:
        return f">= {formats.duration(silence.least_s)}"
    return f"{formats.duration(silence.least_s)} to {formats.duration(silence.most_s)}"


def came_back(tracks: Sequence[TrafficLine], faults: Sequence[FaultLine]) -> bool | None:
    """Return whether traffic toward every site was back after every fault; None if no site had any."""
    sites = [track for track in tracks if track.kind == "site"]
    if not sites or not faults:
        return None
    return all(back.back_within_s is not None for site in sites for back in site.back)


def sentences(tracks: Sequence[TrafficLine], faults: Sequence[FaultLine]) -> tuple[str, ...]:
    """Return a sentence for each fault: where it silenced traffic, and by when that was back."""
    sites = [track for track in tracks if track.kind == "site"]
    return tuple(_sentence(fault, sites) for fault in faults) if sites else ()


def _sentence(fault: FaultLine, sites: Sequence[TrafficLine]) -> str:
    lasted = ", to the end of the record" if fault.ended_s is None else f" for {fault.lasted}"
    began = f"{formats.upper_first(fault.words)} at {formats.duration(fault.began_s)}{lasted}"
    silent = [(site, back) for site in sites for back in site.back if back.fault == fault.fault]
    if not silent:
        interval = formats.duration(max(site.interval_s for site in sites))
        return f"{began}: traffic between the sites never stopped for as long as {interval} between two readings."
    lost = [track.name for track, back in silent if back.back_within_s is None]
    longest = max((back.silence for _, back in silent), key=lambda silence: silence.least_s)
    names = formats.listed([track.name for track, _ in silent])
    silence_text = f"{began}: no traffic {names} for {_words(longest)}"
    if lost:
        return f"{silence_text}; {formats.listed(lost)} it did not come back."
    within = max(back.back_within_s or 0.0 for _, back in silent)
    return f"{silence_text}; it was back at most {formats.duration(within)} after the fault began."


def section(report: Report) -> Section | None:
    tracks = report.traffic
    bullets = Bullets(sentences(tracks, report.faults))
    return Section.of("Traffic", table(tracks), bullets, lead=lead(tracks, report.idle))
