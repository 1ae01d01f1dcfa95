"""The schema of report.json accepts every report and rejects one that lacks, adds or confuses a property."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builders import run_kinds
from builders.reports import SCHEMA, document_of, report_of

FREE = frozenset({"experiment", "workload", "scheduling", "host", "validity", "schedule", "certificate", "topology"})
"""Objects with properties that users choose, or that may gain some."""
MAPPINGS = frozenset({"parameters", "malformed", "open_metrics", "uncertainty", "speeds", "parts"})
SEED, MUTANTS = 35, 150


def objects(value: Any, name: str = "") -> Iterator[dict[str, Any]]:
    """Yield every object whose properties the schema knows."""
    if name in FREE:
        return
    if isinstance(value, dict):
        if name not in MAPPINGS:
            yield value
        for key, member in value.items():
            yield from objects(member, key)
    elif isinstance(value, list):
        for member in value[:2]:
            yield from objects(member, name)


def test_mutations_of_a_report_are_rejected(tmp_path: Path) -> None:
    documents = [document_of(report_of(run_kinds.make(tmp_path / kind, kind))) for kind in run_kinds.KINDS]
    for document in documents:
        document["events"] = document["events"][:2]
        document["fidelity"] = document["fidelity"][:1]
    chance = random.Random(SEED)
    for _ in range(MUTANTS):
        document = copy.deepcopy(chance.choice(documents))
        mutated = chance.choice(list(objects(document)))
        key = chance.choice(list(mutated))
        kind = chance.choice(("missing", "extra", "type"))
        if kind == "missing":
            del mutated[key]
        elif kind == "extra":
            mutated["surplus"] = 1
        else:
            mutated[key] = {"surplus": []}
        freed = kind == "type" and key in FREE - {"validity", "schedule", "certificate", "topology"}
        assert SCHEMA.is_valid(document) == freed, f"{kind} {key}"
