"""A baseline is a user's file: all mistakes in it are reported at once, without a traceback."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from typing import Any

import pytest
from builders import validation_factory as factory
from builders.tables import table
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
def test_from_json_names_a_mistake_with_its_place(path: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=r".*") as caught:
        from_json(_changed((path, value)))
    assert path in str(caught.value) and words in str(caught.value)


def test_from_json_reports_all_mistakes_at_once() -> None:
    with pytest.raises(ValueError, match="took_s") as caught:
        from_json(_changed(("took_s", "x"), ("certified", 3), ("libraries.0.name", None)))
    assert all(place in str(caught.value) for place in ("took_s", "certified", "libraries.0.name"))
    with pytest.raises(ValueError, match=r"and \d+ more"):
        from_json(_changed(("libraries", [{}] * 30)))


def test_from_json_rejects_two_libraries_of_one_name() -> None:
    with pytest.raises(ValueError, match="2 have the name"):
        from_json(_changed(("libraries", GOOD["libraries"][:1] * 2)))


LEAVES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})
)


@settings(max_examples=60)
@given(data=st.data())
def test_from_json_reads_or_rejects_any_value(data: st.DataObject) -> None:
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
    times = {name: getattr(speed, name) * slower for name in ("median_s", "low_s", "high_s")}
    slow = dataclasses.replace(speed, **times)
    return dataclasses.replace(factory.validation(factory.library(speeds=(slow,))), links=links)


def fiber(delay_s: float, rate: float = 94e6) -> dict[str, dict[str, float]]:
    return {"north:east": {"delay_s": delay_s, "rate": rate}}


@table(
    "before, after, kinds",
    {
        "a noisy measurement of the same fiber": (fiber(200e-6), fiber(260e-6), ["worse"]),
        "a longer fiber": (fiber(200e-6), fiber(400e-6), []),
        "a thinner fiber": (fiber(200e-6), fiber(200e-6, 9.4e6), []),
        "no fiber": (fiber(200e-6), {}, []),
        "a fiber of unknown delay": (fiber(math.nan), fiber(200e-6), ["worse"]),
    },
)
def test_compare_times_only_on_the_same_fibers(before, after, kinds) -> None:
    compared = compare(_on(before, 1.0), _on(after, 3.0))
    assert [change.kind for change in compared.changes] == kinds
    assert len(compared.regressions) == len(kinds)
    if after == fiber(400e-6):
        assert any("the certified values of north:east changed" in note for note in compared.notes)
