"""Exchanges with a server of outer parameters, as ranks recorded them (``exchange`` in ``ranks/rank-<r>.jsonl``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.core.fields import Fields, integer, mapping, need_text, text

__all__ = ["ExchangeRecord"]


@dataclass(frozen=True)
class ExchangeRecord:
    """One side of an exchange.

    Attributes:
        what: ``pushed`` or ``pulled`` by a rank of a site, ``served`` by a rank of the server.
        version: of the outer parameters, of ``fragment``: as pulled, or after the merge.
        push: number of the push of ``site``, from 1.
        base: the version on which a push is based.
        step: of the site, after which it was made.
        pushes: of a merge of several: the newest push of each site that is in it.
        crc: of the outer parameters of ``slice``.
    """

    attempt: int
    what: str
    site: str = ""
    version: int | None = None
    fragment: int | None = None
    push: int | None = None
    base: int | None = None
    step: int | None = None
    pushes: Mapping[str, int] = field(default_factory=dict)
    slice: int | None = None
    crc: int | None = None

    @property
    def single(self) -> bool:
        """Whether it takes up one push; a merge of several repeats those of sites that added nothing."""
        return self.push is not None

    @property
    def taken(self) -> Mapping[str, int]:
        """Return the newest push of each site that a merge has."""
        return {self.site: self.push} if self.push is not None else self.pushes

    @classmethod
    def from_dict(cls, fields: Fields) -> ExchangeRecord:
        pushes = mapping(fields, "pushes")
        return cls(
            attempt=integer(fields, "attempt") or 1,
            what=need_text(fields, "what"),
            site=text(fields, "site"),
            version=integer(fields, "version"),
            fragment=integer(fields, "fragment"),
            push=integer(fields, "push"),
            base=integer(fields, "base"),
            step=integer(fields, "step"),
            pushes={site: count for site in pushes if (count := integer(pushes, site)) is not None},
            slice=integer(fields, "slice"),
            crc=integer(fields, "crc"),
        )
