"""Exchanges with a server of outer parameters, as ranks recorded them (``exchange`` in ``ranks/rank-<r>.jsonl``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.core.fields import Fields, integer, mapping, need_text, numbers, text

__all__ = ["ExchangeRecord"]


@dataclass(frozen=True)
class ExchangeRecord:
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

    attempt: int
    what: str
    site: str = ""
    version: int | None = None
    fragment: int | None = None
    push: int | None = None
    base: int | None = None
    step: int | None = None
    taken: Mapping[str, int] = field(default_factory=dict)
    fields: Fields = field(default_factory=dict)

    @classmethod
    def from_dict(cls, fields: Fields) -> ExchangeRecord:
        site, push = text(fields, "site"), integer(fields, "push")
        merged = mapping(fields, "taken")
        taken = {name: int(max(listed)) for name in merged if (listed := numbers(merged, name))}
        return cls(
            attempt=integer(fields, "attempt") or 1,
            what=need_text(fields, "what"),
            site=site,
            version=integer(fields, "version"),
            fragment=integer(fields, "fragment"),
            push=push,
            base=integer(fields, "base"),
            step=integer(fields, "step"),
            taken={site: push} if push is not None and not merged else taken,
            fields=fields,
        )
