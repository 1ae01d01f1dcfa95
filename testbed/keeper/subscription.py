"""Follow a lab: its events and the state of its ranks, as the keeper pushes them (:meth:`KeeperApi.subscribe`)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed.errors import LabError, TestbedError
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client
from testbed.keeper.protocol import Event, RankState, Update

__all__ = ["LabState", "Subscription"]

END_BOUND_S = 5.0
HEARTBEAT = ("t", "events")
"""All that an update without a change has."""


@dataclass(frozen=True)
class LabState:
    """State of a lab as of ``t`` (CLOCK_MONOTONIC) or later. Ranks in order; ``dark`` are the links without carrier."""

    t: float
    ranks: tuple[RankState, ...] = ()
    dark: tuple[str, ...] = ()
    dead_containers: tuple[str, ...] = ()

    def after(self, update: Update) -> LabState:
        """Return the state with what an update changes."""
        ranks = {rank["rank"]: rank for rank in (*self.ranks, *update.get("ranks", ()))}
        return LabState(
            update["t"],
            tuple(rank for _, rank in sorted(ranks.items())),
            tuple(update.get("dark", self.dark)),
            tuple(update.get("dead_containers", self.dead_containers)),
        )


class Subscription(contextlib.AbstractContextManager["Subscription"]):
    """A thread that follows a lab until closed. Must be closed.

    ``heard`` receives new events, from that thread, before :meth:`state` is as new; ``since`` as in
    :meth:`KeeperApi.subscribe`. Raises LabError where the lab has no keeper; a later failure is raised by
    :meth:`state` and :meth:`wait`.
    """

    def __init__(
        self, lab: LabFolder, heard: Callable[[Sequence[Event]], None] = lambda events: None, since: int | None = None
    ) -> None:
        self._heard = heard
        self._connection = client.Connection(lab)
        self._changed = threading.Condition()
        self._state = LabState(0.0)
        self._changes = self._seen = 0
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._follow, args=(since,), name="subscription", daemon=True)
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.interrupt()
        self._thread.join(END_BOUND_S)
        self._connection.close()

    @property
    def failure(self) -> str:
        """Why the subscription has ended; empty while it has not."""
        return str(self._failure or "")

    @property
    def complete_until(self) -> float:
        """Every event from before this time of CLOCK_MONOTONIC has been passed on."""
        return self._state.t

    def state(self, after_t: float = 0.0, bound_s: float = client.PATIENCE_S) -> LabState:
        """Return the newest state, and not one from before ``after_t``: the keeper confirms it within
        :data:`protocol.HEARTBEAT_S`. Raises LabError, or what ``heard`` has raised."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._failure is not None or self._state.t > after_t, bound_s):
                raise LabError(f"the keeper sent no state within {bound_s:g} s")
            self._refuse_failed()
            self._seen = self._changes
            return self._state

    def wait(self, timeout_s: float) -> LabState:
        """Return the state as soon as something has happened since it was last returned, or after ``timeout_s``. Raises
        as :meth:`state`."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._changes != self._seen, timeout_s)
            self._refuse_failed()
            self._seen = self._changes
            return self._state

    def _refuse_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _follow(self, since: int | None) -> None:
        try:
            for update in self._connection.updates(since):
                if update["events"]:
                    self._heard(update["events"])
                with self._changed:
                    self._changes += bool(update["events"]) or len(update) > len(HEARTBEAT)
                    self._state = self._state.after(update)
                    self._changed.notify_all()
        except Exception as error:
            expected = isinstance(error, TestbedError)
            with self._changed:
                self._failure = error if expected else LabError(f"following the lab failed: {error!r}")
                self._changed.notify_all()
