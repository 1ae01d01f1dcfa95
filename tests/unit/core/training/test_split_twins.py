"""Twins of fsdp, hsdp, pipeline, tensor, moe: bytes against closed forms, mistakes, what must be equal."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.core.training import strategies_built
from testbed.core.training.layout import Layout, gpt_tensors
from testbed.core.training.twin import Twin

PAIRS = ("west", "west", "east", "east")
TRIPLE = ("a", "a", "b", "b", "c", "c")


def _twin(name: str, options: dict[str, Any] | None = None, sites: tuple[str, ...] = PAIRS, **fields: Any) -> Twin:
    layers = fields.get("layers", 4)
    return strategies_built.make(name, options or {}, Layout(sites, gpt_tensors(layers), steps=3, **fields))


def _between_sites(twin: Twin, step: int = 1) -> float:
    """Return the bytes that leave the first site in ``step`` for the next one, as gloo's rings move them."""
    sites, total = twin.layout.sites, 0.0
    for it in twin.operations(step):
        count = len(it.ranks)
        if len({sites[rank] for rank in it.ranks}) == 1:
            continue
        match it.kind:
            case "all_reduce" | "reduce_scatter":
                total += 2 * (count - 1) / count * it.byte_count
            case "all_gather":
                total += (count - 1) / count * it.byte_count
            case "all_to_all":
                here = sum(sites[rank] == sites[0] for rank in it.ranks)
                total += here * (count - here) / count * it.byte_count
            case "send":
                total += it.byte_count * (sites[it.ranks[0]] == sites[0])
    return total


def test_fsdp_moves_three_times_the_parameters_and_hsdp_once() -> None:
    fsdp, hsdp = _twin("fsdp"), _twin("hsdp")
    n = fsdp.layout.payload_bytes
    # 0.75 n for each of two gathers, 1.5 n for gloo's reduce_scatter; what is outside the blocks is gathered once.
    outside = 4 * sum(it.elements for it in fsdp.layout.tensors if it.layer is None)
    assert _between_sites(fsdp) == pytest.approx(3 * n - 0.75 * outside)
    assert _between_sites(hsdp) == pytest.approx(n)
    assert _between_sites(_twin("hsdp", sites=TRIPLE)) == pytest.approx(4 / 3 * n), "two rings of three"


def test_shards_are_padded_to_a_multiple_of_the_ranks() -> None:
    six = _twin("fsdp", sites=TRIPLE)
    (embedding,) = (it for it in six.layout.tensors if it.name == "embedding.weight")
    gathered = [it for it in six.operations(1) if it.kind == "all_gather" and it.fragment is None]
    outside = sum(it.elements for it in six.layout.tensors if it.layer is None)
    # 256 rows become 258, and 64 positions 66, of 96 each.
    assert [it.byte_count for it in gathered] == [4 * (outside + 2 * 96 + 2 * 96)]
    assert embedding.rows == 256


def test_a_pipeline_moves_activations_whatever_the_parameters() -> None:
    twin = _twin("pipeline")
    tokens = 4 * 256
    activations, own_windows = tokens * 96 * 4, 2 * 8 * 256
    assert _between_sites(twin) == activations + own_windows
    for count in (1, 2, 8):
        assert _between_sites(_twin("pipeline", {"micro_batches": count})) == activations + own_windows
    three = _twin("pipeline", {"stages": 3, "micro_batches": 6}, TRIPLE, layers=6)
    assert not three.mistakes()
    hops = [it.ranks for it in three.operations(1) if it.what == "activations"]
    assert set(hops) == {(0, 2), (2, 4), (1, 3), (3, 5)} and len(hops) == 4 * 6


def test_a_computed_number_in_flight_is_measured_once_before_the_first_step() -> None:
    assert [it.kind for it in _twin("pipeline").operations(0)] == ["send"] * 2 * 3 * 2 * 2
    assert not _twin("pipeline", {"in_flight": 3}).operations(0)
    assert not _twin("pipeline", {"schedule": "gpipe"}).operations(0)


def test_tensor_in_sites_crosses_the_fiber_as_its_gradients_do() -> None:
    assert _between_sites(_twin("tensor")) == pytest.approx(_twin("tensor").layout.payload_bytes, rel=1e-4)


