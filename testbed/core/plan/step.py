"""Steps: everything that changes the host, as values, each with an inverse.

A plan is a tuple of Steps; a fault compiles to Steps too. What a Step *does* is a driver's matter
(``testbed.host``); what it *means* is here, so that plans can be compared, printed and journalled.

Two sorts:

- a **making** brings something into being; its inverse removes it. One that lives inside namespaces
  (``within``) needs no inverse of its own when one of those goes too.
- a **setting** gives ``key`` a value on top of the settings before it. The latest one that still stands wins,
  so its inverse is: forget it, and set what now wins. Two overlapping cuts of one fiber therefore
  end when the last of them ends, in whatever order they are healed.

All makings are in ``resources.py``, all settings in ``properties.py``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """Base of all Steps. ``str(step)`` is the line that ``--dry-run`` prints."""

    @property
    def within(self) -> tuple[str, ...]:
        """Namespaces whose removal removes this too."""
        return ()

    @property
    def holds(self) -> tuple[str, ...]:
        """Namespaces that go when this goes."""
        return ()


@dataclass(frozen=True)
class Property(Step):
    """A Step of the second sort; ``key`` says what it sets."""

    @property
    def key(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def rest(self) -> Property | None:
        """What stands where nobody says anything of ``key`` any more; None: nothing needs to be set then."""
        return None


Plan = tuple[Step, ...]
