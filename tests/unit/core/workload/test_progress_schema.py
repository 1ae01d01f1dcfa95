"""``progress:`` as users write it: what is taken, and every mistake at its line."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from builders.inputs import by_input
from builders.tables import table
from hypothesis import given
from hypothesis import strategies as st

from testbed.core import yamltext
from testbed.core.topology.topology_schema import Mistakes, Written
from testbed.core.workload import progress_schema
from testbed.core.workload.progress_presets import PRESETS
from testbed.core.workload.progress_source import (
    Calls,
    CsvFile,
    Endpoint,
    EventFiles,
    LinePattern,
    Progress,
    Sources,
    to_dict,
)
from testbed.errors import FileMistakes

names = st.text("abcdefgh_/", min_size=1, max_size=10)
tokens = st.none() | st.integers(1, 10**12).map(float)
paths = st.sampled_from(["a.csv", "runs/{rank}/x", "$TESTBED_FOLDER/y.csv", "$TESTBED_SCRATCH/z"])


@st.composite
def sources(draw: st.DrawFn, step: st.SearchStrategy[str | None]) -> tuple[Sources, float | None]:
    kind = draw(st.sampled_from(["none", "number", "name", "seen"]))
    named = draw(names)
    others = draw(st.dictionaries(st.sampled_from(["lr", "grad_norm"]), names))
    found = Sources(
        draw(step),
        draw(st.none() | names),
        named if kind == "name" else None,
        named if kind == "seen" else None,
        others,
    )
    return found, draw(tokens) if kind == "number" else None


progresses = st.one_of(
    st.builds(Calls, tokens),
    st.builds(
        lambda texts, per_step, every: LinePattern(tuple(texts), per_step, every),
        st.lists(st.sampled_from([r"a (?P<step>\d+)", r"b (?P<train_loss>[\d.]+)"]), min_size=1, max_size=8),
        tokens,
        st.none() | st.integers(1, 1000),
    ),
    st.builds(
        lambda name, per_step: LinePattern(PRESETS[name].patterns, per_step, None, name, PRESETS[name].environment),
        st.sampled_from(sorted(PRESETS)),
        tokens,
    ),
    st.builds(lambda p, s, t: CsvFile(p, s[0], t, s[1]), paths, sources(names), st.none() | names),
    st.builds(lambda p, s: EventFiles(p, s[0], s[1]), paths, sources(st.none())),
    st.builds(lambda p, s: Endpoint(p, s[0], s[1]), st.integers(1, 65535), sources(names)),
)


@given(progresses)
def test_what_is_written_is_read_back(progress: Progress) -> None:
    assert progress_schema.parse_value(to_dict(progress)) == progress


@pytest.mark.parametrize("name", ["nanogpt", "torchtitan", "hf-trainer", "lightning"])
def test_presets_ship(name: str) -> None:
    found = progress_schema.parse_value(name)
    assert isinstance(found, LinePattern) and found.preset == name
    assert progress_schema.parse_words([name, "tokens=64K"]) == progress_schema.parse_value(
        {"preset": name, "tokens": 64_000}
    )


@by_input(
    "text, expected",
    {
        "nanogtp": "1 unknown preset 'nanogtp'; did you mean nanogpt",
        "7": "1 progress: expected a preset or a mapping",
        "{}": "1 expected a preset or a mapping",
        "\n  line: '(?P<step>(a+)+)b'\n  tokns: 3\n  every: 0": "2 exponentially | 3 tokens | 4 0",
        "\n  line:\n    - '(?P<step>x)'\n    - 'no group'": "4 no named group",
        "\n  line: '(?P<step>x) (?P<tokens>y)'\n  tokens: 5": "3 both a number and the group tokens",
        "\n  csv: a\n  tensorboard: b": "3 both csv and tensorboard",
        "\n  csv: ../a": "2 below the working directory",
        "\n  csv: /etc/passwd": "2 below the working directory",
        "\n  csv: a/{rnk}": "2 unknown placeholder {rnk}",
        "\n  csv: a/{rank.x}": "2 unknown placeholder {rank.x}",
        "\n  csv: a/{": "2 unknown placeholder",
        "\n  csv: $HOME/a": "2 unknown folder '$HOME'",
        "\n  csv: a\n  tokens: t\n  tokens_seen: t": "3 both tokens and tokens_seen",
        "\n  csv: a\n  also: {rank: x, lr: 7}": "3 cannot be named 'rank' | 3 expected a name",
        "\n  prometheus: 99999\n  step: s": "2 99999 is out of range",
        "\n  prometheus: 9100": "1 has no step",
        "\n  prometheus: 9100\n  setp: s": "1 has no step | 3 did you mean step",
        "\n  tensorboard: '.'": "2 expected a path",
    },
)
def test_each_mistake_is_at_its_line(text: str, expected: str) -> None:
    """``expected``: line and part of the message, with a bar between mistakes."""
    document = yamltext.read(f"progress: {text}\n".encode(), "x.yaml")
    noted = Mistakes(Written(document))
    assert progress_schema.parse(document.data["progress"], ("progress",), noted) is None
    mistakes = sorted((finding.line, f"{finding.message}; {finding.fix}") for finding in noted.findings)
    assert all(finding.file == "x.yaml" for finding in noted.findings)
    for (line, message), words in zip(mistakes, expected.split(" | "), strict=True):
        number, _, part = words.partition(" ")
        assert line == int(number) and part in message


@by_input(
    "line, progress",
    {
        "": None,
        r"'step=(?P<step>\d+)'": LinePattern((r"step=(?P<step>\d+)",)),  # a pattern, and no key
        r"'line=a (?P<step>\d+)' 'b (?P<lr>\d+)'": LinePattern((r"a (?P<step>\d+)", r"b (?P<lr>\d+)")),
        "csv=a.csv step=i tokens=4096": CsvFile("a.csv", Sources(step="i"), None, 4096.0),
        "prometheus=9100 step=s also=lr:rate": Endpoint(9100, Sources(step="s", others={"lr": "rate"})),
        "hf-trainer every=10": replace(PRESETS["hf-trainer"], every=10),
        "calls": Calls(),
    },
)
def test_parse_words_of_the_command_line(line: str, progress: Progress | None) -> None:
    assert progress_schema.parse_words(shlex.split(line)) == progress


@by_input(
    "line, said",
    {
        "nanogtp": "did you mean nanogpt",
        "cvs=a": "did you mean csv",
        "nanogpt lightning": "given twice",
        "nanogpt csv=a": "both",
        "tokens=5": "preset",
        "hf-trainer every=x": "whole number",
    },
)
def test_parse_words_with_mistakes(line: str, said: str) -> None:
    with pytest.raises(FileMistakes, match=r"^--progress: ") as error:
        progress_schema.parse_words(line.split())
    assert said in str(error.value)


@table(
    "value, said",
    {
        "a path that cannot be filled in": ({"csv": "{rank!x}.csv"}, r"unknown placeholder \{rank!x\}"),
        "an endpoint without the name of its step": ({"prometheus": 9100, "step": None}, "has no step"),
    },
)
def test_parse_value_that_is_refused(value: object, said: str) -> None:
    with pytest.raises(FileMistakes, match=said):
        progress_schema.parse_value(value)


@pytest.mark.parametrize("key", ["every", "prometheus"])
def test_parse_words_with_more_digits_than_python_reads(key: str) -> None:
    with pytest.raises(FileMistakes):
        progress_schema.parse_words([f"{key}={'9' * 5000}"])
