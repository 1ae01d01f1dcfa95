"""Steps: all changes of the host as values, each with an inverse.

A plan is a tuple of Steps; a fault compiles to Steps, too. Drivers (``testbed.host``) implement Steps; this package
defines their meaning, so that plans can be compared, printed and journalled.

There are two kinds:

- a **resource** is created; its inverse removes it. A resource inside namespaces (``within``) needs no inverse of its
  own if one of those is removed, too.
- a **property** has a say in the value of ``key``. Of all properties in force for one key, :meth:`Property.folded`
  makes the value, so the inverse of one withdraws it and sets the value that the others make. Two overlapping cuts of
  one fiber therefore end when the last of them ends, in whatever order they are healed.

All resources are in ``resources.py``, all properties in ``properties.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """Base of all Steps. ``str(step)`` is the line that ``--dry-run`` prints."""

    @property
    def within(self) -> tuple[str, ...]:
        """Namespaces whose removal removes this resource."""
        return ()

    @property
    def holds(self) -> tuple[str, ...]:
        """Namespaces that this resource creates and that are removed with it."""
        return ()


@dataclass(frozen=True)
class Property(Step):
    """A Step that has a say in the value of ``key``."""

    @property
    def key(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def rest(self) -> Property | None:
        """The value of ``key`` once no owner sets it; None if nothing needs to be set then."""
        return None

    def folded(self, in_force: Sequence[Property]) -> Property:
        """Return the property to set while all of ``in_force`` are: one of each owner, all of this key.

        They are in the order in which their owners began. By default the newest applies.
        """
        return in_force[-1]


Plan = tuple[Step, ...]
