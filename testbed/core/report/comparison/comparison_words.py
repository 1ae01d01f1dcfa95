"""The words of a comparison: values, differences and sentences, for the page and for the terminal alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from testbed.core.analysis.noise.inside_noise import PARTS, Range
from testbed.core.physics.full_scale import at_full_scale
from testbed.core.report import formats, noise_section, open_metrics
from testbed.core.report.comparison.comparison import Compared, SideBySide
from testbed.core.report.comparison.side import Quantity, Side

__all__ = [
    "JUDGED",
    "NOISE",
    "VERDICTS",
    "against",
    "amount",
    "conditions",
    "difference",
    "inputs_lead",
    "range_text",
    "ratio",
    "uncertainty_text",
    "value",
    "verdict_lead",
]

VERDICTS: Mapping[str, str] = {"pass": "passed", "fail": "failed", "unknown": "no verdict"}

JUDGED: Mapping[str, str] = {
    "equal": "equal",
    "within the noise": "within the noise",
    "beyond the noise": "beyond the noise",
    "one value each": "noise unknown",
    "only a bound": "only a bound",
    "only in A": "only in A",
    "only in B": "only in B",
    "in neither": formats.UNKNOWN,
}

NOISE = (
    f"Noise is what is seen inside the runs: each run's time outside of faults in {PARTS} equal parts, and the range of"
    " their values (of an operation: the 95 % interval of its median), widened by the uncertainty by stalls of the"
    " host. A difference is beyond the noise if the two ranges do not overlap. One run of each cannot show how far two"
    " runs of the same thing are apart, so beyond the noise is not yet caused by what differs: repeat both."
)
_MOST_NAMED = 5
_BUSIER = 0.1
"""Smallest difference of the CPU's free share that is told."""


def value(found: Quantity | None) -> str:
    """Return a value with its unit; a rate with its meaning at full scale."""
    if found is None or found.value is None:
        return formats.UNKNOWN
    shown = f"{open_metrics.SIGN[found.bound]} " if found.bound else ""
    shown += amount(found.unit, found.value)
    full = at_full_scale(found.value, found.scale, 3) if found.unit == "bit/s" else ""
    return f"{shown} for {full}" if full else shown


def range_text(quantity: Quantity | None) -> str:
    """Return the noise inside a run, ``89 ms to 102 ms``; empty if unknown."""
    return "" if quantity is None else _range(quantity.unit, quantity.noise)


def uncertainty_text(quantity: Quantity | None) -> str:
    """Return the range within the uncertainty by stalls of the host; empty without any."""
    return "" if quantity is None else _range(quantity.unit, quantity.uncertainty)


def _range(unit: str, reach: Range | None) -> str:
    if reach is None:
        return ""
    if not math.isfinite(reach.high):
        return f"at least {amount(unit, reach.low)}"
    return f"{amount(unit, reach.low)} to {amount(unit, reach.high)}"


def amount(unit: str, value: float) -> str:
    """Return a value of a unit of :class:`Quantity` for a reader."""
    match unit:
        case "s":
            return formats.duration(value)
        case "share":
            return formats.small_share(value)
        case "bit/s":
            return formats.bits_per_s(value) if value else "0 b/s"
        case "B":
            return formats.size(value)
        case "nats":
            return formats.loss(value)
        case "count" if value != round(value):
            return f"{value:.2f}"
        case _:
            return formats.count(value)


def difference(pair: Compared) -> str:
    """Return B - A with its sign; of shares in percentage points."""
    if pair.difference is None:
        return formats.UNKNOWN
    if pair.difference == 0:
        return "0"
    sign = "+" if pair.difference > 0 else "−"
    if pair.unit == "share":
        return f"{sign}{abs(pair.difference) * 100:.1f} points"
    return f"{sign}{amount(pair.unit, abs(pair.difference))}"


def ratio(pair: Compared) -> str:
    """Return B / A, ``2.09``; nothing where A is 0, or for a negative number, of which a ratio says nothing."""
    if pair.ratio is None or pair.ratio < 0:
        return formats.UNKNOWN
    if 0 < pair.ratio < 0.001:
        return "< 0.001"
    return f"{pair.ratio:.3g}" if pair.ratio < 1000 else formats.count(pair.ratio)


def against(pair: Compared) -> str:
    """Return difference and ratio in a cell: ``+103 ms (× 2.09)``; empty if a run has no value."""
    if pair.difference is None:
        return ""
    times = ratio(pair).replace("< ", "less than ")
    return f"{difference(pair)} (× {times})" if times != formats.UNKNOWN and pair.difference else difference(pair)


def inputs_lead(found: SideBySide) -> str:
    """Return the first sentence: what differs in what the runs were given."""
    if found.a.kind != found.b.kind:
        kinds = f"The runs are of different kinds: A is a {found.a.kind}, B is a {found.b.kind}. "
    else:
        kinds = ""
    told = f"{formats.count(len(found.one_sided))} more"
    beside = f" Of {told} only one run tells." if found.one_sided else ""
    if not found.differing and not found.same:
        return f"{kinds}The run directories share no input that could be compared.{beside}"
    if found.a.folder == found.b.folder:
        return "A and B are the same run."
    if not found.differing and found.one_sided:
        return f"{kinds}None of the {formats.plural(len(found.same), 'input')} that both runs tell differs.{beside}"
    if not found.differing:
        same = formats.plural(len(found.same), "recorded input")
        sure = "So what differs below shows how far two runs of the same thing are apart."
        return f"{kinds}No input differs: {same} {'is' if len(found.same) == 1 else 'are'} the same. {sure}"
    names = list(dict.fromkeys(it.name for it in found.differing))
    named = formats.listed(names) if len(names) <= _MOST_NAMED else f"{', '.join(names[:_MOST_NAMED])} and more"
    count, of = len(found.differing), len(found.differing) + len(found.same)
    return f"{kinds}{count} of {formats.plural(of, 'input')} differ{'s' if count == 1 else ''}: {named}.{beside}"


def verdict_lead(found: SideBySide) -> str:
    """Return both verdicts in a sentence."""
    a, b = VERDICTS[found.a.verdict], VERDICTS[found.b.verdict]
    if found.same_verdict:
        return f"Both runs {a}." if a != "no verdict" else "Neither run has a verdict."
    return f"{_verdict('A', a)}; {_verdict('B', b)}."


def _verdict(side: str, word: str) -> str:
    return f"{side} has no verdict" if word == "no verdict" else f"{side} {word}"


def conditions(found: SideBySide) -> Iterator[str]:
    """Yield sentences on conditions that may explain a difference: the host's load, and missing data."""
    a, b = found.a.cpu_free, found.b.cpu_free
    if a is not None and b is not None and abs(a - b) >= _BUSIER:
        busier, other = ("A", "B") if a < b else ("B", "A")
        yield (
            f"The host was busier before {busier}: {formats.share(min(a, b))} of its CPU was free while the fibers were"
            f" certified, and {formats.share(max(a, b))} before {other}."
        )
    for name, side in (("A", found.a), ("B", found.b)):
        source = side.report or side.validation
        if source is not None and (noisy := noise_section.sentence(source.noise)):
            yield f"{name}: {noisy}"
        yield from (f"{name}: {sentence}" for sentence in _missing(side))
    yield from found.notes


def _missing(side: Side) -> Iterator[str]:
    yield from side.shortcomings
    if side.report is not None and side.report.run.status == "running":
        yield "The run has not ended; its numbers are those so far."
