"""JUnit files for CI: the verdict of a verb, or the error that ended it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from testbed.errors import TestbedError, UserError

Result = TypeVar("Result")


@contextlib.contextmanager
def junit_file(file: Path | None, name: str, render: Callable[[Result], str]) -> Iterator[list[Result]]:
    """Write ``file`` from the result that the block appends to the list; from the error if there is no result.

    Raises UserError and StorageError before the block is entered if the file could not be written.
    """
    from testbed.host.files import store

    if file is not None:
        if file.is_dir():
            raise UserError(f"--junit: {file} is a folder; name a file, e.g. {file / 'junit.xml'}")
        store.check_writable(file.absolute().parent)
    results: list[Result] = []
    failed = "interrupted"
    try:
        yield results
    except TestbedError as error:
        failed = str(error)
        raise
    except Exception as error:
        failed = f"a bug in the testbed: {type(error).__name__}: {error}"
        raise
    finally:
        if file is not None:
            from testbed.core.report.junit import junit_of_error

            store.save_text(file, render(results[0]) if results else junit_of_error(name, failed))
