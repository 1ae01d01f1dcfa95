"""A run of ``testbed validate`` as one of two sides; beside a training job it shares topology, host and versions."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.core.analysis.noise.inside_noise import Range
from testbed.core.report import formats
from testbed.core.report.answers import Answer
from testbed.core.report.comparison import run_inputs
from testbed.core.report.comparison.side import Quantity, Side
from testbed.core.report.validation.validation_matrix import headline
from testbed.core.validation.result import Validation

__all__ = ["side_of_validation"]

_VERDICTS = {"holds": "pass", "does not hold": "fail"}
_ANSWERS = {"holds": "yes", "does not hold": "no"}


def side_of_validation(name: str, folder: str, validation: Validation) -> Side:
    """Return the side of a validation."""
    figures = (
        Quantity("duration_s", "whole run", "s", validation.took_s),
        Quantity("libraries", "libraries", "count", float(len(validation.libraries))),
    )
    sections = {"figures": figures, "speed": tuple(_speeds(validation))}
    return Side(
        name=name,
        folder=folder,
        kind="validation of collective libraries",
        verdict=_VERDICTS.get(validation.verdict, "unknown"),
        headline=headline(validation),
        started_unix_s=validation.started_unix_s,
        inputs=run_inputs.of_validation(validation),
        answers=tuple(_answers(validation)),
        sections={key: found for key, found in sections.items() if found},
        validation=validation,
    )


def _answers(validation: Validation) -> Iterator[Answer]:
    for it in validation.libraries:
        why = "; ".join(it.why) or "No failure was found."
        yield Answer(f"library-{it.name}", f"Does {it.title} hold?", _ANSWERS.get(it.verdict, it.verdict), why)
    where = ", on a noisy host" if validation.noisy else ""
    certified = f"Certified before the validation{where}."
    answer, text = ("yes", certified) if validation.certified else ("no", "Not certified.")
    yield Answer("fidelity", "Did the fiber stay within tolerance?", answer, text)


def _speeds(validation: Validation) -> Iterator[Quantity]:
    """Yield the median of each operation and size; its noise is the median's 95 % interval."""
    for library in validation.libraries:
        for speed in library.speeds:
            size = f" of {formats.size(speed.size)}" if speed.size else ""
            name = f"{library.name}, {speed.operation}{size}"
            uncertainty = Range(speed.median_s - speed.uncertainty_s, speed.median_s + speed.uncertainty_s)
            yield Quantity(
                f"{library.name} {speed.operation} {speed.size}",
                name,
                "s",
                speed.median_s,
                Range(speed.low_s, speed.high_s),
                uncertainty=uncertainty if speed.uncertainty_s else None,
            )
