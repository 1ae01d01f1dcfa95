"""Push what changes in a lab to the commands that follow it, so that none of them has to ask again and again.

One thread sleeps until an event is added or the state changes, and sends each subscriber what is new to it. Changes of
one moment go out as one update. Without a subscriber the thread does not wake up at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from testbed.host.linux.scheduling import use_realtime_priority
from testbed.keeper.event_log import EventLog, log
from testbed.keeper.protocol import HEARTBEAT_S, LabView, Update
from testbed.keeper.service import Caller

__all__ = ["Publisher"]


@dataclass
class _Subscriber:
    next: int
    """Number of the first event that it has not been sent."""
    view: LabView = field(default_factory=LabView)


class Publisher:
    """The subscribers of one lab. ``view`` is called whenever something may have changed. Thread-safe, except
    :meth:`run`, which has a thread of its own."""

    def __init__(self, events: EventLog, view: Callable[[], LabView]) -> None:
        self._events, self._view = events, view
        self._subscribers: dict[Caller, _Subscriber] = {}
        self._changed = threading.Condition()
        self._due = False
        events.added = self.changed

    def subscribe(self, caller: Caller, since: int | None) -> None:
        """Push to ``caller`` from now on, events from number ``since`` on; None: those of the future."""
        with self._changed:
            self._subscribers[caller] = _Subscriber(self._events.next if since is None else since)
        self.changed()

    def drop(self, caller: Caller) -> None:
        """Push no more to ``caller``; having no subscription is no error."""
        with self._changed:
            self._subscribers.pop(caller, None)

    def changed(self) -> None:
        """Have :meth:`run` look for changes."""
        with self._changed:
            self._due = True
            self._changed.notify_all()

    def run(self, ended: threading.Event) -> None:
        """Push updates until ``ended``."""
        use_realtime_priority()
        while not ended.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._subscribers)
                if not self._due:
                    self._changed.wait(HEARTBEAT_S)
                self._due = False
                subscribers = list(self._subscribers.items())
            try:
                self._push(subscribers)
            except Exception as error:  # the thread must outlive it: a follower would wait for the lab forever
                log(f"an update failed: {error!r}")

    def _push(self, subscribers: list[tuple[Caller, _Subscriber]]) -> None:
        t = time.monotonic()  # before anything is looked at
        view = self._view()
        for caller, subscriber in subscribers:
            page = self._events.since(subscriber.next)
            changes = _changes(subscriber.view, view)
            caller.push(cast(Update, {"t": t, "events": page["events"], **changes}))
            subscriber.next, subscriber.view = page["next"], view


def _changes(before: LabView, view: LabView) -> dict[str, object]:
    changes = {key: value for key, value in view.items() if key != "ranks" and value != before.get(key)}
    states = {rank["rank"]: rank for rank in before.get("ranks", ())}
    if ranks := [rank for rank in view["ranks"] if rank != states.get(rank["rank"])]:
        changes["ranks"] = ranks
    return changes
