"""The report of a job as a user's program receives it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from testbed.core.report.document import Report
from testbed.host.files import store


@dataclass(frozen=True)
class SavableReport(Report):
    """A report that a user's program can save; core, which builds reports, writes no files."""

    @classmethod
    def of(cls, report: Report) -> SavableReport:
        return cls(**{field.name: getattr(report, field.name) for field in fields(report)})

    def save(self, folder: Path | str) -> None:
        """Write index.html, report.json and report.md into ``folder``, created if missing. Raises StorageError."""
        store.save_report(self, Path(folder))
