"""Read a growing CSV file: a header, then lines of numbers (RFC 4180), as logging libraries write them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import Final

from testbed.core.workload.progress_lines import number_of
from testbed.core.workload.progress_source import CsvFile

__all__ = ["CsvReader"]

_LONGEST_LINE: Final = 1 << 16


class CsvReader:
    """Reads the bytes of one file from its begin, as they come.

    A line without its end is kept for the next call. A header that occurs again, as after a restart that appends, is
    read again. :attr:`missing` names a column that the header lacks; empty while all are there.
    """

    def __init__(self, file: CsvFile) -> None:
        self._named, self._time = file.sources.by_field(), file.time
        self._columns: list[str] | None = None
        self._rest = b""
        self._skipping = False
        self.missing = ""

    def begin(self, head: bytes) -> None:
        """Take the header from the begin of a file of which no line is to be read."""
        line, end, _ = head.partition(b"\n")
        if end:
            self._line(line.decode(errors="replace").strip("\ufeff\r"))

    def read(self, data: bytes) -> Iterator[tuple[float | None, Mapping[str, float]]]:
        """Yield (seconds since 1970 or None, numbers by field) for each whole line that has the step."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
                continue
            if (reading := self._line(line.decode(errors="replace").strip("\ufeff\r"))) is not None:
                yield reading
        if len(self._rest) > _LONGEST_LINE:
            self._rest, self._skipping = b"", True

    def _line(self, line: str) -> tuple[float | None, Mapping[str, float]] | None:
        try:
            cells = [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
        except csv.Error:
            return None
        if not cells:
            return None
        wanted = [*self._named.values(), *([self._time] if self._time else [])]
        if self._columns is None or self._named["step"] in cells:
            self._columns = cells
            self.missing = next((name for name in wanted if name not in cells), "")
            return None
        row = dict(zip(self._columns, cells, strict=False))
        cell_numbers = {field: number_of(row.get(name, "")) for field, name in self._named.items()}
        figures = {field: number for field, number in cell_numbers.items() if number is not None}
        # Loggers leave cells empty where a figure was not logged at that step.
        if "step" not in figures or len(figures) == 1 < len(self._named):
            return None
        return number_of(row.get(self._time, "")) if self._time else None, figures
