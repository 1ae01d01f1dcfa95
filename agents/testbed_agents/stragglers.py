"""Wait for stragglers: for as long as they train, and then for the timeout.

Sites that train alone may legally be many steps apart (H steps of DiLoCo), and the first one waits for the other.
gloo's timeout runs from the beginning of an operation, so that it would end every attempt in which a site is slower by
more than the timeout in H steps. Groups whose ranks do not step together (``Groups.new``, ``apart``) therefore have a
timeout of gloo's that never ends a job. Their ranks wait here, by the steps in the status file, until all have entered
the step of the operation; only then the timeout runs. The wait ends with an error if no rank that is behind begins
another step for the timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

__all__ = ["Stragglers"]

_POLL_S = 0.01


class Stragglers:
    """Waits for ranks that are steps behind (``Hooks.stragglers``).

    ``entered`` returns the newest step that each of some ranks has entered; ``own_step`` this rank's own. ``world``:
    all ranks of the job. ``ended``: whether the job is to end, as when a rank has died: then the operation itself is
    waited for, which fails at once where a connection is broken.
    """

    def __init__(
        self,
        entered: Callable[[Sequence[int]], tuple[int, ...]],
        own_step: Callable[[], int],
        timeout_s: float,
        world: Sequence[int],
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self._entered, self._own_step, self._timeout_s = entered, own_step, timeout_s
        self._world, self._ended = world, ended

    @property
    def step(self) -> int:
        return self._own_step()

    def await_all(self) -> None:
        """Wait for all ranks of the job, as :meth:`await_ranks` does. Raises RuntimeError."""
        self.await_ranks(self._world, self.step, lambda: False)

    def await_ranks(self, ranks: Sequence[int], step: int, done: Callable[[], bool]) -> None:
        """Return when all ``ranks`` have entered ``step``, when ``done``, or when the job is to end.

        Raises RuntimeError if none of those behind has entered another step for the timeout.
        """
        last_behind: tuple[int, ...] = ()
        moved_t = time.monotonic()
        while not (done() or self._ended()):
            now_t, entered = time.monotonic(), self._entered(ranks)
            behind = tuple(number for number in entered if number < step)
            if not behind:
                return
            if behind != last_behind:
                last_behind, moved_t = behind, now_t
            if now_t - moved_t > self._timeout_s:
                late = [rank for rank, number in zip(ranks, entered, strict=True) if number < step]
                raise RuntimeError(
                    f"Timed out waiting {1e3 * self._timeout_s:.0f}ms for rank {late[0]} to begin another step"
                )
            time.sleep(_POLL_S)
