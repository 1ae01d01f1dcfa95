"""Twins of fsdp, hsdp, pipeline, tensor, moe: bytes against closed forms, mistakes, what must be equal."""

from __future__ import annotations

import pytest
from builders.tables import table
from builders.twins import twin

from testbed.core.training.twin import Twin

PAIRS, TRIPLE = "west west east east", "a a b b c c"
NAMES = ("fsdp", "hsdp", "pipeline", "tensor", "moe")


def _between_sites(strategy: Twin) -> float:
    """Return the bytes that leave the first site in a step for the next one, as gloo's rings move them."""
    sites, total = strategy.layout.sites, 0.0
    for operation in strategy.operations(1):
        count, byte_count = len(operation.ranks), operation.byte_count
        if len({sites[rank] for rank in operation.ranks}) == 1:
            continue
        match operation.kind:
            case "all_reduce" | "reduce_scatter":
                total += 2 * (count - 1) / count * byte_count
            case "all_gather":
                total += (count - 1) / count * byte_count
            case "all_to_all":
                here = sum(sites[rank] == sites[0] for rank in operation.ranks)
                total += here * (count - here) / count * byte_count
            case "send":
                total += byte_count * (sites[operation.ranks[0]] == sites[0])
    return total


def test_fsdp_moves_three_times_the_parameters_and_hsdp_once() -> None:
    fsdp = twin("fsdp")
    n = fsdp.layout.payload_bytes
    # 0.75 n for each of two gathers, 1.5 n for gloo's reduce_scatter; what is outside the blocks is gathered once.
    outside = 4 * sum(tensor.elements for tensor in fsdp.layout.tensors if tensor.layer is None)
    assert _between_sites(fsdp) == pytest.approx(3 * n - 0.75 * outside)
    assert _between_sites(twin("hsdp")) == pytest.approx(n)
    assert _between_sites(twin("hsdp", TRIPLE)) == pytest.approx(4 / 3 * n), "two rings of three"


def test_fsdp_shards_are_padded_to_a_multiple_of_the_ranks() -> None:
    six = twin("fsdp", TRIPLE)
    (rows,) = (tensor.rows for tensor in six.layout.tensors if tensor.name == "embedding.weight")
    gathered = [
        operation.byte_count
        for operation in six.operations(1)
        if operation.kind == "all_gather" and operation.fragment is None
    ]
    outside = sum(tensor.elements for tensor in six.layout.tensors if tensor.layer is None)
    # 256 rows become 258, and 64 positions 66, of 96 each.
    assert gathered == [4 * (outside + 2 * 96 + 2 * 96)]
    assert rows == 256


def test_a_pipeline_moves_activations_whatever_the_parameters() -> None:
    activations, own_windows = 4 * 256 * 96 * 4, 2 * 8 * 256
    for words in ("", ":micro_batches=1", ":micro_batches=2", ":micro_batches=8"):
        assert _between_sites(twin(f"pipeline{words}")) == activations + own_windows
    three = twin("pipeline:stages=3,micro_batches=6", TRIPLE, layers=6)
    assert not three.mistakes()
    hops = [operation.ranks for operation in three.operations(1) if operation.what == "activations"]
    assert set(hops) == {(0, 2), (2, 4), (1, 3), (3, 5)} and len(hops) == 4 * 6


def test_a_computed_number_in_flight_is_measured_once_before_the_first_step() -> None:
    assert [operation.kind for operation in twin("pipeline").operations(0)] == ["send"] * 2 * 3 * 2 * 2
    for words in ("in_flight=3", "schedule=gpipe"):
        assert not twin(f"pipeline:{words}").operations(0)


def test_tensor_in_sites_crosses_the_fiber_as_its_gradients_do() -> None:
    tensor = twin("tensor")
    assert _between_sites(tensor) == pytest.approx(tensor.layout.payload_bytes, rel=1e-4)
    assert not tensor.mistakes()


