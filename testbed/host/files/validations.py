"""Read and write the results of ``testbed validate`` in a run directory, and rebuild the report from them."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Final

from testbed.core.report.validation import validation_junit, validation_markdown, validation_page
from testbed.core.validation.baseline import BaselineComparison, compare
from testbed.core.validation.result import Validation
from testbed.core.validation.result_json import from_json, to_json
from testbed.errors import StorageError
from testbed.host.files.store import VALIDATION, RunDirectory

__all__ = ["BASELINE", "read_validation", "rebuild_validation", "write_validation"]

BASELINE: Final = "baseline.json"
"""The earlier validation that this one was compared with."""

LONGEST_BYTES: Final = 64 << 20
"""Size limit; a full validation of one library has about 0.5 MB."""


def write_validation(
    run: RunDirectory, validation: Validation, baseline: Validation | None = None
) -> BaselineComparison | None:
    """Write validate.json, index.html, validate.md and junit.xml into the run directory.

    They include the comparison with ``baseline``, which is kept as baseline.json so that all can be rebuilt. Returns
    the comparison.

    Raises:
        StorageError: a file cannot be written.
    """
    run.write_json(VALIDATION, to_json(validation))
    if baseline is not None:
        run.write_json(BASELINE, to_json(baseline))
    return _render(run, validation, baseline)


def rebuild_validation(run: RunDirectory) -> tuple[Validation, BaselineComparison | None]:
    """Rebuild the report from validate.json, and baseline.json if it exists.

    Raises:
        StorageError: a file cannot be read, or the report cannot be written.
    """
    validation = read_validation(run.path / VALIDATION)
    baseline = read_validation(run.path / BASELINE) if (run.path / BASELINE).exists() else None
    comparison = _render(run, validation, baseline)
    run.give_to_caller()
    return validation, comparison


def read_validation(path: Path) -> Validation:
    """Read a validate.json, or the one in a run directory.

    Raises:
        StorageError: it cannot be read, or is not a validation of a supported version.
    """
    file = path / VALIDATION if os.path.isdir(path) else path  # noqa: PTH112 (an error is told when it is read)
    try:
        return from_json(json.loads(_read(file)))
    except OSError as error:
        raise StorageError(f"{file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{file}: expected a result of testbed validate: {error}") from error


def _read(file: Path) -> bytes:
    """Read a file without blocking, up to the size limit. Raises OSError."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if status.st_size > LONGEST_BYTES:
            raise OSError(errno.EFBIG, f"larger than the limit for a validation, {LONGEST_BYTES >> 20} MiB")
        return stream.read(LONGEST_BYTES)


def _render(run: RunDirectory, validation: Validation, baseline: Validation | None) -> BaselineComparison | None:
    comparison = compare(baseline, validation) if baseline is not None else None
    run.write_text("index.html", validation_page.html(validation, comparison))
    run.write_text("validate.md", validation_markdown.markdown(validation, comparison))
    run.write_text("junit.xml", validation_junit.junit(validation, comparison))
    return comparison
