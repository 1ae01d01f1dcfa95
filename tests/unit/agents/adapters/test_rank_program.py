"""The protocol of docs/validate.md, as the helper implements it for an adapter."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders.rank_programs import (
    FLOATS_AND_INTEGERS,
    REPOSITORY,
    RankProcess,
    Ranks,
    decoded,
    element,
    started,
    vector,
)
from testbed_agents.adapters.elements import generate, narrow, widen

from testbed.core.validation.library import PYTHON
from testbed.core.validation.shipped_libraries import BROKEN_RINGS, SHIPPED

ODD = """
import os, time
from testbed_agents.adapters.helper import Adapter, Offer, main

class Odd(Adapter):
    library, version = "odd", "3"
    offers = {"all_reduce": Offer(("int32",), ("sum",)), "reduce": Offer(("int32",)), "barrier": Offer()}
    offers["send"] = Offer()

    def join(self, world):
        print("joined as", world.rank, flush=True)
        os.write(1, b"not JSON either\\n")
        if world.attempt == 2:
            raise OSError("no route\\n  to host")

    def all_reduce(self, call, given, room):
        if call.count == 13:
            time.sleep(1e6)
        room[:] = given * 2
        return room

    def reduce(self, call, given, room):
        raise ValueError(f"cannot reduce {call.count}")

    def send(self, call, given, room):
        assert call.rank in (call.root, call.to), "a bystander was asked"
        return room if call.rank == call.to else None

    def barrier(self, call):
        pass

main(Odd())
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("program") / "odd.py"
    path.write_text(ODD)
    return [str(path)]


@pytest.fixture(scope="module")
def odd(program: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with started(program, 1, tmp_path_factory.mktemp("odd")) as ranks:
        ranks.join()
        yield ranks


@pytest.fixture
def ending(program: list[str], tmp_path: Path) -> Iterator[Ranks]:
    """One more, for a test that ends it."""
    with started(program, 1, tmp_path) as ranks:
        yield ranks


def test_join_says_who_it_is_and_what_it_offers(ending: Ranks) -> None:
    (answer,) = ending.join()
    assert (answer["do"], answer["attempt"], answer["library"], answer["version"]) == ("join", 1, "odd", "3")
    assert answer["pid"] == ending.ranks[0].process.pid
    assert answer["took_s"] >= 0
    offer = answer["offers"]["all_reduce"]
    assert offer == {"types": ["int32"], "reductions": ["sum"], "same_bits": False}
    assert answer["offers"]["groups"] is False and answer["offers"]["rebuilds"] is False


def test_what_the_library_prints_is_no_answer(odd: Ranks) -> None:
    log = (odd.folder / "rank-0.log").read_text()
    assert "joined as 0" in log and "not JSON either" in log
    _, (answer,) = odd.call("barrier")
    assert "error" not in answer


def test_an_error_is_told_in_one_line_and_the_next_call_is_answered(odd: Ranks) -> None:
    before = time.monotonic()
    call, (answer,) = odd.call("reduce", type="int32", count=4)
    assert answer["call"] == call
    assert answer["error"] == "ValueError: cannot reduce 4"
    assert before <= answer["began"] <= answer["ended"] <= time.monotonic()
    (again,) = odd.join()
    assert again["error"] == "OSError: no route to host" and again["attempt"] == 2 and "ended" in again
    _, (answer,) = odd.call("all_reduce", type="int32", count=4)
    assert "error" not in answer


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        ({"do": "all_gather"}, "odd does not offer all_gather"),
        ({"do": "dance"}, "odd does not offer dance"),
        ({"do": "all_reduce", "type": "float32"}, "all_reduce does not offer float32"),
        ({"do": "all_reduce", "type": "complex64"}, "unknown type complex64"),
        ({"do": "all_reduce", "type": "int32", "reduction": "max"}, "all_reduce does not offer max of int32"),
    ],
)
def test_what_is_not_offered_is_unsupported(odd: Ranks, operation: dict[str, str], why: str) -> None:
    (answer,) = odd.ask({"call": 5, "group": "world", "count": 1, "seed": 1} | operation)
    assert answer["call"] == 5
    assert answer["unsupported"] == why


@pytest.mark.parametrize("line", ["{", "[]", "7", "null", '{"call": 3}', "\x00\xff", '"do"'])
def test_a_line_that_is_no_operation_is_an_error_and_no_end(odd: Ranks, line: str) -> None:
    odd.ranks[0].tell(line)
    assert "error" in odd.ranks[0].hear()
    _, (answer,) = odd.call("barrier")
    assert "error" not in answer


def test_a_group_that_was_not_made_is_an_error(odd: Ranks) -> None:
    _, (answer,) = odd.call("all_reduce", group="north", type="int32", count=1)
    assert "unknown group north" in answer["error"]
    (answer,) = odd.ask({"do": "group", "group": "north", "ranks": [0]})
    assert answer["group"] == "north" and "unsupported" in answer


