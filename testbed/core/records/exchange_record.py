"""Exchanges with a server of outer parameters, as ranks recorded them (``exchange`` in ``ranks/rank-<r>.jsonl``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from testbed.core.fields import Fields, integer, mapping, numbers, text
from testbed.core.json_record import Derived, JsonRecord, Or

__all__ = ["ExchangeRecord"]


def _newest_pushes(fields: Fields, key: str) -> dict[str, int]:
    """Return the newest push of each site that was merged; a rank's record of its own push has that one."""
    push, merged = integer(fields, "push"), mapping(fields, key)
    if push is not None and not merged:
        return {text(fields, "site"): push}
    return {site: int(max(pushes)) for site in merged if (pushes := numbers(merged, site))}


@dataclass(frozen=True)
class ExchangeRecord(JsonRecord):
    """One side of an exchange.

    Attributes:
        what: ``pushed`` or ``pulled`` by a rank of a site, ``received`` (a push) or ``served`` (a version) by a rank of
            the server.
        version: of the outer parameters, of ``fragment``: as adopted, or after the merge.
        push: number of the push of ``site``, from 1.
        base: the version on which a push is based.
        step: of the site, after which it was made.
        taken: of what was served, the newest push of each site in it.
        fields: all that was recorded.
    """

    attempt: Annotated[int, Or(1)]
    what: str
    site: str = ""
    version: int | None = None
    fragment: int | None = None
    push: int | None = None
    base: int | None = None
    step: int | None = None
    taken: Annotated[Mapping[str, int], Derived(_newest_pushes)] = field(default_factory=dict)
    fields: Annotated[Fields, Derived(lambda fields, _: fields)] = field(default_factory=dict)
