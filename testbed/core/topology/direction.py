"""A direction of a link: a fiber from one site to another. Pure."""

from __future__ import annotations

__all__ = ["Direction", "head_of", "link_of"]


class Direction(str):
    """One direction of ``link``, from the site ``tail`` to the site ``head``; files and records write ``link:head``.

    It equals the string that names it, so that it finds values keyed by names that were read from a file.
    """

    link: str
    tail: str
    head: str

    def __new__(cls, link: str, tail: str, head: str) -> Direction:
        direction = super().__new__(cls, f"{link}:{head}")
        direction.link, direction.tail, direction.head = link, tail, head
        return direction

    def __getnewargs__(self) -> tuple[str, str, str]:  # type: ignore[override]
        """Return the arguments of a copy (:mod:`copy`, :mod:`pickle`)."""
        return self.link, self.tail, self.head


def link_of(direction: str) -> str:
    """Return the link in the name of a direction, as files and records write it."""
    return direction.partition(":")[0]


def head_of(direction: str) -> str:
    """Return the site to which a direction leads, from its name in files and records."""
    return direction.partition(":")[2]
