"""The judge against answers computed independently: with fractions, by element, in every order of additions."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from builders.tables import table
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.rank_inputs import input_bytes
from testbed_agents.adapters.elements import narrow

from testbed.core.validation.elements import TYPES
from testbed.core.validation.operation import OPERATIONS, REDUCING, CollectiveOperation, Group
from testbed.core.validation.output_judge import OutputJudgement, RankAnswer, judge

WORLD = Group("world", (0, 1, 2, 3))
EXACT = [name for name, kind in TYPES.items() if kind.is_integer]
FLOATS = [name for name, kind in TYPES.items() if not kind.is_integer]
_STORED = {"int32": "<i4", "int64": "<i8", "float16": "<f2", "float32": "<f4", "float64": "<f8"}


# ---- an oracle: fractions, and rounding by numpy's own types


def _fractions(name: str, data: bytes) -> list[Fraction]:
    if name == "bfloat16":
        return [Fraction(struct.unpack("<f", b"\0\0" + data[i : i + 2])[0]) for i in range(0, len(data), 2)]
    return [Fraction(it.item()) for it in np.frombuffer(data, _STORED[name])]


def _round(name: str, value: Fraction) -> Fraction:
    """Round to nearest in the type, with integers alone."""
    if not value:
        return value
    precision = TYPES[name].precision
    exponent = 0
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - precision + 1, TYPES[name].smallest_exponent)
    return round(value / unit) * unit  # Python rounds halves to even


def _store(name: str, values: Sequence[Fraction]) -> bytes:
    if name == "bfloat16":
        return narrow(np.array([float(it) for it in values], np.float32)).tobytes()
    return np.array([int(it) if name in EXACT else float(it) for it in values], _STORED[name]).tobytes()


def _add(name: str, a: Fraction, b: Fraction) -> Fraction:
    return a + b if name in EXACT else _round(name, a + b)


def _summed(name: str, values: Sequence[Fraction], chance: random.Random) -> Fraction:
    """Add in a random tree, rounding each addition."""
    left = list(values)
    while len(left) > 1:
        a = left.pop(chance.randrange(len(left)))
        b = left.pop(chance.randrange(len(left)))
        left.append(_add(name, a, b))
    return left[0]


def _answer(operation: CollectiveOperation, rank: int, world: int, chance: random.Random) -> bytes | None:
    """Return the output of a rank as docs/validate.md defines it."""
    name, count = operation.type, operation.count
    blocks = world if operation.do in ("reduce_scatter", "all_to_all") else 1
    given = [
        _fractions(name, input_bytes(name, blocks * count, seed=operation.seed, call=operation.call, rank=it))
        for it in range(world)
    ]

    def reduce(columns: Sequence[Sequence[Fraction]]) -> list[Fraction]:
        if operation.reduction == "max":
            return [max(column) for column in columns]
        sums = [_summed(name, column, chance) for column in columns]
        return [_round(name, it / world) for it in sums] if operation.reduction == "avg" else sums

    mine = slice(rank * count, (rank + 1) * count)
    columns = [list(it) for it in zip(*given, strict=True)]
    results: dict[str, Callable[[], Sequence[Fraction] | None]] = {
        "all_reduce": lambda: reduce(columns),
        "reduce": lambda: reduce(columns) if rank == operation.root else None,
        "reduce_scatter": lambda: reduce(columns[mine]),
        "all_gather": lambda: [it for vector in given for it in vector],
        "all_to_all": lambda: [it for vector in given for it in vector[mine]],
        "broadcast": lambda: given[operation.root],
        "send": lambda: given[operation.root] if rank == operation.to else None,
        "barrier": lambda: None,
    }
    result = results[operation.do]()
    return None if result is None else _store(name, result)


def _answers(operation: CollectiveOperation, group: Group = WORLD, seed: int = 0) -> dict[int, RankAnswer]:
    chance, world = random.Random(seed), len(group.ranks)
    return {
        rank: RankAnswer("done", _answer(operation, number, world, chance), 1.0, 2.0)
        for number, rank in enumerate(group.ranks)
    }


def _output(answers: dict[int, RankAnswer], rank: int) -> bytes:
    output = answers[rank].output
    assert output is not None
    return output


def _call(
    do: str, type_: str = "int32", count: int = 50, reduction: str = "", number: int = 70, **fields: Any
) -> CollectiveOperation:
    """An operation of the world, or of ``group``."""
    values = {"group": "world", "seed": 9, **fields}
    return CollectiveOperation(do, number, type=type_, count=count, reduction=reduction, **values)  # type: ignore[arg-type]


def _with(
    operation: CollectiveOperation, rank: int, output: bytes | None, group: Group = WORLD, **fields: Any
) -> OutputJudgement:
    """Judge right answers of all ranks but one."""
    return judge(operation, group, _answers(operation, group) | {rank: RankAnswer("done", output, 1.0, 2.0)}, **fields)


def _wrong(operation: CollectiveOperation, rank: int, output: bytes | None, group: Group = WORLD, **fields: Any) -> str:
    """Judge a wrong answer of one rank; return the detail."""
    judgement = _with(operation, rank, output, group, **fields)
    assert (judgement.state, judgement.rank) == ("wrong", rank)
    return judgement.detail


of_each_type = pytest.mark.parametrize("name", TYPES)
of_each_float = pytest.mark.parametrize("name", FLOATS)


# ---- right answers


@pytest.mark.parametrize("do", OPERATIONS)
@of_each_type
def test_judge_right_answers(do: str, name: str) -> None:
    numbers = itertools.count(1)
    groups = (WORLD, Group("some", (5, 2, 3)), Group("one", (1,)))
    reductions = ("sum", "max", *(["avg"] if name in FLOATS else [])) if do in REDUCING else ("",)
    for reduction, count, group in itertools.product(reductions, (0, 1, 19), groups):
        root = len(group.ranks) - 1
        operation = _call(do, name, count, reduction, next(numbers), group=group.name, root=root, to=0, seed=3)
        for seed in range(2):  # other orders of additions
            judgement = judge(operation, group, _answers(operation, group, seed))
            assert judgement == OutputJudgement("right"), (operation, judgement)


@of_each_float
@settings(max_examples=12)
@given(seed=st.integers(0, 2**32), world=st.integers(2, 24), reduction=st.sampled_from(["sum", "avg"]))
def test_judge_calls_no_order_of_additions_wrong(name: str, seed: int, world: int, reduction: str) -> None:
    group = Group("world", tuple(range(world)))
    operation = _call("all_reduce", name, 12, reduction, seed % 1000, seed=seed)
    assert judge(operation, group, _answers(operation, group, seed)).state == "right"


def test_judge_accepts_a_sum_in_float32_that_is_handed_on_rounded() -> None:
    """As libraries do with bfloat16: each addition in float32, each result rounded to bfloat16."""
    operation = _call("all_reduce", "bfloat16", 500, "sum", 3, seed=1)
    total = np.zeros(500, np.float32)
    for rank in WORLD.ranks:
        given = _fractions("bfloat16", input_bytes("bfloat16", 500, seed=1, call=3, rank=rank))
        total = total + np.array([float(it) for it in given], np.float32)
        total = (narrow(total).astype(np.uint32) << np.uint32(16)).view(np.float32)
    answers = {rank: RankAnswer("done", narrow(total).tobytes()) for rank in WORLD.ranks}
    assert judge(operation, WORLD, answers).state == "right"


# ---- wrong answers


def _flipped(output: bytes, *bits: int) -> bytes:
    changed = bytearray(output)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@settings(max_examples=80)
@given(data=st.data())
def test_judge_finds_any_flipped_bit_of_an_exact_answer(data: st.DataObject) -> None:
    do = data.draw(st.sampled_from([it for it in OPERATIONS if it != "barrier"]))
    reducing = do in REDUCING
    name = data.draw(st.sampled_from(EXACT if reducing else list(TYPES)))
    reduction = data.draw(st.sampled_from(["sum", "max"])) if reducing else ""
    count, number = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 10**6))
    operation = _call(do, name, count, reduction, number, root=1, to=2)
    answers = _answers(operation)
    rank = data.draw(st.sampled_from([rank for rank, it in answers.items() if it.output is not None]))
    output = _output(answers, rank)
    bit = data.draw(st.integers(0, len(output) * 8 - 1))
    detail = _wrong(operation, rank, _flipped(output, bit))
    assert f"rank {rank}: 1 of " in detail
    assert f"the first is {bit // 8 // TYPES[name].size}:" in detail


@of_each_float
def test_judge_finds_any_flipped_bit_of_a_maximum(name: str) -> None:
    operation = _call("all_reduce", name, 3, "max", 3, seed=1)
    good = _output(_answers(operation), 2)
    for bit in range(len(good) * 8):
        assert _with(operation, 2, _flipped(good, bit)).state == "wrong"


@of_each_float
@pytest.mark.parametrize("reduction", ["sum", "avg"])
def test_judge_has_a_bound_as_wide_as_it_says_and_no_wider(name: str, reduction: str) -> None:
    """gamma(k) sum |x| by fractions: the last value of the type within it is accepted, the first one beyond is not."""
    world, precision = 3, TYPES[name].precision
    group = Group("world", (0, 1, 2))
    operation = _call("all_reduce", name, 12, reduction, 11, seed=4)
    given = [_fractions(name, input_bytes(name, 12, seed=4, call=11, rank=r)) for r in range(world)]
    steps = world - 1 if reduction == "sum" else world + 1
    gamma = Fraction(steps, 2**precision) / (1 - Fraction(steps, 2**precision))
    places = 1 if reduction == "sum" else world
    right = _fractions(name, _output(_answers(operation, group), 1))
    for index, column in enumerate(zip(*given, strict=True)):
        exact = sum(column, Fraction(0)) / places
        bound = gamma * sum(map(abs, column)) / places
        if reduction == "avg":
            bound += world * Fraction(2) ** (TYPES[name].smallest_exponent - 1)
        inside, outside = exact, exact
        step = max(bound / 64, Fraction(2) ** -60)
        while abs(_round(name, outside) - exact) <= bound:
            inside, outside = outside, outside + step
        for value, state in ((inside, "right"), (outside, "wrong")):
            changed = [*right[:index], _round(name, value), *right[index + 1 :]]
            assert _with(operation, 1, _store(name, changed), group).state == state


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, -1e300])
@pytest.mark.parametrize("reduction", ["sum", "avg", "max"])
def test_judge_finds_what_is_no_number(value: float, reduction: str) -> None:
    operation = _call("all_reduce", "float64", 5, reduction, 3, seed=1)
    vector = np.frombuffer(_output(_answers(operation), 0), "<f8").copy()
    vector[3] = value
    detail = _wrong(operation, 0, vector.tobytes())
    assert "the first is 3" in detail and f"{value:.2g}"[:2] in detail


SIGNALLING = {"float16": 0x7D00, "bfloat16": 0x7FA0, "float32": 0x7FA00000, "float64": 0x7FF4000000000000}


def test_judge_finds_signalling_nans_of_every_type_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    for name in FLOATS:
        operation = _call("all_reduce", name, 4, "sum", 3, seed=1)
        size = TYPES[name].size
        output = SIGNALLING[name].to_bytes(size, "little") + _output(_answers(operation), 0)[size:]
        assert _with(operation, 0, output).state == "wrong"
    assert not recwarn.list


GATHER = _call("all_gather", count=5, number=3, seed=1)


@pytest.mark.parametrize("off", [-5, -4, -1, 1, 4])
def test_judge_finds_files_of_a_wrong_length(off: int) -> None:
    whole = _output(_answers(GATHER), 3)
    output = whole[:off] if off < 0 else whole + bytes(off)
    difference = f"{abs(off)} too {'few' if off < 0 else 'many'}"
    assert f"{len(output)} bytes long, expected {len(whole)}: {difference}" in _wrong(GATHER, 3, output)


def test_judge_finds_a_missing_output() -> None:
    assert "rank 3 named no output" in _wrong(GATHER, 3, None)


def test_judge_expects_an_output_of_the_root_of_a_broadcast_and_none_of_the_others_of_a_reduce() -> None:
    assert _with(_call("broadcast", root=2), 2, None).state == "wrong"
    assert _with(_call("reduce", reduction="sum", root=2), 1, b"what was left there").state == "right"


def test_judge_finds_a_barrier_that_was_left_too_early() -> None:
    operation = CollectiveOperation("barrier", 3)
    answers = {
        rank: RankAnswer("done", None, began, began + 0.01) for rank, began in enumerate((1.0, 1.001, 1.02, 1.002))
    }
    judgement = judge(operation, WORLD, answers)
    assert (judgement.state, judgement.rank) == ("wrong", 0)
    assert "rank 0 left the barrier 10 ms before rank 2" in judgement.detail
    answers[2] = RankAnswer("done", None, 1.009, 1.03)
    assert judge(operation, WORLD, answers).state == "right"


def test_judge_expects_the_same_bits_only_where_they_are_promised() -> None:
    operation = _call("all_reduce", "float32", 400, "sum", 3, seed=1)
    orders = (_answers(operation, seed=seed)[3] for seed in range(1, 60))  # lazy: one takes a while
    first = next(orders)
    other = next(answer for answer in orders if answer.output != first.output)
    alike = dict.fromkeys(WORLD.ranks, first)
    mixed = alike | {3: other}
    assert judge(operation, WORLD, mixed).state == "right"
    judgement = judge(operation, WORLD, mixed, same_bits=True)
    assert (judgement.state, judgement.rank) == ("wrong", 3)
    assert "ranks 0 and 3 differ at element" in judgement.detail
    assert judge(operation, WORLD, alike, same_bits=True).state == "right"


# ---- what it looks like


def _guess(
    operation: CollectiveOperation, change: Callable[[dict[int, RankAnswer]], bytes], *earlier: CollectiveOperation
) -> str:
    return _wrong(operation, 2, change(_answers(operation)), earlier=earlier)


@of_each_type
def test_judge_names_a_stale_buffer(name: str) -> None:
    before, now = (_call("all_reduce", name, 100, "sum", number) for number in (60, 70))
    detail = _guess(now, lambda _: _output(_answers(before), 2), before)
    assert "it is the answer to call 60" in detail and "stale" in detail
    given = input_bytes(name, 100, seed=9, call=60, rank=2)
    assert "this rank's input to call 60" in _guess(now, lambda _: given, before)


def _swapped(output: bytes, size: int) -> bytes:
    return output[size : 2 * size] + output[:size] + output[2 * size :]


@of_each_type
def test_judge_names_a_swapped_rank(name: str) -> None:
    size = 50 * TYPES[name].size
    detail = _guess(_call("all_gather", name), lambda answers: _swapped(_output(answers, 2), size))
    assert "it is the data of rank 1, expected that of rank 0" in detail
    scatter, spread = _call("reduce_scatter", name, reduction="sum"), _call("all_to_all", name)
    assert "it is the block of rank 3" in _guess(scatter, lambda answers: _output(answers, 3))
    assert "it is the block of rank 0 for rank 1" in _guess(spread, lambda answers: _output(answers, 1))


SUM = _call("all_reduce", reduction="sum")
VECTORS = [np.frombuffer(input_bytes("int32", 50, seed=9, call=70, rank=rank), "<i4") for rank in WORLD.ranks]


@table(
    "ranks, guess",
    {
        "a missing part": ((0, 1, 2), "the contribution of rank 3 is missing"),
        "a part that is counted twice": ((0, 1, 2, 3, 1), "the contribution of rank 1 is counted twice"),
        "the own input": ([2], "this rank's own input"),
        "the input of another rank": ([0], "the input of rank 0 alone"),
    },
)
def test_judge_names_the_parts_of_a_wrong_sum(ranks: Sequence[int], guess: str) -> None:
    output = np.sum([VECTORS[rank] for rank in ranks], 0, np.int32).tobytes()
    assert guess in _guess(SUM, lambda _: output)


def test_judge_names_a_repeated_byte() -> None:
    assert "every wrong byte is a5" in _guess(SUM, lambda _: b"\xa5" * 200)


def test_judge_uses_the_ranks_of_the_world() -> None:
    group = Group("at west", (4, 7))
    operation = _call("all_gather", group="at west")
    output = _swapped(_output(_answers(operation, group), 7), 200)
    assert "it is the data of rank 7, expected that of rank 4" in _wrong(operation, 7, output, group)


@pytest.mark.parametrize("by", [1, 2, 3, 4, 7, 16])
def test_judge_names_lost_and_doubled_bytes(by: int) -> None:
    operation = _call("broadcast", "float32", 400, root=1)
    output = _output(_answers(operation), 2)
    amount = f"{by} byte{' is' if by == 1 else 's are'}"
    assert f"{amount} lost there" in _wrong(operation, 2, output[:555] + output[555 + by :] + bytes(by))
    assert f"{amount} inserted there" in _wrong(operation, 2, output[:555] + b"\xff" * by + output[555:-by])


def test_judge_does_not_guess_from_noise() -> None:
    chance = np.random.default_rng(1)
    for name, count in (("bfloat16", 1), ("bfloat16", 3), ("int32", 50), ("float64", 1000)):
        before, operation = (_call("all_gather", name, count, number=number) for number in (69, 70))
        noise = chance.integers(0, 256, 4 * count * TYPES[name].size, np.uint8).tobytes()
        assert "it is" not in (detail := _wrong(operation, 2, noise, earlier=(before,))), detail


# ---- answers that are none


@pytest.mark.parametrize(
    ("state", "case"), [("silent", "hang"), ("died", "crash"), ("error", "error"), ("unsupported", "error")]
)
def test_judge_one_rank_without_an_answer(state: str, case: str) -> None:
    answers = _answers(SUM) | {1: RankAnswer(state, message="its words")}  # type: ignore[arg-type]
    judgement = judge(SUM, WORLD, answers)
    assert (judgement.state, judgement.rank) == (case, 1)
    assert "rank 1" in judgement.detail and "its words" in judgement.detail


def test_judge_returns_the_worst_state() -> None:
    states = [RankAnswer("done", bytes(200), 1.0, 2.0), RankAnswer("silent"), RankAnswer("died"), RankAnswer("error")]
    for first, expected in enumerate(("wrong", "hang", "crash", "error")):
        answers = dict(enumerate([*states[first:], *_answers(SUM).values()][:4]))
        assert judge(SUM, WORLD, answers).state == expected
    assert judge(SUM, WORLD, {}).state == "hang"
    everyone = dict.fromkeys(WORLD.ranks, RankAnswer("unsupported", message="no int32"))
    assert judge(SUM, WORLD, everyone).state == "unsupported"


def test_judge_ignores_outputs_that_were_not_kept() -> None:
    operation = _call("all_reduce", reduction="sum", keep=False)
    assert judge(operation, WORLD, dict.fromkeys(WORLD.ranks, RankAnswer("done"))).state == "right"


def test_judge_long_outputs_beyond_a_chunk() -> None:
    count = 300_001
    operation = _call("broadcast", "float32", count)
    good = input_bytes("float32", count, seed=9, call=70, rank=0)
    answers = dict.fromkeys(WORLD.ranks, RankAnswer("done", good))
    assert judge(operation, WORLD, answers).state == "right"
    bad = _flipped(good, 32 * 262_145, 8 * len(good) - 8)
    detail = judge(operation, WORLD, answers | {3: RankAnswer("done", bad, 1.0, 2.0)}).detail
    assert f"2 of {count} elements are wrong, the first is 262145" in detail
