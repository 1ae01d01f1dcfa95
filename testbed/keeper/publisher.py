"""Push what changes in a lab to the commands that follow it, so that none of them has to ask again and again.

One thread sleeps until an event is added or the state changes, and sends each subscriber what is new to it. Changes of
one moment go out as one update. Without a subscriber the thread does not wake up at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from testbed.host.linux.scheduling import use_realtime_priority
from testbed.keeper.event_log import EventLog, log
from testbed.keeper.protocol import HEARTBEAT_S, RankState, Update
from testbed.keeper.service import Caller

__all__ = ["Publisher", "State"]


@dataclass(frozen=True)
class State:
    """What subscribers are told beside events; fields as in :class:`Update`, ranks by number."""

    ranks: Mapping[int, RankState]
    dark: list[str]
    dead_containers: list[str]


@dataclass
class _Subscriber:
    next: int
    """Number of the first event that it has not been sent."""
    known: State | None = None


class Publisher:
    """The subscribers of one lab. ``state`` is called whenever something may have changed. Thread-safe, except
    :meth:`run`, which has a thread of its own."""

    def __init__(self, events: EventLog, state: Callable[[], State]) -> None:
        self._events, self._state = events, state
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
                while not self._subscribers:
                    self._changed.wait()
                if not self._due:
                    self._changed.wait(HEARTBEAT_S)
                self._due = False
                subscribers = list(self._subscribers.items())
            try:
                self.push(subscribers)
            except Exception as error:  # the thread must outlive it: a follower would wait for the lab forever
                log(f"an update failed: {error!r}")

    def push(self, subscribers: list[tuple[Caller, _Subscriber]]) -> None:
        t = time.monotonic()  # before anything is looked at
        state = self._state()
        for caller, subscriber in subscribers:
            page = self._events.since(subscriber.next)
            subscriber.next = page["next"]
            caller.push(_update(t, page["events"], subscriber.known, state))
            subscriber.known = state


def _update(t: float, events: list[dict[str, object]], known: State | None, state: State) -> Update:
    update: Update = {"t": t, "events": events}
    before = {} if known is None else known.ranks
    if ranks := [it for number, it in state.ranks.items() if before.get(number) != it]:
        update["ranks"] = ranks
    if known is None or known.dark != state.dark:
        update["dark"] = state.dark
    if known is None or known.dead_containers != state.dead_containers:
        update["dead_containers"] = state.dead_containers
    return update
