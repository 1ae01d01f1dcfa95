"""How long a rank waits for others in an operation: for as long as they train alone, and then for the timeout.

Sites that train alone may legally be many steps apart (H steps of DiLoCo), and the first one waits for the other.
gloo's timeout runs from the beginning of an operation, so that it would end every attempt in which a site is slower by
more than the timeout in H steps. Groups whose ranks do not step together (``Groups.new``, ``apart``) have no timeout of
gloo's to speak of. Their ranks wait here, by the steps that the board shows, until all have entered the step of the
operation; only then the timeout runs. A rank behind that begins no step for the timeout is not waited for any longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

__all__ = ["Patience"]

_LOOK_S = 0.01


class Patience:
    """``entered``: returns the newest step that each of some ranks has entered. ``step``: this rank's own.

    ``everyone``: all ranks of the job. ``ended``: whether the job is to end, as when a rank has died: then the
    operation itself is waited for, which fails at once where a connection is broken.
    """

    def __init__(
        self,
        entered: Callable[[Sequence[int]], tuple[int, ...]],
        step: Callable[[], int],
        timeout_s: float,
        everyone: Sequence[int],
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self._entered, self._timeout_s, self._ended = entered, timeout_s, ended
        self.step, self.everyone = step, everyone

    def await_ranks(self, ranks: Sequence[int], step: int, done: Callable[[], bool]) -> None:
        """Return when all ``ranks`` have entered ``step``, when ``done``, or when the job is to end.

        Raises RuntimeError if none of those behind has entered another step for the timeout.
        """
        seen: tuple[int, ...] = ()
        moved_t = time.monotonic()
        while not (done() or self._ended()):
            now, reached = time.monotonic(), self._entered(ranks)
            behind = tuple(number for number in reached if number < step)
            if not behind:
                return
            if behind != seen:
                seen, moved_t = behind, now
            if now - moved_t > self._timeout_s:
                late = [rank for rank, number in zip(ranks, reached, strict=True) if number < step]
                raise RuntimeError(
                    f"Timed out waiting {1e3 * self._timeout_s:.0f}ms for rank {late[0]} to begin another step"
                )
            time.sleep(_LOOK_S)
