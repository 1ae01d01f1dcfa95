"""Damaged copies of the stored run directories (``tests/golden/stored_runs``), the same on each machine.

A damage changes one file of a copy as an accident or another program might. Those of :data:`DAMAGES` are named; beside
them are drawn ones: a field of a record of a drawn file gets a drawn wrong value.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.json_files import read_json, read_lines, write_lines

SEED = 35
DRAWN = 20
"""How many copies have a drawn damage."""

WRONG_VALUES: tuple[Any, ...] = (None, "x", "", [], {}, True, -1, 1e308, 10**30, "1e5", 0.5, [None])

Damage = Callable[[random.Random, Path], None]


@dataclass(frozen=True)
class Damaged:
    """A damaged copy: its name, the stored run that it is a copy of, and what is done to it."""

    name: str
    source: str
    damage: Damage

    def make(self, sources: Path, copy: Path) -> None:
        shutil.copytree(sources / self.source, copy)
        self.damage(random.Random(f"{SEED} {self.name}"), copy)


def remove(name: str) -> Damage:
    return lambda chance, run: (run / name).unlink()


def empty(name: str) -> Damage:
    return lambda chance, run: os.truncate(run / name, 0)


def truncate(name: str) -> Damage:
    """Cut a file within its last tenth: in the middle of a line, as a full disk does."""

    def cut(chance: random.Random, run: Path) -> None:
        text = (run / name).read_bytes()
        (run / name).write_bytes(text[: chance.randrange(len(text) * 9 // 10, len(text) - 2)])

    return cut


def garbage(name: str) -> Damage:
    """Overwrite 64 bytes in the middle of a file with random ones."""

    def overwrite(chance: random.Random, run: Path) -> None:
        text = (run / name).read_bytes()
        middle = len(text) // 2
        (run / name).write_bytes(text[:middle] + chance.randbytes(64) + text[middle + 64 :])

    return overwrite


def swap(first: str, second: str) -> Damage:
    def exchange(chance: random.Random, run: Path) -> None:
        first_bytes, second_bytes = (run / first).read_bytes(), (run / second).read_bytes()
        (run / first).write_bytes(second_bytes)
        (run / second).write_bytes(first_bytes)

    return exchange


def set_value(name: str, *keys: str, value: object) -> Damage:
    """Set a value of a JSON file; ``keys`` lead to it."""

    def change(chance: random.Random, run: Path) -> None:
        document = read_json(run / name)
        inner: Any = document
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        (run / name).write_text(json.dumps(document))

    return change


def change_lines(name: str, change: Callable[[random.Random, list[dict[str, Any]]], list[dict[str, Any]]]) -> Damage:
    return lambda chance, run: write_lines(run / name, change(chance, read_lines(run / name)))


def duplicate(chance: random.Random, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines for _ in range(chance.choice((1, 1, 2)))]


def shuffle(chance: random.Random, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return chance.sample(lines, len(lines))


def without(key: str) -> Callable[[random.Random, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Remove a key from one in four of the lines that have it."""
    return lambda chance, lines: [
        {name: value for name, value in line.items() if name != key or chance.random() > 0.25} for line in lines
    ]


