"""A synthetic validation: four libraries, one of each kind, with every outcome among them."""

from __future__ import annotations

import dataclasses

from testbed.core.validation.result import CaseResult, Cell, LibraryResult, Speed, Validation

DELAY_S, RATE = 200e-6, 97e6
TYPES = ("int32", "int64", "float16", "bfloat16", "float32", "float64")
OPERATIONS = (
    ("all_reduce", "sum"), ("all_reduce", "max"), ("reduce_scatter", "sum"), ("all_gather", ""), ("broadcast", ""),
    ("reduce", "sum"), ("all_to_all", ""), ("send", ""), ("barrier", ""),
)  # fmt: skip


def case(operation: str = "all_reduce", **fields: object) -> CaseResult:
    made = {"group": "world", "type": "float32", "count": 1000, "reduction": "sum", "state": "right", **fields}
    return CaseResult(operation=operation, **made)  # type: ignore[arg-type]


def cases(unsupported: tuple[str, ...] = ()) -> tuple[CaseResult, ...]:
    return tuple(
        case(
            operation,
            reduction=reduction,
            type=type_,
            count=count,
            group=group,
            state="unsupported" if operation in unsupported else "right",
        )
        for operation, reduction in OPERATIONS
        for type_ in (("int32",) if operation == "barrier" else TYPES)
        for count, group in ((0, "world"), (1, "world"), (1021, "world"), (1021, "east"), (262_144, "world"))
    )


def speed(operation: str = "all_reduce", size: int = 4_194_304, *, efficiency: float = 0.6, flat: bool = True) -> Speed:
    bound_s = DELAY_S + size / RATE
    median_s = bound_s / efficiency
    crossing = int((1.5 if flat else 1.0) * size * 1.03)
    return Speed(
        operation=operation,
        size=size,
        times_s=(median_s * 0.98, median_s, median_s * 1.02),
        median_s=median_s,
        low_s=median_s * 0.98,
        high_s=median_s * 1.02,
        algorithm_rate=size / median_s,
        bus_rate=1.5 * size / median_s,
        bound_s=bound_s,
        bound_all_s=DELAY_S + size / (2 * RATE),
        efficiency=efficiency,
        one_way_delays=median_s / DELAY_S,
        crossing={"north:east": crossing, "north:west": crossing, "south:east": 4000, "south:west": 4000},
        least=size,
        pattern="flat ring" if flat else "hierarchical",
    )


def speeds(efficiency: float = 0.6, flat: bool = True) -> tuple[Speed, ...]:
    sized = ((4, 0.3), (65_536, 0.7), (1_048_576, 0.9), (16_777_216, 1.0))
    return tuple(
        speed(operation, size, efficiency=efficiency * share, flat=flat)
        for operation in ("all_reduce", "all_gather", "broadcast", "all_to_all")
        for size, share in sized
    )


CELLS = (
    Cell("cut, short", "right after healing", share=0.31, done_s=1.62, healed_s=1.0, bound_s=12.0, rebuilt=None),
    Cell(
        "cut, long", "error within its bound", share=0.3, error_s=10.2, healed_s=14.0, bound_s=12.0, rebuilt=True,
        rebuild_s=1.3, errors=("Timed out waiting 10000ms for recv operation to complete",) * 4,
    ),
    Cell("failover", "right", share=0.35, done_s=0.84, bound_s=12.0),
    Cell("loss 1 %", "right", share=0.4, done_s=2.9, bound_s=12.0),
    Cell(
        "rank killed", "error within its bound", share=0.3, error_s=0.4, bound_s=12.0, rebuilt=False,
        errors=("Connection closed by peer [10.2.1.1]:38211",) * 2,
    ),
)  # fmt: skip


def library(name: str = "torch-gloo", **fields: object) -> LibraryResult:
    made: dict[str, object] = {
        "title": "torch gloo",
        "version": "2.13.0",
        "verdict": "holds",
        "why": (),
        "offers": {"all_reduce": {"types": list(TYPES), "reductions": ["sum", "max"], "same_bits": True}},
        "cases": cases(("all_to_all",)),
        "speeds": speeds(),
        "cells": CELLS,
        "took_s": 148.2,
        **fields,
    }
    return LibraryResult(name=name, **made)  # type: ignore[arg-type]


def broken() -> LibraryResult:
    """Return a library with wrong results without an error, in a case and under a fault."""
    first, *others = cases()
    bad = dataclasses.replace(
        first,
        state="wrong",
        count=1021,
        detail="rank 2, element 512: -0.25 belongs there, and 0.5 is: rank 3 is missing",
    )
    cells = (
        dataclasses.replace(CELLS[0], outcome="hang", done_s=None, detail="ranks 0 and 3 never answered"),
        dataclasses.replace(CELLS[1], outcome="wrong result", error_s=None, done_s=14.4, errors=(), detail="element 7"),
        dataclasses.replace(CELLS[2], outcome="crash", done_s=None, detail="rank 2 died of signal 11"),
        dataclasses.replace(CELLS[3], outcome="fault not exercised", done_s=None, share=None),
        dataclasses.replace(
            CELLS[4], outcome="error late", error_s=31.0, detail="rank 1 learnt of it by its own timeout alone"
        ),
    )
    why = ("a wrong result without an error under cut, long: element 7", "1 wrong answer of 265", "it hangs")
    return library(
        "lame-ring", title="lame ring", version="1", verdict="does not hold", why=why, cases=(bad, *others),
        cells=cells, speeds=speeds(0.4),
    )  # fmt: skip


def too_fast() -> LibraryResult:
    beyond = speed("all_reduce", 16_777_216, efficiency=1.31, flat=False)
    return library(
        "mpich", title="MPICH", version="4.3.0", verdict="does not hold", cells=(),
        why=("all_reduce of 16.8 MB is 1.31 times as fast as its bound",),
        speeds=(*speeds(0.7, flat=False)[:3], beyond),
    )  # fmt: skip


def skipped() -> LibraryResult:
    why = ("jax is not installed for the nodes' Python; install it with: pip install 'scale-across-testbed[jax]'",)
    return library(
        "jax", title="jax gloo", version="", verdict="skipped", why=why, cases=(), speeds=(), cells=(), took_s=0.0
    )


def validation(*libraries: LibraryResult, **fields: object) -> Validation:
    found = libraries or (library(), broken(), too_fast(), skipped())
    verdicts = {it.verdict for it in found}
    order = ("does not hold", "unknown", "holds", "skipped")
    made: dict[str, object] = {
        "suite": "quick",
        "topology": "metro-40km",
        "driver": "netns",
        "emulator": "fiberd",
        "certified": True,
        "started_unix_s": 1_795_000_000.0,
        "took_s": 431.0,
        "machine": "AMD EPYC 7763, 2 cores, Linux 6.1.0",
        "versions": {"testbed": "0.1.0", "python": "3.11.9", "torch": "2.13.0+cpu"},
        "links": {
            f"{link}:{site}": {"delay_s": delay_s, "rate": RATE}
            for link, delay_s in (("north", 200e-6), ("south", 235e-6))
            for site in ("east", "west")
        },
        "libraries": found,
        "verdict": next(each for each in order if each in verdicts),
        **fields,
    }
    return Validation(**made)  # type: ignore[arg-type]