def test_tensor_across_a_fiber_has_a_warning_with_its_price() -> None:
    across = twin("tensor:across=true")
    (warning,) = across.mistakes()
    activations, tokens = 4 * 4 * 512 * 96 * 4, 2 * 512 * 4 / 2
    assert _between_sites(across) == pytest.approx(2 * (activations + tokens))
    assert warning.warning and warning.option == "across"
    for price in ("6.3 MB a step", "64 one-way delays", "32 ms for each 100 km"):
        assert price in warning.message


def test_moe_moves_tokens_four_times_a_layer() -> None:
    layers, r, tokens, hidden = 4, 2, 256, 96
    for k in (1, 2):
        moe = twin(f"moe:top_k={k}")
        trips = sum(operation.byte_count for operation in moe.operations(1) if operation.kind == "all_to_all")
        assert trips == 4 * layers * tokens * k * hidden * 4
        matrices = sum(
            tensor.elements for tensor in moe.layout.tensors if tensor.name.count(".") == 3 and "ward" in tensor.name
        )
        dense = moe.layout.payload_bytes - 4 * matrices + 4 * layers * hidden * 4
        assert _between_sites(moe) == pytest.approx(4 * layers * r * tokens * k * hidden * 4 / 2 + dense, rel=1e-4)
    inside = twin("moe:experts=site")
    # Each of a site's two experts is as large as the perceptron of the dense model, and crosses to its like.
    routers = 4 * layers * hidden * 2
    assert _between_sites(inside) == pytest.approx(inside.layout.payload_bytes + 4 * matrices + routers, rel=1e-4)


EQUAL_SITES = "equally many ranks at each site"


@table(
    "words, sites, messages",
    {
        "stages that divide neither sites nor layers": (
            "pipeline:stages=3",
            PAIRS,
            ["as many stages as sites", "3 stages do not divide the 4 layers"],
        ),
        "stages and micro-batches that do not divide": (
            "pipeline:stages=3,micro_batches=5",
            TRIPLE,
            ["3 stages do not divide", "5 micro-batches do"],
        ),
        "micro-batches that do not divide the windows": (
            "pipeline:micro_batches=3",
            PAIRS,
            ["3 micro-batches do not divide the 8 windows"],
        ),
        "a pipeline over unequal sites": ("pipeline", "a a b", [EQUAL_SITES]),
        "hsdp over unequal sites": ("hsdp", "a a b", [EQUAL_SITES]),
        "heads that ranks do not divide": ("tensor", "a a a b b b", ["heads that are a multiple of the 3 ranks"]),
        "tensor over unequal sites": ("tensor", "a b b", [EQUAL_SITES]),
        "more experts per token than there are": ("moe:top_k=5", PAIRS, ["top_k of at most the 4 experts"]),
        "more experts than a site has": ("moe:experts=site,top_k=3", PAIRS, ["top_k of at most the 2 experts"]),
    },
)
def test_mistakes_are_found_all_at_once_each_with_a_fix(words: str, sites: str, messages: list[str]) -> None:
    mistakes = twin(words, sites).mistakes()
    assert len(mistakes) == len(messages)
    for mistake, message in zip(mistakes, messages, strict=True):
        assert message in mistake.message and mistake.fix and not mistake.warning


@pytest.mark.parametrize("name", NAMES)
def test_each_is_restart_only_and_has_no_operations_outside_its_steps(name: str) -> None:
    strategy = twin(name, steps=3)
    assert not strategy.replicated and not strategy.mistakes()
    assert not strategy.operations(4) and strategy.operations(3) == strategy.operations(1)
    assert [*map(strategy.committed, range(4))] == [0, 1, 2, 3]
    assert strategy.longest_gap == 1
    for operation in strategy.operations(1):
        assert len(operation.ranks) > 1 and 0 < operation.byte_count == int(operation.byte_count)


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_a_site_moves_nothing_inside(name: str) -> None:
    assert all(len(set(operation.ranks)) == 2 for operation in twin(name, "a b").operations(1))
