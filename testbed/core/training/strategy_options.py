"""Parsers of options of strategies: what several of them have."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from testbed.core.training.twin import Option
from testbed.core.units import Unreadable, parse_number
from testbed.core.user_text import expected

__all__ = [
    "AGGREGATE_AT",
    "EVERY",
    "OUTER_MOMENTUM",
    "OUTER_RATE",
    "PACE",
    "REPLICA",
    "WEIGH",
    "choice",
    "flag",
    "names_by_group",
    "share",
    "text",
    "whole",
]


def whole(low: int, high: int = 10_000_000) -> Callable[[object], int]:
    """Return a parser of integers from ``low`` to ``high``, written as a number or as text."""
    range_of = f"a whole number from {low} to {high}"

    def parse(value: object) -> int:
        written = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", written):
            raise Unreadable(*expected(range_of, value, f"write it in digits, such as {max(low, 1)}"))
        number = int(written)
        if not low <= number <= high:
            raise Unreadable(
                *expected(range_of, value, f"write {low} or more" if number < low else f"write {high} or less")
            )
        return number

    return parse


def share(low: float, high: float) -> Callable[[object], float]:
    """Return a parser of numbers from ``low`` to ``high``."""

    def parse(value: object) -> float:
        return parse_number(value, low=low, high=high)

    return parse


def choice(*allowed: Any) -> Callable[[object], Any]:
    """Return a parser of one of ``allowed``, numbers also written as text."""

    def parse(value: object) -> Any:
        for choice in allowed:
            if not isinstance(value, bool) and (value == choice or str(value) == str(choice)):
                return choice
        choices = [str(choice) for choice in allowed]
        raise Unreadable(*expected(f"one of {', '.join(choices)}", value, f"write {choices[0]}"))

    return parse


def names_by_group(value: object) -> tuple[tuple[str, ...], ...]:
    """Parse groups of names: a list of lists, or its text as in a command."""
    fix = "write [[a, b], [c, d]]"
    if isinstance(value, str):
        value = _read_lists(value)
    if not isinstance(value, list | tuple):
        raise Unreadable(*expected("lists of names", value, fix))
    for group in value:
        is_list = isinstance(group, list | tuple) and len(group) > 0
        if not is_list or not all(isinstance(name, str) and name for name in group):
            raise Unreadable(*expected("a list of names", group, fix))
    return tuple(tuple(group) for group in value)


def _read_lists(text: str) -> object:
    """Return the lists that ``text`` means as in a file; ``text`` itself if it means none."""
    if not re.fullmatch(r"\s*\[(\s*\[[^\[\]]*\]\s*(,|(?=\])))+\s*\]\s*", text):
        return text
    return [[name.strip() for name in inner.split(",")] for inner in re.findall(r"\[([^\[\]]*)\]", text)]


def flag(value: object) -> bool:
    """Parse true or false, also written as text."""
    flags = {"true": True, "false": False, "yes": True, "no": False}
    written = str(value).lower()
    if written not in flags:
        raise Unreadable(*expected("true or false", value, "write true"))
    return flags[written]


def text(what: str, fix: str) -> Callable[[object], str]:
    """Return a parser of text; ``what`` and ``fix`` are of the message about anything else."""

    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise Unreadable(*expected(what, value, fix))
        return value

    return parse


EVERY = Option("every", 50, whole(1), "H: inner steps between two exchanges")
OUTER_RATE = Option("outer.rate", 0.7, share(0.0, 10.0), "learning rate of the outer optimizer")
OUTER_MOMENTUM = Option(
    "outer.momentum", 0.5, share(0.0, 0.9999), "Nesterov momentum of the outer optimizer; papers use 0.9"
)


def site_name(value: object) -> str:
    """Parse the name of a site, which the twin compares with those that have ranks; empty for none."""
    if not isinstance(value, str) or not value.isprintable():
        raise Unreadable(*expected("the name of a site", value, "write a site of the topology"))
    return value


AGGREGATE_AT = Option(
    "aggregate_at",
    "",
    site_name,
    "site that adds what all sites send to it, and sends back the sum; else they exchange",
)
PACE = Option(
    "pace", "steps", choice("steps", "time"), "time: a faster site takes more inner steps, by the declared speeds"
)
WEIGH = Option(
    "weigh", "equal", choice("equal", "tokens"), "tokens: replicas weighted by the tokens since their last exchange"
)
REPLICA = Option("replica", "site", choice("site", "rank"), "what one replica of the model is: a site, or each rank")
