"""The verb ``validate``: test collective libraries in a certified lab."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import console, detached_run, reports, verb
from testbed.cli.on_host import Sent, Written
from testbed.cli.options import (
    AsJson,
    Detach,
    LabOptions,
    Overrides,
    completing,
    lab_names,
    read_overrides,
    topologies,
)
from testbed.cli.verb import Result

if TYPE_CHECKING:
    from testbed.core.validation.baseline import Comparison
    from testbed.core.validation.result import Validation

DEFAULT_TOPOLOGY = "metro-40km"


class PartName(StrEnum):
    """A part of a suite."""

    correctness = "correctness"
    speed = "speed"
    faults = "faults"


def _libraries(lab: str | None) -> Sequence[str]:
    from testbed.host import collective_libraries

    return list(collective_libraries.registry())


@verb.verb(
    verb.RUNS,
    "testbed validate torch-gloo                         # on metro-40km, under three minutes",
    "testbed validate torch-gloo mpich --suite full",
    "testbed validate ./my_ranks.py --only correctness   # a rank program of your own",
    "testbed validate torch-gloo --baseline old/validate.json --junit out.xml",
)
def validate(
    libraries: Annotated[
        list[str],
        typer.Argument(
            metavar="LIBRARY...",
            help=f"Library names (see {invocation.command('ls', 'libraries')}), or paths of your own rank programs.",
            autocompletion=completing(_libraries),
        ),
        Sent(),
    ],
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help=f"Topology of the lab to bring up (default: {DEFAULT_TOPOLOGY}).",
            autocompletion=completing(topologies),
        ),
        Sent(),
    ] = None,
    suite: Annotated[
        Literal["quick", "full"], typer.Option(help="quick takes under three minutes per library.")
    ] = "quick",
    only: Annotated[
        list[PartName] | None,
        typer.Option("--only", help="Run only this part of the suite. May be repeated."),
    ] = None,
    set_: Overrides = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline", metavar="OLD.json", help="Report regressions against this result; they are exit status 1 too."
        ),
        Sent(always=True),
    ] = None,
    lab: Annotated[
        str | None,
        typer.Option(
            "--lab",
            "-l",
            metavar="NAME",
            help="Validate in this running lab, and leave it up.",
            autocompletion=completing(lab_names),
        ),
    ] = None,
    *,
    own_lab: LabOptions,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the lab up afterwards.", show_default=False)] = False,
    junit: Annotated[
        Path | None,
        typer.Option("--junit", metavar="FILE", help="Also write the result as JUnit XML, for CI."),
        Written(),
    ] = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> Result | int:
    """Test collective libraries over emulated fiber: correct results, bytes on the wire, speed, faults.

    Ctrl-C takes the lab down and keeps what was measured. Exit status 0: all hold; 1: one does not, or is worse than
    the baseline; 3: inconclusive, or all were skipped.
    """
    from testbed.lab import api

    if detach and not detached_run.is_this():
        return detached_run.begin(own_lab.runs)
    overrides = read_overrides(set_)
    with reports.junit_file(junit, " ".join(libraries), _junit) as results, console.progress() as progress:
        outcome = api.validate(
            libraries,
            topology=topology,
            set=overrides,
            suite=suite,
            only=tuple(part.value for part in only or ()),
            baseline=baseline,
            lab=lab,
            keep=keep,
            progress=progress,
            **vars(own_lab),
        )
        results.append((outcome.validation, outcome.comparison))
    return reports.of_validation(
        outcome.validation, outcome.comparison, outcome.page, outcome.exit_code, label="result"
    )


def _junit(result: tuple[Validation, Comparison | None]) -> str:
    from testbed.core.report.validation.validation_junit import junit

    return junit(*result)
