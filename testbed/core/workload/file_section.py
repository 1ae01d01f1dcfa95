"""Parts of a file's sections that experiments and workloads share: the base of their models, and common values."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict

from testbed.core.units import Unreadable, parse_duration_s
from testbed.core.user_text import expected

__all__ = ["Part", "one_line", "some_time", "switch"]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def one_line(value: object) -> str:
    """Parse a line of text. Raises Unreadable."""
    if not isinstance(value, str) or not value.strip() or len(value) > 300 or not value.strip().isprintable():
        raise Unreadable(*expected("a line of text", value, "write one line of at most 300 characters"))
    return value.strip()


def some_time(value: object) -> float:
    """Parse a duration greater than 0. Raises Unreadable."""
    duration_s = parse_duration_s(value)
    if duration_s == 0:
        raise Unreadable(*expected("a time greater than 0", value, "write a time such as 10s"))
    return duration_s


def switch(key: str) -> Callable[[object], bool]:
    """Return a validator of ``key``, which is true or false. It raises Unreadable."""

    def parse(value: object) -> bool:
        if not isinstance(value, bool):
            raise Unreadable(*expected("true or false", value, f"write {key}: true"))
        return value

    return parse
