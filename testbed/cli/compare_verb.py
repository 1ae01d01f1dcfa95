"""The verb ``compare``: the same job by several ways of training, in one report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from testbed.cli import console, tables, verb
from testbed.cli.run_options import RunOptions
from testbed.cli.verb import AsJson, RunArgument

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from testbed.core.report.blocks import Table
    from testbed.core.report.comparison.ways_compared import WaysCompared

_MOST_COLUMNS = 4
"""Of a table in the terminal beside the name of the way; the page has one table."""


@verb.verb(
    verb.RUNS,
    "testbed compare metro-40km --strategies ddp,hierarchical,diloco:every=50",
    "testbed compare longhaul-1000km --strategies ddp,diloco:every=50,outer.rate=0.7 --seeds 3",
    "testbed compare metro-40km --strategies ddp,diloco --inject 'cut north after=40% for=3s'",
    "testbed compare longhaul-1000km --strategies ddp,diloco --compute 80ms --model 1.3B",
)
def compare(
    what: RunArgument,
    strategies: Annotated[
        str,
        typer.Option(
            metavar="A,B:KEY=VALUE,...",
            help="Ways of training, each with its options; the others are compared with the first.",
            show_default=False,
        ),
    ],
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Runs of each way, with other seeds.")] = 1,
    inject: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORDS",
            help="A fault of every run: FAULT TARGET, then after=40% or at=30s, for=3s, its KEY=VALUE; repeatable.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of training steps.", show_default="300")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The first seed.", show_default="0")] = None,
    evaluations: Annotated[
        int, typer.Option(metavar="N", min=0, help="How often each run evaluates its outer parameters; 0: never.")
    ] = 10,
    *,
    options: RunOptions,
    as_json: AsJson = False,
) -> int:
    """Run the same job by several ways of training, one after the other, and compare them in one report.

    One lab is brought up and certified for all runs; each run has a directory and a report of its own. Model, data,
    global batch, tokens, schedule and seeds are the same. Compared are the held-out loss of the outer parameters at
    equal tokens, time and bytes on the fiber (never the loss inside a site), compute utilization, goodput under the
    same faults, bytes per token against theory, and where the time of a step goes. Differences are paired by seed; from
    three seeds on they have a 95 % interval.

    Ctrl-C undoes everything and keeps the comparison of the runs so far. Exit status: 0 all runs passed, 1 one was
    measured and is bad, 3 one has no result.
    """
    from testbed.lab import api

    with console.progress() as progress:
        outcome = api.compare(
            what,
            strategies,
            seeds=seeds,
            inject=inject or (),
            evaluations=evaluations,
            steps=steps,
            seed=seed,
            progress=progress,
            **options.keywords(),
        )
    if as_json:
        from testbed.core.report.comparison.ways_compared import to_json

        console.show_json(to_json(outcome.found))
        return outcome.exit_code
    show_comparison(outcome.found)
    console.show(f"report: {outcome.page}")
    return outcome.exit_code


def show_comparison(found: WaysCompared) -> None:
    from testbed.core.report.comparison import ways_tables

    console.show(tables.verdict(found.verdict).append(f": {ways_tables.headline(found)}", style="bold default"))
    if console.quiet():
        return
    for listed in (ways_tables.summary(found), ways_tables.budgets_table(found)):
        for shown in _narrow(listed):
            console.show(shown)
    for sentence in found.notes:
        console.show_paragraph(Text(sentence))


def _narrow(wide: Table | None) -> Iterator[RichTable]:
    """Yield a table as tables of few columns."""
    if wide is None:
        return
    for first in range(1, len(wide.head), _MOST_COLUMNS):
        columns = [0, *range(first, min(first + _MOST_COLUMNS, len(wide.head)))]
        head = [wide.head[column] for column in columns]
        rows: list[tables.Row] = [[str(row[column]) for column in columns] for row in wide.rows]
        numbers = [wide.head[column] for column in columns if column in wide.numbers]
        yield tables.table(head, rows, right=numbers, title="" if first > 1 else wide.label)