def test_who_neither_sends_nor_receives_answers_at_once(program: list[str], tmp_path: Path) -> None:
    with started(program, 3, tmp_path) as ranks:
        ranks.join()
        _, answers = ranks.call("send", type="int32", count=3, root=0, to=2)
        assert [("error" in it, "output" in it) for it in answers] == [(False, False), (False, False), (False, True)]


def test_without_keep_nothing_is_written(odd: Ranks) -> None:
    _, (answer,) = odd.call("all_reduce", type="int32", count=3, keep=False)
    assert "output" not in answer
    assert not list(odd.folder.glob(f"{answer['call']}-*"))


@pytest.mark.parametrize("leaves", [True, False], ids=["leave", "the end of its input"])
def test_the_program_ends(ending: Ranks, leaves: bool) -> None:
    if leaves:
        assert ending.ask({"do": "leave"}) == [{"do": "leave"}]
    else:
        ending.ranks[0].end_of_input()
    assert ending.ranks[0].process.wait(timeout=20) == 0


def test_a_hanging_library_does_not_outlive_its_input(ending: Ranks) -> None:
    ending.ranks[0].tell(json.dumps({"do": "all_reduce", "call": 9, "type": "int32", "count": 13}))
    began = time.monotonic()
    ending.ranks[0].end_of_input()
    assert ending.ranks[0].process.wait(timeout=30) == 1
    assert time.monotonic() - began > 4.0  # what is under way is given 5 s


def test_a_launched_rank_speaks_through_fifos(program: list[str], tmp_path: Path) -> None:
    for name in ("0.operations", "0.answers"):
        os.mkfifo(tmp_path / name)
    environment = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "TESTBED_INTERFACE": "lo"}
    environment |= {"TESTBED_ADDRESSES": "127.0.0.1", "TESTBED_LINES": str(tmp_path), "TESTBED_FOLDER": str(tmp_path)}
    rank = RankProcess([sys.executable, *program], environment, tmp_path / "log")
    with contextlib.closing(rank):
        operations = os.open(tmp_path / "0.operations", os.O_RDWR)
        answers = os.open(tmp_path / "0.answers", os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.write(operations, b'{"do": "join", "attempt": 1, "port": 1, "timeout_s": 1}\n')
            assert select.select([answers], [], [], 30)[0]
            assert json.loads(os.read(answers, 1 << 16))["library"] == "odd"
        finally:
            os.close(operations)
            os.close(answers)
        assert rank.process.wait(timeout=20) == 0  # the end of its input, again


@pytest.mark.parametrize("element_type", FLOATS_AND_INTEGERS)
def test_the_input_is_the_one_of_the_protocol(element_type: str) -> None:
    for seed, call, rank in ((0, 0, 0), (5, 7, 3), (2**63 + 11, 10**6, 63)):
        assert np.array_equal(
            decoded(element_type, generate(element_type, 40, seed=seed, call=call, rank=rank).tobytes()),
            vector(element_type, 40, rank, call, seed),
        )
    long = decoded(element_type, generate(element_type, 140_001, seed=5, call=7, rank=3).tobytes())
    for place in (65_535, 65_536, 65_537, 131_072, 140_000):  # where its chunks meet
        assert long[place] == element(element_type, place, 3, 7, 5)


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    torch = pytest.importorskip("torch")
    numbers = np.random.default_rng(3).normal(0, 100, 5000).astype(np.float32)
    halfway = widen(np.arange(0x3F80, 0x4080, dtype=np.uint16)) + np.float32(2.0**-9)
    for given in (numbers, halfway, -halfway, np.zeros(1, np.float32)):
        right = torch.from_numpy(given).to(torch.bfloat16)
        assert np.array_equal(widen(narrow(given)), right.to(torch.float32).numpy())


def test_the_example_is_right_and_can_be_built_again(tmp_path: Path) -> None:
    with started([str(REPOSITORY / "examples" / "validate_my_library.py")], 3, tmp_path) as ranks:
        for _ in range(2):
            assert all("error" not in answer for answer in ranks.join())
            for count in (0, 1, 1001):
                call, answers = ranks.call("all_reduce", type="int64", count=count)
                right = sum(vector("int64", count, rank, call) for rank in range(3))
                for answer in answers:
                    assert np.array_equal(decoded("int64", ranks.output(answer)), right)


def test_each_shipped_library_has_a_program_and_an_extra_that_installs_it() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for library in (*SHIPPED.values(), *BROKEN_RINGS.values()):
        assert library.argv[:2] == (PYTHON, "-m")
        module = REPOSITORY / "agents" / library.argv[2].replace(".", "/")
        assert module.with_suffix(".py").is_file(), library.name
        assert bool(library.install) != bool(library.extra), library.name
        assert not library.extra or library.extra in extras, library.name
