"""Sections ``workload:`` of files, read with every mistake."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from testbed.core import yamltext
from testbed.core.topology.topology_schema import Mistakes, Written
from testbed.core.workload import workload_schema
from testbed.errors import Finding


def read(section: object) -> tuple[Any, list[Finding]]:
    """Return the workload of a section, written as YAML or as a value, and its mistakes."""
    document = yamltext.read((section if isinstance(section, str) else json.dumps(section)).encode(), "x.yaml")
    mistakes = Mistakes(Written(document))
    return workload_schema.read(document.data, (), mistakes), mistakes.findings


def right(section: str | Mapping[str, object]) -> Any:
    """Return the workload of a section without mistakes."""
    workload, findings = read(section)
    assert findings == []
    return workload