def test_tensor_across_a_fiber_has_a_warning_with_its_price() -> None:
    twin = _twin("tensor", {"across": True})
    (warning,) = twin.mistakes()
    activations, tokens = 4 * 4 * 512 * 96 * 4, 2 * 512 * 4 / 2
    assert _between_sites(twin) == pytest.approx(2 * (activations + tokens))
    assert warning.warning and warning.option == "across"
    assert "6.3 MB a step" in warning.message and "33 one-way delays" in warning.message, warning.message
    assert "16.5 ms for each 100 km" in warning.message
    assert not _twin("tensor").mistakes()


def test_moe_moves_tokens_four_times_a_layer() -> None:
    layers, r, tokens, hidden = 4, 2, 256, 96
    for k in (1, 2):
        twin = _twin("moe", {"top_k": k})
        trips = sum(it.byte_count for it in twin.operations(1) if it.kind == "all_to_all")
        assert trips == 4 * layers * tokens * k * hidden * 4
        matrices = sum(it.elements for it in twin.layout.tensors if it.name.count(".") == 3 and "ward" in it.name)
        dense = twin.layout.payload_bytes - 4 * matrices + 4 * layers * hidden * 4
        assert _between_sites(twin) == pytest.approx(4 * layers * r * tokens * k * hidden * 4 / 2 + dense, rel=1e-4)
    inside = _twin("moe", {"experts": "site"})
    # Each of a site's two experts is as large as the perceptron of the dense model, and crosses to its like.
    routers = 4 * layers * hidden * 2
    assert _between_sites(inside) == pytest.approx(inside.layout.payload_bytes + 4 * matrices + routers, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "sites", "fields", "words"),
    [
        ("pipeline", {"stages": 3}, PAIRS, {}, ["as many stages as sites", "3 stages do not divide the 4 layers"]),
        ("pipeline", {"stages": 3, "micro_batches": 5}, TRIPLE, {}, ["3 stages do not divide", "5 micro-batches do"]),
        ("pipeline", {"micro_batches": 3}, PAIRS, {}, ["3 micro-batches do not divide the 8 windows"]),
        ("pipeline", {}, ("a", "a", "b"), {}, ["equally many ranks at each site"]),
        ("hsdp", {}, ("a", "a", "b"), {}, ["equally many ranks at each site"]),
        ("tensor", {}, ("a", "a", "a", "b", "b", "b"), {}, ["heads that are a multiple of the 3 ranks"]),
        ("tensor", {}, ("a", "b", "b"), {}, ["equally many ranks at each site"]),
        ("moe", {"top_k": 5}, PAIRS, {}, ["top_k of at most the 4 experts"]),
        ("moe", {"experts": "site", "top_k": 3}, PAIRS, {}, ["top_k of at most the 2 experts"]),
    ],
)
def test_mistakes_are_found_all_at_once_each_with_a_fix(
    name: str, options: dict[str, Any], sites: tuple[str, ...], fields: dict[str, Any], words: list[str]
) -> None:
    found = _twin(name, options, sites, **fields).mistakes()
    assert len(found) == len(words)
    for mistake, word in zip(found, words, strict=True):
        assert word in mistake.message and mistake.fix and not mistake.warning


@pytest.mark.parametrize("name", ["fsdp", "hsdp", "pipeline", "tensor", "moe"])
def test_each_is_restart_only_and_has_no_operations_outside_its_steps(name: str) -> None:
    twin = _twin(name)
    assert not twin.replicated and not twin.mistakes()
    assert not twin.operations(4) and twin.operations(3) == twin.operations(1)
    assert [twin.committed(step) for step in range(4)] == [0, 1, 2, 3]
    assert twin.delays > 0 and twin.longest_gap == 1
    for it in twin.operations(1):
        assert it.byte_count > 0 and len(it.ranks) > 1 and it.byte_count == int(it.byte_count)


def test_one_rank_a_site_moves_nothing_inside() -> None:
    for name in ("fsdp", "hsdp", "pipeline", "tensor", "moe"):
        assert all(len({"ab"[rank] for rank in it.ranks}) == 2 for it in _twin(name, sites=("a", "b")).operations(1))
