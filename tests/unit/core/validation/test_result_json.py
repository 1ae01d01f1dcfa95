"""A baseline is a user's file: all mistakes in it are reported at once, without a traceback."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from typing import Any

import pytest
from builders import validation_factory as factory
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.validation.baseline import compare
from testbed.core.validation.result_json import from_json, to_json

GOOD = to_json(factory.validation())


def _changed(*changes: tuple[str, Any]) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    for path, value in changes:
        *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
        place: Any = document
        for part in way:
            place = place[part]
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("libraries.0.speeds.0.median_s", "0.1", "valid number"),
        ("libraries.0.speeds.0.size", True, "valid integer"),
        ("libraries.0.speeds.0.size", 1.5, "integer"),
        ("libraries.0.speeds.0.times_s", {"a": 1}, "array"),
        ("libraries.0.cells.0.outcome", "fine", "Input should be 'right'"),
        ("libraries.0.cases.0.state", None, "Input should be 'right'"),
        ("libraries.0.name", 3, "valid string"),
        ("took_s", "1", "valid number"),
        ("took_s", math.nan, "expected a finite number"),
        ("started_unix_s", math.inf, "expected a finite number"),
        ("started_unix_s", None, "valid number"),
        ("certified", "yes", "valid boolean"),
        ("links", {"north:east": {"delay_s": "5 ms"}}, "valid number"),
        ("links", [], "object"),
    ],
)
def test_a_mistake_is_named_with_its_place(path: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=r".*") as caught:
        from_json(_changed((path, value)))
    assert path in str(caught.value) and words in str(caught.value)


def test_all_mistakes_at_once() -> None:
    with pytest.raises(ValueError, match="took_s") as caught:
        from_json(_changed(("took_s", "x"), ("certified", 3), ("libraries.0.name", None)))
    assert all(place in str(caught.value) for place in ("took_s", "certified", "libraries.0.name"))
    many = [("libraries", [{}] * 30)]
    with pytest.raises(ValueError, match=r"and \d+ more"):
        from_json(_changed(*many))


def test_two_libraries_of_one_name() -> None:
    twice = _changed(("libraries", GOOD["libraries"][:1] * 2))
    with pytest.raises(ValueError, match="2 have the name"):
        from_json(twice)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_stands_in_a_field_it_is_read_or_refused(data: st.DataObject) -> None:
    """Replace one field after another by arbitrary values; the only exception is ValueError."""
    document = copy.deepcopy(GOOD)
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.booleans()):
            place = inner
            continue
        place[key] = data.draw(LEAVES)
        break
    try:
        read = from_json(document)
    except ValueError as error:
        assert str(error)
    else:
        json.dumps(to_json(read), allow_nan=False)


# ---- which times may be compared


def _on(links: dict[str, dict[str, float]], slower: float) -> Any:
    speed = factory.speed()
    slow = dataclasses.replace(
        speed, median_s=speed.median_s * slower, low_s=speed.low_s * slower, high_s=speed.high_s * slower
    )
    return dataclasses.replace(factory.validation(factory.library(speeds=(slow,))), links=links)


def test_times_are_compared_on_the_same_fibers_only() -> None:
    short, noisy, long = ({"north:east": {"delay_s": it, "rate": 94e6}} for it in (200e-6, 260e-6, 400e-6))
    assert [it.kind for it in compare(_on(short, 1.0), _on(noisy, 3.0)).changes] == ["worse"]
    changed = compare(_on(short, 1.0), _on(long, 3.0))
    assert not changed.changes and any("the certified values of north:east changed" in it for it in changed.notes)
    thin = {"north:east": {"delay_s": 200e-6, "rate": 9.4e6}}
    assert not compare(_on(short, 1.0), _on(thin, 3.0)).changes
    assert not compare(_on(short, 1.0), _on({}, 3.0)).changes
    unknown = {"north:east": {"delay_s": math.nan, "rate": 94e6}}
    assert compare(_on(unknown, 1.0), _on(short, 3.0)).regressions