def with_values(key: str, *values: object) -> Callable[[random.Random, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Set a key of one in four of the lines that have it to one of ``values``."""
    return lambda chance, lines: [
        {**line, key: chance.choice(values)} if key in line and chance.random() < 0.25 else line for line in lines
    ]


def wrong_field(chance: random.Random, run: Path) -> None:
    """Give one field, of any depth, of a drawn JSON file a wrong value, or remove it."""
    files = sorted(path for path in run.rglob("*.json*") if path.stat().st_size and path.name != "process.json")
    file = chance.choice(files)
    documents = read_lines(file) if file.suffix == ".jsonl" else [read_json(file)]
    inner: Any = chance.choice(documents)
    while True:
        key = chance.choice(sorted(inner) if isinstance(inner, dict) else range(len(inner)))
        if not (isinstance(inner[key], dict | list) and inner[key] and chance.random() < 0.8):
            break
        inner = inner[key]
    if isinstance(inner, dict) and chance.random() < 0.2:
        del inner[key]
    else:
        inner[key] = chance.choice(WRONG_VALUES)
    if file.suffix == ".jsonl":
        write_lines(file, documents)
    else:
        file.write_text(json.dumps(documents[0]))


RANK, CHECKS = "ranks/rank-1.jsonl", "ranks/rank-2.checks.jsonl"
NEGATIVE = (-1, -1e9, 1e308)

DAMAGES: dict[str, tuple[str, Damage]] = {
    "no-run-json": ("ddp-cut-recovered", remove("run.json")),
    "no-events": ("ddp-cut-recovered", remove("events.jsonl")),
    "no-certificate": ("ddp-passed-real", remove("certificate.json")),
    "no-topology": ("ddp-passed-real", remove("topology.json")),
    "no-rank": ("diloco-overlapping-faults", remove(RANK)),
    "no-checks": ("streaming-diloco", remove(CHECKS)),
    "no-metrics": ("ddp-cut-recovered", remove("metrics.jsonl")),
    "no-experiment": ("random-faults", remove("experiment.yaml")),
    "empty-run-json": ("ddp-passed-real", empty("run.json")),
    "empty-events": ("hierarchical-rank-killed", empty("events.jsonl")),
    "empty-rank": ("hierarchical-rank-killed", empty(RANK)),
    "truncated-rank": ("ddp-cut-recovered", truncate(RANK)),
    "truncated-checks": ("sparse-loco", truncate(CHECKS)),
    "truncated-certificate": ("ddp-cut-recovered", truncate("certificate.json")),
    "garbage-in-checks": ("ddp-lost-input", garbage(CHECKS)),
    "garbage-in-events": ("program-with-steps", garbage("events.jsonl")),
    "swapped-ranks": ("diloco-overlapping-faults", swap(RANK, "ranks/rank-3.jsonl")),
    "swapped-checks": ("hsdp", swap(CHECKS, RANK)),
    "workload-a-list": ("ddp-passed-real", set_value("run.json", "workload", value=["ddp"])),
    "status-null": ("ddp-passed-real", set_value("run.json", "status", value=None)),
    "ended-before-it-began": ("ddp-cut-recovered", set_value("run.json", "ended_t", value=-1e9)),
    "unknown-strategy": ("fsdp", set_value("run.json", "workload", "strategy", value="nothing")),
    "negative-times": ("ddp-cut-recovered", change_lines(RANK, with_values("t_sync", *NEGATIVE))),
    "null-times": ("pipeline", change_lines(RANK, with_values("t_end", None, "soon"))),
    "steps-without-numbers": ("local-sgd-expectation-failed", change_lines(RANK, without("step"))),
    "duplicated-steps": ("ddp-power-loss", change_lines(RANK, duplicate)),
    "duplicated-events": ("diloco-overlapping-faults", change_lines("events.jsonl", duplicate)),
    "shuffled-events": ("diloco-overlapping-faults", change_lines("events.jsonl", shuffle)),
    "shuffled-checks": ("tensor", change_lines(CHECKS, shuffle)),
    "faults-without-targets": ("ddp-power-loss", change_lines("events.jsonl", without("target"))),
}


def damaged_runs(sources: Path) -> list[Damaged]:
    """Return all damaged copies of the runs in ``sources``."""
    chance = random.Random(SEED)
    drawn = [path.name for path in sorted(sources.iterdir()) if path.is_dir()]
    named = [Damaged(f"damaged-{name}", source, damage) for name, (source, damage) in DAMAGES.items()]
    return named + [Damaged(f"drawn-{number}", chance.choice(drawn), wrong_field) for number in range(1, DRAWN + 1)]
