"""What verbs leave for CI beside their words: a JUnit file, of what came out or of what went wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from testbed.errors import TestbedError, UserError

Result = TypeVar("Result")


@contextlib.contextmanager
def junit_file(file: Path | None, name: str, render: Callable[[Result], str]) -> Iterator[list[Result]]:
    """Writes ``file`` of the result that is put into the list; of what went wrong, if there is none.

    Raises UserError and StorageError before the block where it could not be written.
    """
    from testbed.host.files import store

    if file is not None:
        if file.is_dir():
            raise UserError(f"--junit: {file} is a folder; name a file, as {file / 'junit.xml'}")
        store.check_writable(file.absolute().parent)
    results: list[Result] = []
    failed = "it was interrupted"
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
