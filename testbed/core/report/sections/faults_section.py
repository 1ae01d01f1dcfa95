"""The faults of a run in its report: a line each, in sentences and as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from testbed.core.analysis.recovery import BACK, FaultRecovery
from testbed.core.physics import full_scale
from testbed.core.report import fault_words, formats
from testbed.core.report.report_table import Table

__all__ = ["Fault", "lines", "sentence", "summary", "table"]

_HEAD = (
    "#",
    "fault",
    "began",
    "lasted",
    "carrier lost after",
    "longest gap",
    "back after",
    "back after its end",
    "came through",
)
_OF_RECOVERY = _HEAD.index("longest gap")


@dataclass(frozen=True)
class Fault:
    """One fault; ``ended_s`` is None if the record does not hold its end, so it was still active then.

    ``longest_gap_s`` is at least that if ``gap_open``: no step came after the fault; at most that if ``gap_at_most``:
    the program prints too seldom to tell. ``parameters`` are as written.
    """

    fault: str
    type: str
    target: str
    links: tuple[str, ...]
    began_s: float
    ended_s: float | None
    carrier_s: float | None
    longest_gap_s: float | None
    back_s: float | None
    back_after_end_s: float | None
    recovered: bool | None
    gap_began_s: float | None = None
    """When the longest gap began, since the job began."""
    gap_open: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    scale: float = 1.0
    """The topology's, for what a rate stands for; report.json has it with the topology."""
    gap_at_most: bool = False
    uncertainty_s: float = 0.0
    """Of the longest gap, by stalls of the host."""

    @property
    def label(self) -> str:
        """The fault with its parameters, for a label of a plot: ``cut north``, ``loss 0.5 % north:west``."""
        return self._scaled(fault_words.short(self.type, self.target, self.parameters)) or self.fault

    @property
    def words(self) -> str:
        """The fault with its target and parameters: ``cut north``, ``loss 0.5 % on north toward west``."""
        return self._scaled(fault_words.in_full(self.type, self.target, self.parameters)) or self.fault

    @property
    def named(self) -> str:
        """The same within a sentence: ``the cut of north``."""
        return self._scaled(fault_words.named(self.type, self.target, self.parameters))

    @property
    def at_link(self) -> str:
        """The same without the name of its link, for a label beside that link: ``cut``, ``loss 0.5 % toward west``."""
        return self._scaled(fault_words.at_link(self.type, self.target, self.parameters)) or self.fault

    def _scaled(self, said: str) -> str:
        return full_scale.in_text(said, self.scale)

    @property
    def gap(self) -> str:
        """The longest gap: ``6.7 s``; ``>= 41.2 s`` where no step ended it; ``<= 1.3 s`` where prints are too rare."""
        return gap_words(self.longest_gap_s, self.gap_open, self.gap_at_most)

    @property
    def lasted(self) -> str:
        return "to the end" if self.ended_s is None else formats.duration(self.ended_s - self.began_s)


def lines(faults: Iterable[FaultRecovery], origin: float, scale: float = 1.0) -> tuple[Fault, ...]:
    return tuple(
        Fault(
            fault=recovery.window.fault,
            type=recovery.window.type,
            target=recovery.window.target,
            links=recovery.window.links,
            began_s=recovery.window.began_t - origin,
            ended_s=None if recovery.window.ended_t is None else recovery.window.ended_t - origin,
            carrier_s=recovery.window.carrier_s,
            longest_gap_s=recovery.longest_gap_s,
            back_s=recovery.back_s,
            back_after_end_s=recovery.back_after_end_s,
            recovered=recovery.recovered,
            gap_began_s=None if recovery.gap_began_t is None else recovery.gap_began_t - origin,
            gap_open=recovery.gap_open,
            parameters=recovery.window.parameters,
            scale=scale,
            gap_at_most=recovery.gap_at_most,
            uncertainty_s=recovery.uncertainty_s,
        )
        for recovery in faults
    )


def gap_words(gap_s: float | None, is_open: bool, at_most: bool = False) -> str:
    """Format a gap between commits; an open one is at least as long as it was seen."""
    if at_most and not is_open and gap_s is not None:
        return f"<= {formats.duration(gap_s)}"
    return f">= {formats.duration(gap_s)}" if is_open and gap_s is not None else formats.duration(gap_s)


