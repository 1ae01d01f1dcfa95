"""``testbed show``: what follows from a topology, as tables and as JSON."""

from __future__ import annotations

import json

import pytest
from builders.cli_fixtures import Cli, cli

__all__ = ["cli"]  # a fixture


def test_the_tables_of_facts(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    said = cli("show", "longhaul-1000km")
    assert said.status == 0
    for words in ("Between sites: long-haul", "400G-LH", "10 ms", "ddp", "streaming-diloco", "1 GB of gradients"):
        assert words in said.out
    assert "by closed forms" in said.err


def test_of_many_pairs_the_farthest_are_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    said = cli("show", "ring-64")
    assert "the farthest 10 of 2016" in said.out
    assert said.out.count("32 links") == 10


def test_json_has_every_fact_in_plain_units(cli: Cli) -> None:
    said = cli("show", "continental-4000km", "--json", "--gradients", "16 GB", "--compute", "4 s")
    survey = json.loads(said.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["survey"]
    assert survey["radius_class"] == "continental"
    assert survey["gradient_bytes"] == 16e9
    assert survey["links"][0]["spans"] == 50
    assert survey["pairs"] == [
        {"between": ["east", "west"], "via": ["north"], "length_m": 4e6, "rtt_floor_s": pytest.approx(40e-3)}
    ]
    hierarchical = next(way for way in survey["ways"] if way["name"].startswith("hierarchical"))
    assert hierarchical["exposed_s"] == pytest.approx(20e-3 + 16e9 * 8 / (800e9 * 1448 / 1538) / 24)


def test_a_lab_of_one_site_has_no_fibers_to_judge(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("show") / "alone.yaml"
    file.write_text("sites: {a: {nodes: 2}}\n")
    said = cli("show", str(file))
    assert said.status == 0
    assert "Training strategies" not in said.out


@pytest.mark.parametrize("words", [("--gradients", "heavy"), ("--compute", "0"), ("--compute", "soon")])
def test_a_step_that_cannot_be_read(cli: Cli, words: tuple[str, str]) -> None:
    said = cli("show", "metro-40km", *words)
    assert said.status == 2
    assert words[0] in said.err
    assert "Traceback" not in said.err


def test_short_names_of_interfaces_are_shown_with_what_they_stand_for(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    shown = cli("show", "bay-area").out
    (line,) = (it for it in shown.splitlines() if it.startswith(" san-francisco-to-santa-clara ") and "-a," in it)
    assert line.split()[1:] == ["san-fra-k7ezu,", "san-fra-k7ezu-a,", "san-fra-k7ezu-b"]
    told = json.loads(cli("show", "bay-area", "--json").out)["interfaces"]
    assert told["san-fra-k7ezu-a"] == "san-francisco-to-santa-clara-a" and told["san-f-ivfmf-gw"] == "san-francisco-gw"
    assert "Interfaces" not in cli("show", "metro-40km").out
    assert json.loads(cli("show", "metro-40km", "--json").out)["interfaces"] == {}


@pytest.mark.parametrize("width", [100, 140])  # at 80 a column can be narrower than a word
def test_tables_of_long_names_break_between_words(cli: Cli, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = cli("show", "bay-area").out
    assert max(map(len, shown.splitlines())) <= width
    words = {"san", "francisco", "to", "santa", "clara", "sacramento"}
    begun = [line for line in shown.splitlines() if line[1:4] in ("san", "sac") and " - " not in line]
    names = [line.split()[0].partition(".")[0].strip("-") for line in begun]
    assert names and all(set(name.split("-")) <= words for name in names), names
