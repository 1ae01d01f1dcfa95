"""The verb ``validate``: test collective libraries in a certified lab."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

import testbed.host.linux.invocation as invocation
from testbed.cli import console, detached_run, tables, verb
from testbed.cli.ci import junit_file
from testbed.cli.on_host import Sent, Written
from testbed.cli.verb import (
    AllowUncertified,
    AsJson,
    Detach,
    Driver,
    Emulator,
    LabNameToMake,
    Overrides,
    RunsFolder,
    Strict,
    Wait,
)

if TYPE_CHECKING:
    from testbed.core.validation.baseline import BaselineComparison
    from testbed.core.validation.result import Validation
    from testbed.lab.validation.validation import Part, Suite

DEFAULT_TOPOLOGY = "metro-40km"

MOST_REASONS = 6
"""Reasons shown per library; the page has all of them."""

_STYLES = {
    "good": tables.GOOD, "fair": tables.UNSURE, "bad": tables.BAD, "worst": f"reverse {tables.BAD}",
    "unknown": tables.UNSURE, "absent": "dim",
}  # fmt: skip
"""Styles by the kind of a mark in the matrix."""


class SuiteName(StrEnum):
    """How thoroughly a library is tested."""

    quick = "quick"
    full = "full"


class PartName(StrEnum):
    """One part of a suite."""

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
            autocompletion=verb.completing(_libraries),
        ),
        Sent(),
    ],
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help=f"Topology of the lab to bring up (default: {DEFAULT_TOPOLOGY}).",
            autocompletion=verb.completing(verb.topologies),
        ),
        Sent(),
    ] = None,
    suite: Annotated[SuiteName, typer.Option(help="quick takes under three minutes per library.")] = SuiteName.quick,
    only: Annotated[
        list[PartName] | None, typer.Option("--only", help="Run only this part of the suite. May be repeated.")
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
            autocompletion=verb.completing(verb.lab_names),
        ),
    ] = None,
    name: LabNameToMake = None,
    runs: RunsFolder = None,
    driver: Driver = "auto",
    emulator: Emulator = "auto",
    strict: Strict = False,
    allow_uncertified: AllowUncertified = False,
    wait: Wait = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the lab up afterwards.", show_default=False)] = False,
    junit: Annotated[
        Path | None,
        typer.Option("--junit", metavar="FILE", help="Also write the result as JUnit XML, for CI."),
        Written(),
    ] = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> int:
    """Test collective libraries over emulated fiber: correct results, bytes on the wire, speed, faults.

    Ctrl-C takes the lab down and keeps what was measured. Exit status 0: all hold; 1: one does not, or is worse than
    the baseline; 3: inconclusive, or all were skipped.
    """
    from testbed.lab import api

    if detach and not detached_run.is_this():
        return detached_run.begin(runs, as_json)
    with junit_file(junit, " ".join(libraries), _junit) as results, console.progress() as progress:
        outcome = api.validate(
            libraries,
            topology=topology,
            set=verb.read_overrides(set_),
            suite=_suite(suite),
            only=tuple(_part(it) for it in only or ()),
            baseline=baseline,
            lab=lab,
            name=name,
            runs=runs,
            driver=driver,
            emulator=emulator,
            strict=strict,
            allow_uncertified=allow_uncertified,
            keep=keep,
            wait=wait,
            progress=progress,
        )
        results.append((outcome.validation, outcome.comparison))
    if as_json:
        from testbed.core.validation.result_json import to_json

        console.show_json(to_json(outcome.validation))
        return outcome.exit_code
    show(outcome.validation, outcome.comparison)
    console.show(f"result: {outcome.page}")
    return outcome.exit_code


def _suite(name: SuiteName) -> Suite:
    return "full" if name is SuiteName.full else "quick"


def _part(name: PartName) -> Part:
    parts: dict[PartName, Part] = {
        PartName.correctness: "correctness", PartName.speed: "speed", PartName.faults: "faults",
    }  # fmt: skip
    return parts[name]


def _junit(result: tuple[Validation, BaselineComparison | None]) -> str:
    from testbed.core.report.validation.validation_junit import junit

    return junit(*result)


# ---- what is shown


def show(validation: Validation, comparison: BaselineComparison | None) -> None:
    """Print the verdict; then, unless quiet, the matrix, the reasons, and changes against the baseline."""
    from testbed.core.report.validation.validation_matrix import headline

    console.show(tables.verdict(validation.verdict).append(f": {headline(validation)}", style="bold default"))
    for line in tables.noise(validation.noise):
        console.show_paragraph(line)
    if console.quiet():
        return
    console.show(_matrix(validation))
    if not validation.certified:
        console.show("the lab was not certified (see certificate.json), so the result is inconclusive")
    elif validation.noisy:
        console.show("noisy host: it delayed packets while the fibers were certified (see certificate.json)")
    for it in validation.libraries:
        for why in it.why[:MOST_REASONS]:
            console.show(f"{it.name}: {why}")
        if len(it.why) > MOST_REASONS:
            console.show(f"{it.name}: and {len(it.why) - MOST_REASONS} more reasons")
    if comparison is not None:
        for change in comparison.changes:
            console.show(f"{change.kind}: {change.library}: {change.what}: {change.before} → {change.after}")
        for note in comparison.notes:
            console.say(note)
        if not comparison.changes:
            console.show("no change against the baseline beyond noise")


def _matrix(validation: Validation) -> Table:
    from testbed.core.report.validation.validation_matrix import matrix

    rows: list[tables.Row] = []
    for row in matrix(validation):
        entries = [
            Text(f"{it.mark.sign} {it.mark.word}".strip() or "-", style=_STYLES.get(it.mark.kind, "")).append(
                f"\n{it.note}" if it.note else "", style="dim"
            )
            for it in row.entries
        ]
        rows.append([row.title, *entries])
    return tables.table(("", *(it.name for it in validation.libraries)), rows)


def list_libraries(as_json: bool) -> None:
    """Print the table of ``testbed ls libraries``."""
    from testbed.host import collective_libraries

    found = [(it, collective_libraries.why_not(it)) for it in collective_libraries.registry().values()]
    broken = collective_libraries.broken()
    if as_json:
        console.show_json(
            [
                *({"name": it.name, "title": it.title, "missing": why} for it, why in found),
                *({"name": name, "title": "", "missing": why} for name, why in broken.items()),
            ]
        )
        return
    rows: list[tables.Row] = [
        [it.name, tables.verdict("missing" if why else "ok"), _described(it.title, why)] for it, why in found
    ]
    rows += [[name, tables.verdict("bad"), _described("", why)] for name, why in broken.items()]
    made = tables.table(("library", "state", "description"), rows)
    made.columns[0].no_wrap = made.columns[1].no_wrap = True
    console.show(made)
    installs: dict[str, list[str]] = {}
    for it, why in found:
        if command := why.partition(_INSTALL)[2]:
            installs.setdefault(command, []).append(it.name)
    for command, names in installs.items():  # not in the table, which would fold them
        console.show(f"install {', '.join(names)}:")
        console.show(f"  {command}")


_INSTALL = "; install it with: "


def _described(title: str, why: str) -> Text:
    """Put the title and what is missing on lines of their own."""
    lines = (title, why.partition(_INSTALL)[0])
    return Text("\n").join(
        Text(line, style="dim" if number else "") for number, line in enumerate(it for it in lines if it)
    )