def table(faults: Iterable[Fault]) -> Table | None:
    """The faults; their numbers are those of the plots. What is known of none, as with a launched program or faults
    outside the training, has no columns."""
    listed = tuple(faults)
    if all(it.recovered is None and it.longest_gap_s is None for it in listed):
        last = _OF_RECOVERY - all(it.carrier_s is None for it in listed)
        return Table.of(_HEAD[:last], (row[:last] for row in _rows(listed)), "Faults", (0, *range(2, last)))
    return Table.of(_HEAD, _rows(listed), "Faults", (0, *range(2, 8)), verdicts=8)


def _rows(faults: Iterable[Fault]) -> Iterator[tuple[str, ...]]:
    for number, fault in enumerate(faults, 1):
        yield (
            str(number),
            fault.words,
            formats.duration(fault.began_s),
            fault.lasted,
            formats.duration(fault.carrier_s),
            fault.gap,
            formats.duration(fault.back_s),
            formats.duration(fault.back_after_end_s),
            "unknown" if fault.recovered is None else "yes" if fault.recovered else "no",
        )


def summary(faults: Sequence[Fault]) -> str:
    """Return how many faults there were, how many the job came through, and the cost of the worst."""
    told = [it for it in faults if it.recovered is not None]
    bad = [it for it in told if not it.recovered]
    if not told:
        return f"{formats.plural(len(faults), 'fault')}, all outside the training: there is no recovery to measure."
    through = f"{len(told) - len(bad)} of {formats.plural(len(faults), 'fault')}"
    said = f"It came through {through}"
    if len(told) < len(faults):
        said += f"; {len(faults) - len(told)} fell outside the training"
    measured = [it for it in told if it.longest_gap_s is not None]
    worst = max(measured, key=lambda it: (it.gap_open, it.longest_gap_s or 0), default=None)
    if worst is not None:
        at = formats.duration(worst.began_s)
        if worst.gap_open:
            gap = formats.duration(worst.longest_gap_s)
            return f"{said}; after {worst.named} at {at} training did not come back: the gap is at least {gap}."
        said += f"; the longest gap between commits, {worst.gap}, was at {worst.named} at {at}"
    return f"{said}."


def sentence(fault: Fault) -> str:
    """Return what happened, and how the job fared."""
    lasted = ", to the end of the record" if fault.ended_s is None else f" for {fault.lasted}"
    began = _first_upper(f"{fault.words} at {formats.duration(fault.began_s)}{lasted}")
    if fault.recovered is None:
        return f"{began}: it fell outside the training, so there is no recovery to measure."
    if fault.gap_open:
        gap = formats.duration(fault.longest_gap_s)
        return f"{began}: no step came{_since(fault)}; training did not come back: the gap is at least {gap}."
    at_most = f"at most {formats.duration(fault.longest_gap_s)}, less than two prints take"
    gap = f"longest gap between commits {at_most if fault.gap_at_most else fault.gap + _where(fault)}"
    if not fault.recovered:
        return f"{began}: {gap}, and training had not recovered when the job ended."
    if fault.back_s == 0:
        after = (
            f"; steps were back to that {formats.duration(fault.back_after_end_s)} after its end"
            if fault.back_after_end_s
            else ""
        )
        return f"{began}: {gap}; no step near its beginning took more than {BACK:g} × the median{after}."
    if fault.back_s is None:
        return (
            f"{began}: {gap}; another fault began or ended, or the job had all of its steps, before one was back to"
            f" {BACK:g} × the median."
        )
    return (
        f"{began}: {gap}; the first step back to {BACK:g} × the median ended"
        f" {formats.duration(fault.back_s)} after it began."
    )


def _first_upper(words: str) -> str:
    return words[:1].upper() + words[1:]


def _since(fault: Fault) -> str:
    """Return since when no step came."""
    if fault.gap_began_s is None:
        return ""
    from_s = fault.gap_began_s - fault.began_s
    edge = "before it began" if from_s < 0 else "after it began"
    return f" from {formats.duration(abs(from_s))} {edge} to the end of the record"


def _where(fault: Fault) -> str:
    """Return when the longest gap was, as it may lie before or after the time to the first good step."""
    if fault.gap_began_s is None or fault.longest_gap_s is None:
        return ""
    from_s = fault.gap_began_s - fault.began_s
    to_s = from_s + fault.longest_gap_s
    if from_s < 0:
        return f" (from {formats.duration(-from_s)} before it began to {formats.duration(to_s)} after)"
    return f" (from {formats.duration(from_s)} to {formats.duration(to_s)} after it began)"
