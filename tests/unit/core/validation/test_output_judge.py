"""The judge against answers computed independently: with fractions, by element, in every order of additions."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.rank_inputs import input_bytes
from testbed_agents.adapters.elements import narrow

from testbed.core.validation.elements import TYPES
from testbed.core.validation.operation import OPERATIONS, REDUCING, Group, Operation
from testbed.core.validation.output_judge import Answer, Judgement, judge

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


def _answer(operation: Operation, rank: int, world: int, chance: random.Random) -> bytes | None:
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


def _answers(operation: Operation, group: Group = WORLD, seed: int = 0) -> dict[int, Answer]:
    chance, world = random.Random(seed), len(group.ranks)
    return {
        rank: Answer("done", _answer(operation, number, world, chance), 1.0, 2.0)
        for number, rank in enumerate(group.ranks)
    }


def _with(answers: dict[int, Answer], rank: int, output: bytes | None) -> dict[int, Answer]:
    return answers | {rank: Answer("done", output, 1.0, 2.0)}


def _output(answers: dict[int, Answer], rank: int) -> bytes:
    output = answers[rank].output
    assert output is not None
    return output


# ---- what is right is found right


@pytest.mark.parametrize("do", OPERATIONS)
@pytest.mark.parametrize("name", TYPES)
def test_right_answers_are_right(do: str, name: str) -> None:
    reductions = ("sum", "max", "avg") if do in REDUCING else ("",)
    calls = itertools.count(1)
    for reduction, count, group in itertools.product(
        reductions, (0, 1, 19), (WORLD, Group("some", (5, 2, 3)), Group("one", (1,)))
    ):
        if reduction == "avg" and name in EXACT:
            continue
        root = len(group.ranks) - 1
        operation = Operation(do, next(calls), group.name, name, count, reduction, root, 0, seed=3)  # type: ignore[arg-type]
        for seed in range(2):  # other orders of additions
            found = judge(operation, group, _answers(operation, group, seed))
            assert found == Judgement("right"), (operation, found)


@pytest.mark.parametrize("name", FLOATS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), world=st.integers(2, 24), reduction=st.sampled_from(["sum", "avg"]))
def test_no_order_of_additions_is_called_wrong(name: str, seed: int, world: int, reduction: str) -> None:
    group = Group("world", tuple(range(world)))
    operation = Operation("all_reduce", seed % 1000, "world", name, 12, reduction, seed=seed)  # type: ignore[arg-type]
    assert judge(operation, group, _answers(operation, group, seed)).state == "right"


def test_a_sum_in_float32_that_is_handed_on_rounded_is_right() -> None:
    """As libraries do with bfloat16: each addition in float32, each result rounded to bfloat16."""
    operation = Operation("all_reduce", 3, "world", "bfloat16", 500, "sum", seed=1)
    given = [
        [float(it) for it in _fractions("bfloat16", input_bytes("bfloat16", 500, seed=1, call=3, rank=r))]
        for r in range(4)
    ]
    total = np.zeros(500, np.float32)
    for vector in given:
        total = total + np.array(vector, np.float32)
        total = (narrow(total).astype(np.uint32) << np.uint32(16)).view(np.float32)
    answers = {rank: Answer("done", narrow(total).tobytes()) for rank in WORLD.ranks}
    assert judge(operation, WORLD, answers).state == "right"


# ---- what is wrong is found wrong


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_of_an_exact_answer_is_found(data: st.DataObject) -> None:
    do = data.draw(st.sampled_from([it for it in OPERATIONS if it != "barrier"]))
    exact_floats = do not in REDUCING
    name = data.draw(st.sampled_from(list(TYPES) if exact_floats else EXACT))
    reduction = data.draw(st.sampled_from(["sum", "max"])) if do in REDUCING else ""
    count = data.draw(st.integers(1, 30))
    operation = Operation(do, data.draw(st.integers(1, 10**6)), "world", name, count, reduction, 1, 2, seed=9)  # type: ignore[arg-type]
    answers = _answers(operation)
    rank = data.draw(st.sampled_from([rank for rank, it in answers.items() if it.output is not None]))
    output = bytearray(_output(answers, rank))
    bit = data.draw(st.integers(0, len(output) * 8 - 1))
    output[bit // 8] ^= 1 << bit % 8
    found = judge(operation, WORLD, _with(answers, rank, bytes(output)))
    assert found.state == "wrong" and found.rank == rank
    assert f"rank {rank}: 1 of " in found.detail
    assert f"the first is {bit // 8 // TYPES[name].size}:" in found.detail


@pytest.mark.parametrize("name", FLOATS)
def test_any_flipped_bit_of_a_maximum_is_found(name: str) -> None:
    operation = Operation("all_reduce", 3, "world", name, 3, "max", seed=1)
    answers = _answers(operation)
    good = _output(answers, 2)
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        assert judge(operation, WORLD, _with(answers, 2, bytes(bad))).state == "wrong"


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("reduction", ["sum", "avg"])
def test_the_bound_is_as_wide_as_it_says_and_no_wider(name: str, reduction: str) -> None:
    """gamma(k) sum |x| by fractions: the last value of the type within it is accepted, the first one beyond is not."""
    world, precision = 3, TYPES[name].precision
    group = Group("world", (0, 1, 2))
    operation = Operation("all_reduce", 11, "world", name, 12, reduction, seed=4)  # type: ignore[arg-type]
    given = [_fractions(name, input_bytes(name, 12, seed=4, call=11, rank=r)) for r in range(world)]
    steps = world - 1 if reduction == "sum" else world + 1
    gamma = Fraction(steps, 2**precision) / (1 - Fraction(steps, 2**precision))
    places = 1 if reduction == "sum" else world
    answers = _answers(operation, group)
    right = _fractions(name, _output(answers, 1))
    for index, column in enumerate(itertools.islice(zip(*given, strict=True), 12)):
        exact = sum(column, Fraction(0)) / places
        bound = gamma * sum(map(abs, column)) / places
        if reduction == "avg":
            bound += world * Fraction(2) ** (TYPES[name].smallest_exponent - 1)
        inside, outside = exact, exact
        step = max(bound / 64, Fraction(2) ** -60)
        while abs(_round(name, outside) - exact) <= bound:
            inside, outside = outside, outside + step
        for value, state in ((_round(name, inside), "right"), (_round(name, outside), "wrong")):
            changed = _store(name, [value if place == index else it for place, it in enumerate(right)])
            assert judge(operation, group, _with(answers, 1, changed)).state == state


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, -1e300])
@pytest.mark.parametrize("reduction", ["sum", "avg", "max"])
def test_what_is_no_number_is_wrong(value: float, reduction: str) -> None:
    operation = Operation("all_reduce", 3, "world", "float64", 5, reduction, seed=1)  # type: ignore[arg-type]
    answers = _answers(operation)
    vector = np.frombuffer(_output(answers, 0), "<f8").copy()
    vector[3] = value
    found = judge(operation, WORLD, _with(answers, 0, vector.tobytes()))
    assert found.state == "wrong" and "the first is 3" in found.detail and f"{value:.2g}"[:2] in found.detail


def test_signalling_nans_of_every_type_are_found_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    for name in FLOATS:
        operation = Operation("all_reduce", 3, "world", name, 4, "sum", seed=1)
        answers = _answers(operation)
        size = TYPES[name].size
        pattern = {
            "float16": 0x7D00,
            "bfloat16": 0x7FA0,
            "float32": 0x7FA00000,
            "float64": 0x7FF4000000000000,
        }[name]
        output = pattern.to_bytes(size, "little") + _output(answers, 0)[size:]
        assert judge(operation, WORLD, _with(answers, 0, output)).state == "wrong"
    assert not recwarn.list


@pytest.mark.parametrize("off", [-5, -4, -1, 1, 4])
def test_files_of_a_wrong_length(off: int) -> None:
    operation = Operation("all_gather", 3, "world", "int32", 5, seed=1)
    answers = _answers(operation)
    whole = _output(answers, 3)
    output = whole[:off] if off < 0 else whole + bytes(off)
    found = judge(operation, WORLD, _with(answers, 3, output))
    assert found.state == "wrong" and found.rank == 3
    assert (
        f"{len(output)} bytes long, expected {len(whole)}: {abs(off)} too {'few' if off < 0 else 'many'}"
        in found.detail
    )


def test_no_output_where_one_is_due() -> None:
    operation = Operation("all_gather", 3, "world", "int32", 5, seed=1)
    found = judge(operation, WORLD, _with(_answers(operation), 3, None))
    assert found.state == "wrong" and "rank 3 named no output" in found.detail


def test_the_root_of_a_broadcast_has_an_output_and_the_others_of_a_reduce_have_none() -> None:
    broadcast = Operation("broadcast", 3, "world", "int32", 5, root=2, seed=1)
    assert judge(broadcast, WORLD, _with(_answers(broadcast), 2, None)).state == "wrong"
    reduce = Operation("reduce", 4, "world", "int32", 5, "sum", root=2, seed=1)
    assert judge(reduce, WORLD, _with(_answers(reduce), 1, b"what was left there")).state == "right"


def test_a_barrier_that_was_left_too_early() -> None:
    operation = Operation("barrier", 3)
    answers = {rank: Answer("done", None, began, began + 0.01) for rank, began in enumerate((1.0, 1.001, 1.02, 1.002))}
    found = judge(operation, WORLD, answers)
    assert found.state == "wrong" and found.rank == 0 and "rank 0 left the barrier 10 ms before rank 2" in found.detail
    answers[2] = Answer("done", None, 1.009, 1.03)
    assert judge(operation, WORLD, answers).state == "right"


# ---- the same bits


def test_the_same_bits_are_asked_for_only_where_they_are_promised() -> None:
    operation = Operation("all_reduce", 3, "world", "float32", 400, "sum", seed=1)
    answers = _answers(operation, seed=1)
    other = next(
        it for it in (_answers(operation, seed=seed) for seed in range(2, 60)) if it[3].output != answers[0].output
    )
    mixed = dict.fromkeys((0, 1, 2), answers[0]) | {3: other[3]}
    assert judge(operation, WORLD, mixed).state == "right"
    found = judge(operation, WORLD, mixed, same_bits=True)
    assert found.state == "wrong" and found.rank == 3 and "ranks 0 and 3 differ at element" in found.detail
    assert judge(operation, WORLD, dict.fromkeys(WORLD.ranks, answers[0]), same_bits=True).state == "right"


# ---- what it looks like


def _guess(operation: Operation, change: Callable[[dict[int, Answer]], bytes], *earlier: Operation) -> str:
    answers = _answers(operation)
    found = judge(operation, WORLD, _with(answers, 2, change(answers)), earlier=earlier)
    assert found.state == "wrong" and found.rank == 2
    return found.detail


@pytest.mark.parametrize("name", TYPES)
def test_a_stale_buffer_is_named(name: str) -> None:
    before = Operation("all_reduce", 60, "world", name, 100, "sum", seed=9)
    now = Operation("all_reduce", 70, "world", name, 100, "sum", seed=9)
    detail = _guess(now, lambda _: _output(_answers(before), 2), before)
    assert "it is the answer to call 60" in detail and "stale" in detail
    given = input_bytes(name, 100, seed=9, call=60, rank=2)
    assert "this rank's input to call 60" in _guess(now, lambda _: given, before)


@pytest.mark.parametrize("name", TYPES)
def test_a_swapped_rank_is_named(name: str) -> None:
    gather = Operation("all_gather", 70, "world", name, 50, seed=9)
    size = 50 * TYPES[name].size
    detail = _guess(
        gather, lambda it: _output(it, 2)[size : 2 * size] + _output(it, 2)[:size] + _output(it, 2)[2 * size :]
    )
    assert "it is the data of rank 1, expected that of rank 0" in detail
    scatter = Operation("reduce_scatter", 71, "world", name, 50, "sum", seed=9)
    assert "it is the block of rank 3" in _guess(scatter, lambda it: _output(it, 3))
    spread = Operation("all_to_all", 72, "world", name, 50, seed=9)
    assert "it is the block of rank 0 for rank 1" in _guess(spread, lambda it: _output(it, 1))


def test_a_part_that_is_missing_or_counted_twice_is_named() -> None:
    operation = Operation("all_reduce", 70, "world", "int32", 50, "sum", seed=9)
    vectors = [np.frombuffer(input_bytes("int32", 50, seed=9, call=70, rank=r), "<i4") for r in range(4)]
    assert "the contribution of rank 3 is missing" in _guess(
        operation, lambda _: np.sum(vectors[:3], 0, np.int32).tobytes()
    )
    assert "the contribution of rank 1 is counted twice" in _guess(
        operation, lambda _: np.sum([*vectors, vectors[1]], 0, np.int32).tobytes()
    )
    assert "this rank's own input" in _guess(operation, lambda _: vectors[2].tobytes())
    assert "the input of rank 0 alone" in _guess(operation, lambda _: vectors[0].tobytes())
    assert "every wrong byte is a5" in _guess(operation, lambda _: b"\xa5" * 200)


def test_names_are_those_of_the_world() -> None:
    group = Group("at west", (4, 7))
    operation = Operation("all_gather", 70, "at west", "int32", 50, seed=9)
    answers = _answers(operation, group)
    first, second = _output(answers, 7)[:200], _output(answers, 7)[200:]
    found = judge(operation, group, _with(answers, 7, second + first))
    assert found.rank == 7 and "it is the data of rank 7, expected that of rank 4" in found.detail


@pytest.mark.parametrize("by", [1, 2, 3, 4, 7, 16])
def test_lost_and_doubled_bytes_are_named(by: int) -> None:
    operation = Operation("broadcast", 70, "world", "float32", 400, root=1, seed=9)
    detail = _guess(operation, lambda it: _output(it, 2)[:555] + _output(it, 2)[555 + by :] + bytes(by))
    assert f"{by} byte{' is' if by == 1 else 's are'} lost there" in detail
    detail = _guess(operation, lambda it: _output(it, 2)[:555] + b"\xff" * by + _output(it, 2)[555:-by])
    assert f"{by} byte{' is' if by == 1 else 's are'} inserted there" in detail


def test_a_guess_is_not_made_of_nothing() -> None:
    chance = np.random.default_rng(1)
    for name, count in (("bfloat16", 1), ("bfloat16", 3), ("int32", 50), ("float64", 1000)):
        before = Operation("all_gather", 69, "world", name, count, seed=9)
        operation = Operation("all_gather", 70, "world", name, count, seed=9)
        noise = chance.integers(0, 256, 4 * count * TYPES[name].size, np.uint8).tobytes()
        assert "it is" not in (detail := _guess(operation, lambda _, it=noise: it, before)), detail  # type: ignore[misc]


# ---- answers that are none


@pytest.mark.parametrize(
    ("state", "case"), [("silent", "hang"), ("died", "crash"), ("error", "error"), ("unsupported", "error")]
)
def test_one_rank_without_an_answer(state: str, case: str) -> None:
    operation = Operation("all_reduce", 70, "world", "int32", 50, "sum", seed=9)
    answers = _answers(operation) | {1: Answer(state, message="its words")}  # type: ignore[arg-type]
    found = judge(operation, WORLD, answers)
    assert found.state == case and found.rank == 1 and "rank 1" in found.detail and "its words" in found.detail


def test_the_worst_comes_first() -> None:
    operation = Operation("all_reduce", 70, "world", "int32", 50, "sum", seed=9)
    wrong = Answer("done", bytes(200), 1.0, 2.0)
    states: list[Answer] = [wrong, Answer("silent"), Answer("died"), Answer("error")]
    expected = ["wrong", "hang", "crash", "error"]
    for first in range(4):
        answers = dict(enumerate([*states[first:], *_answers(operation).values()][:4]))
        assert judge(operation, WORLD, answers).state == expected[first]
    assert judge(operation, WORLD, {}).state == "hang"
    everyone = {rank: Answer("unsupported", message="no int32") for rank in WORLD.ranks}
    assert judge(operation, WORLD, everyone).state == "unsupported"


def test_nothing_is_looked_at_that_was_not_kept() -> None:
    operation = Operation("all_reduce", 70, "world", "int32", 50, "sum", seed=9, keep=False)
    assert judge(operation, WORLD, {rank: Answer("done") for rank in WORLD.ranks}).state == "right"


def test_long_outputs_are_judged_beyond_a_chunk() -> None:
    count = 300_001
    operation = Operation("broadcast", 70, "world", "float32", count, root=0, seed=9)
    good = input_bytes("float32", count, seed=9, call=70, rank=0)
    answers = {rank: Answer("done", good) for rank in WORLD.ranks}
    assert judge(operation, WORLD, answers).state == "right"
    bad = bytearray(good)
    bad[4 * 262_145] ^= 1
    bad[-1] ^= 1
    detail = judge(operation, WORLD, _with(answers, 3, bytes(bad))).detail
    assert f"2 of {count} elements are wrong, the first is 262145" in detail
