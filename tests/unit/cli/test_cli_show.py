"""``testbed show``: what follows from a topology, as tables and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders.cli_fixtures import Call, Cli, cli

__all__ = ["cli"]  # a fixture


def test_show_has_tables_of_facts(cli: Cli) -> None:
    result = cli("show longhaul-1000km", COLUMNS=140)
    assert result.status == 0
    for text in ("Between sites: long-haul", "400G-LH", "10 ms", "ddp", "streaming-diloco", "1 GB of gradients"):
        assert text in result.out
    assert "simulated, without TCP's windows and loss" in result.err


def test_show_of_many_pairs_has_the_farthest(cli: Cli) -> None:
    out = cli("show ring-64", COLUMNS=140).out
    assert "the farthest 10 of 2016" in out
    assert out.count("32 links") == 10


def test_show_json_has_every_fact_in_plain_units(cli: Cli) -> None:
    out = cli("show continental-4000km --json --gradients '16 GB' --compute '4 s'").out
    survey = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["survey"]
    assert survey["radius_class"] == "continental"
    assert survey["gradient_bytes"] == 16e9
    assert survey["links"][0]["spans"] == 50
    assert survey["pairs"] == [
        {"between": ["east", "west"], "via": ["north"], "length_m": 4e6, "rtt_floor_s": pytest.approx(40e-3)}
    ]
    hierarchical = next(way for way in survey["ways"] if way["name"].startswith("hierarchical"))
    least_s = 20e-3 + 16e9 * 8 / (800e9 * 1448 / 1538) / 96  # the fiber, and the last of 96 buckets
    assert least_s < hierarchical["exposed_s"] < least_s + 2e-3, "the rest is the library's"


def test_show_of_one_site_has_no_fibers_to_judge(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "alone.yaml"
    file.write_text("sites: {a: {nodes: 2}}\n")
    result = cli("show", file)
    assert result.status == 0
    assert "Training strategies" not in result.out


@pytest.mark.parametrize("words", ["--gradients heavy", "--compute 0", "--compute soon"])
def test_show_refuses_a_step_that_cannot_be_read(cli: Cli, words: str) -> None:
    result = Call(f"show metro-40km {words}", 2, err=words.split()[0]).check(cli)
    assert "Traceback" not in result.err


def test_show_explains_short_names_of_interfaces(cli: Cli) -> None:
    lines = cli("show bay-area", COLUMNS=140).out.splitlines()
    (line,) = (line for line in lines if line.startswith(" san-francisco-to-santa-clara ") and "-a," in line)
    assert line.split()[1:] == ["san-fra-k7ezu,", "san-fra-k7ezu-a,", "san-fra-k7ezu-b"]
    names = json.loads(cli("show bay-area --json").out)["interfaces"]
    assert (
        names["san-fra-k7ezu-a"] == "san-francisco-to-santa-clara-a" and names["san-f-ivfmf-gw"] == "san-francisco-gw"
    )
    assert "Interfaces" not in cli("show metro-40km").out
    assert json.loads(cli("show metro-40km --json").out)["interfaces"] == {}


@pytest.mark.parametrize("width", [100, 140])  # at 80 a column can be narrower than a word
def test_show_breaks_long_names_between_words(cli: Cli, width: int) -> None:
    shown = cli("show bay-area", COLUMNS=width).out
    assert max(map(len, shown.splitlines())) <= width
    words = {"san", "francisco", "to", "santa", "clara", "sacramento"}
    begun = [line for line in shown.splitlines() if line[1:4] in ("san", "sac") and " - " not in line]
    names = [line.split()[0].partition(".")[0].strip("-") for line in begun]
    assert names and all(set(name.split("-")) <= words for name in names), names
