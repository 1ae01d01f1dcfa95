"""``progress:`` as users write it: what is taken, and every mistake at its line."""

from __future__ import annotations

from typing import Any

import pytest
from builders.inputs import by_input
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


def mistakes(text: str) -> list[tuple[int, str]]:
    document = yamltext.read(text.encode(), "x.yaml")
    noted = Mistakes(Written(document))
    assert progress_schema.parse(document.data["progress"], ("progress",), noted) is None
    assert all(it.file == "x.yaml" for it in noted.findings)
    return [(it.line, it.message + "; " + it.fix) for it in noted.findings]


@by_input(
    "text, expected",
    {
        "progress: nanogtp": [(1, "unknown preset 'nanogtp'; did you mean nanogpt")],
        "progress: 7": [(1, "progress: expected a preset or a mapping")],
        "progress: {}": [(1, "expected a preset or a mapping")],
        "progress:\n  line: '(?P<step>(a+)+)b'\n  tokns: 3\n  every: 0\n": [
            (2, "exponentially"),
            (3, "tokens"),
            (4, "0"),
        ],
        "progress:\n  line:\n    - '(?P<step>x)'\n    - 'no group'\n": [(4, "no named group")],
        "progress:\n  line: '(?P<step>x) (?P<tokens>y)'\n  tokens: 5\n": [(3, "both a number and the group tokens")],
        "progress:\n  csv: a\n  tensorboard: b\n": [(3, "both csv and tensorboard")],
        "progress:\n  csv: ../a\n": [(2, "below the working directory")],
        "progress:\n  csv: /etc/passwd\n": [(2, "below the working directory")],
        "progress:\n  csv: a/{rnk}\n": [(2, "unknown placeholder {rnk}")],
        "progress:\n  csv: a/{rank.x}\n": [(2, "unknown placeholder {rank.x}")],
        "progress:\n  csv: a/{\n": [(2, "unknown placeholder")],
        "progress:\n  csv: $HOME/a\n": [(2, "unknown folder '$HOME'")],
        "progress:\n  csv: a\n  tokens: t\n  tokens_seen: t\n": [(3, "both tokens and tokens_seen")],
        "progress:\n  csv: a\n  also: {rank: x, lr: 7}\n": [(3, "cannot be named 'rank'"), (3, "expected a name")],
        "progress:\n  prometheus: 99999\n  step: s\n": [(2, "99999 is out of range")],
        "progress:\n  prometheus: 9100\n": [(1, "has no step")],
        "progress:\n  prometheus: 9100\n  setp: s\n": [(1, "has no step"), (3, "did you mean step")],
        "progress:\n  tensorboard: '.'\n": [(2, "expected a path")],
    },
)
def test_each_mistake_is_at_its_line(text: str, expected: list[tuple[int, str]]) -> None:
    found = sorted(mistakes(text))
    assert [line for line, _ in found] == [line for line, _ in expected]
    for (_, said), (_, part) in zip(found, expected, strict=True):
        assert part in said


def test_the_command_line() -> None:
    words: Any = progress_schema.parse_words
    assert words([]) is None
    assert words([r"step=(?P<step>\d+)"]) == LinePattern((r"step=(?P<step>\d+)",)), "a pattern, and no key"
    assert words([r"line=a (?P<step>\d+)", r"b (?P<lr>\d+)"]) == LinePattern((r"a (?P<step>\d+)", r"b (?P<lr>\d+)"))
    assert words(["csv=a.csv", "step=i", "tokens=4096"]) == CsvFile("a.csv", Sources(step="i"), None, 4096.0)
    assert words(["prometheus=9100", "step=s", "also=lr:rate"]) == Endpoint(
        9100, Sources(step="s", others={"lr": "rate"})
    )
    assert words(["hf-trainer", "every=10"]).every == 10
    assert words(["calls"]) == Calls()


@pytest.mark.parametrize(
    "words, part",
    [
        (["nanogtp"], "did you mean nanogpt"),
        (["cvs=a"], "did you mean csv"),
        (["nanogpt", "lightning"], "given twice"),
        (["nanogpt", "csv=a"], "both"),
        (["tokens=5"], "preset"),
        (["hf-trainer", "every=x"], "whole number"),
    ],
)
def test_mistakes_of_the_command_line(words: list[str], part: str) -> None:
    with pytest.raises(FileMistakes, match=r"^--progress: ") as error:
        progress_schema.parse_words(words)
    assert part in str(error.value)


def test_a_path_that_cannot_be_filled_in_is_refused() -> None:
    with pytest.raises(FileMistakes, match=r"unknown placeholder \{rank!x\}"):
        progress_schema.parse_value({"csv": "{rank!x}.csv"})


def test_an_endpoint_needs_a_step_that_has_a_name() -> None:
    with pytest.raises(FileMistakes, match="has no step"):
        progress_schema.parse_value({"prometheus": 9100, "step": None})


@pytest.mark.parametrize("word", ["every=" + "9" * 5000, "prometheus=" + "9" * 5000])
def test_more_digits_than_python_reads(word: str) -> None:
    with pytest.raises(FileMistakes):
        progress_schema.parse_words([word])
