"""Read two runs to compare them, and write the comparison beside the runs: never into a run's own directory."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Final

from testbed.core.report.comparison import ways_compared, ways_page
from testbed.core.report.comparison.comparison import SideBySide, to_json
from testbed.core.report.comparison.comparison_page import html
from testbed.core.report.comparison.run_side import side_of_run
from testbed.core.report.comparison.side import Side
from testbed.core.report.comparison.validation_side import side_of_validation
from testbed.core.report.comparison.ways_compared import WaysCompared
from testbed.errors import UserError
from testbed.host.files import beneath, store
from testbed.host.files.store import VALIDATION, RunDirectory
from testbed.host.files.validations import read_validation

__all__ = ["FOLDER", "keep_comparison", "keep_ways", "read_side", "write_comparison"]

FOLDER: Final = "comparisons"
"""Within the folder of the caller's runs. It holds no run, so `ls runs` does not list it."""

PAGE, DATA = "index.html", "comparison.json"
_LONGEST_NAME: Final = 100
"""Of a run's name within that of a comparison: a file name has 255 bytes."""


def read_side(run: RunDirectory) -> Side:
    """Read a run of any kind and version; writes nothing, so the run may be another user's.

    Raises:
        StorageError: it cannot be read.
    """
    path = run.path.resolve()  # whatever path it was named by, a run is the same
    if (path / VALIDATION).exists():
        return side_of_validation(run.name, str(path), read_validation(path / VALIDATION))
    return side_of_run(run.name, str(path), run.read())


def write_comparison(comparison: SideBySide, folder: Path) -> Path:
    """Write index.html and comparison.json into ``folder``, which is made if missing; return the page's path.

    Raises:
        UserError: ``folder`` is a run directory, whose own page would be lost.
        StorageError: it cannot be written.
    """
    for name in ("run.json", VALIDATION, "report.json"):
        if os.path.exists(folder / name):  # noqa: PTH110 (an error is told when the files are written)
            raise UserError(f"{folder} is a run directory, and its own report would be lost; name another folder")
    store.save_files(folder, _files(comparison))
    return folder / PAGE


def keep_comparison(comparison: SideBySide, runs: Path) -> Path:
    """Write index.html and comparison.json below ``runs``, the folder of the caller's runs, into the place of an
    earlier comparison of the same two runs, or a new one; return the page's path. Raises StorageError."""
    sides = [side.folder for side in (comparison.a, comparison.b)]
    name = "--".join(side.name[:_LONGEST_NAME] for side in (comparison.a, comparison.b))
    for count in itertools.count(1):
        folder = f"{FOLDER}/{name if count == 1 else f'{name}-{count}'}"
        file = runs / folder / DATA
        if not os.path.lexists(file) or _sides(runs, f"{folder}/{DATA}") == sides:
            store.save_beneath(runs, folder, _files(comparison))
            return runs / folder / PAGE
    raise AssertionError  # count never ends


def keep_ways(compared: WaysCompared, runs: Path, name: str) -> Path:
    """Write index.html and comparison.json of several ways of training below ``runs``, in place of those written
    before; return the page's path. Raises StorageError."""
    folder = f"{FOLDER}/{name}"
    document = json.dumps(ways_compared.to_json(compared), indent=1, ensure_ascii=False, allow_nan=False)
    store.save_beneath(runs, folder, {DATA: document + "\n", PAGE: ways_page.html(compared)})
    return runs / folder / PAGE


def _sides(runs: Path, file: str) -> list[str]:
    """Return the folders of the runs that a comparison was made of; empty if it cannot be read."""
    try:
        with os.fdopen(beneath.open_file(runs.resolve(), file), encoding="utf-8") as stream:
            written = json.load(stream)
        return [str(written[side]["folder"]) for side in ("a", "b")]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _files(comparison: SideBySide) -> dict[str, str]:
    return {
        DATA: json.dumps(to_json(comparison), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        PAGE: html(comparison),
    }
