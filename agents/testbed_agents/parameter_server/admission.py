"""Which pseudo-gradient may be applied next, so that none is ever applied more than σ versions too late. Pure.

A push is *based* on the version that its site held when it made it, and its *staleness* is the number of versions that
were applied since. The server cannot make a slow site faster; it can hold back the pushes of fast ones.

A site goes on training while at most ``window`` of its pushes are not answered, so the server knows a lower bound of
the base of each site's next ``window`` + 1 pushes: the version that it answered a push with is held before the push
``window`` + 1 later is made. A push that is based on b must be applied at version b + σ at the latest: these are jobs
of unit length with deadlines, and a push is admitted only if all others can still meet theirs, earliest deadline first.
With S sites and S (window + 1) <= σ + 1 that is so at the start, and the push with the earliest deadline is always
admitted, so sites cannot block each other for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["Admission", "window"]


def window(staleness: int, sites: int) -> int:
    """Return how many of its pushes a site may leave unanswered and train on; negative if σ is too small for any."""
    return (staleness + 1) // sites - 1


class Admission:
    """The bases of what is to come, by site. ``version``: of the outer parameters."""

    def __init__(self, sites: Iterable[str], staleness: int) -> None:
        names = tuple(sites)
        self.staleness, self.window = staleness, window(staleness, len(names))
        if self.window < 0:
            raise ValueError(
                f"expected a staleness of at least {len(names) - 1} for {len(names)} sites, got {staleness}"
            )
        self.version = 0
        self._bases = {name: [0] * (self.window + 1) for name in names}
        self._resting: set[str] = set()

    def admits(self, site: str) -> bool:
        """Whether the next push of ``site`` may be applied now."""
        left = [base for name, bases in self._bases.items() for base in (bases[1:] if name == site else bases)]
        return _feasible(left, self.version + 1, self.staleness)

    def apply(self, site: str) -> int:
        """Header that the next push of ``site`` is applied; return the version that it makes."""
        self.version += 1
        following = () if site in self._resting else (self.version,)
        self._bases[site] = [*self._bases[site][1:], *following]
        return self.version

    def rests(self, site: str, pending: int = 0) -> None:
        """``site`` makes no more pushes than the ``pending`` ones until :meth:`resume`: it has ended, or is waiting."""
        self._resting.add(site)
        self._bases[site] = self._bases[site][:pending]

    def resume(self, held: Mapping[str, int]) -> list[str]:
        """All go on, from the versions that they hold; return the sites that must first adopt the newest version."""
        versions, fresh = dict(held), []
        while not _feasible(
            [version for version in versions.values() for _ in range(self.window + 1)], self.version, self.staleness
        ):
            oldest = min(versions, key=lambda name: (versions[name], name))
            versions[oldest] = self.version
            fresh.append(oldest)
        self._resting.clear()
        self._bases = {name: [version] * (self.window + 1) for name, version in versions.items()}
        return fresh


def _feasible(bases: Iterable[int], version: int, staleness: int) -> bool:
    """Whether pushes based on ``bases`` can all be applied in time, one after the other from ``version`` on."""
    return all(base + staleness >= version + place for place, base in enumerate(sorted(bases)))
