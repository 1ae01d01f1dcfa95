"""A keeper with a real socket and real pushes, of a lab that is made up."""

from __future__ import annotations

import socket
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from testbed.host.lab_folder import LabFolder
from testbed.keeper.event_log import EventLog
from testbed.keeper.protocol import LabView, decode_call
from testbed.keeper.publisher import Publisher
from testbed.keeper.service import Caller, Service


class FollowedApi:
    """The requests that :class:`Keeper` answers."""

    def __init__(self, keeper: Keeper, caller: Caller) -> None:
        self._keeper, self._caller = keeper, caller

    def subscribe(self, *, since: int | None = None) -> None:
        self._keeper.subscribers.append(self._caller)
        self._keeper.publisher.subscribe(self._caller, since)
        self._keeper.subscribed.set()

    def events(self, *, since: int = 0) -> Any:
        return self._keeper.events.since(since)

    def ranks(self) -> Any:
        return list(self._keeper.ranks.values())

    def stats(self) -> Any:
        counted = {"direction": "north:west", "packets": 1, "segments": 1, "bytes": 1, "drops": {}}
        return {"t": time.monotonic(), "cpu_s": 0.0, "directions": [counted]}

    def faults(self) -> Any:
        return []

    def protection_states(self) -> Any:
        return {}

    def hello(self) -> Any:
        return dict.fromkeys(("emulator_died", "prometheus_ended", "dead_containers", "waits"), ()) | {
            "state": "up",
            "since_unix_s": time.time(),
            "emulator": "fiberd",
            "scheduling": "",
            "prometheus": "",
        }


class Keeper:
    """As much of a keeper as those who follow a lab need: its socket is real, its lab is not."""

    def __init__(self, folder: Path) -> None:
        self.lab = LabFolder(folder)
        self.events = EventLog()
        self.ranks: dict[int, Any] = {number: {"rank": number, "state": "waiting"} for number in range(64)}
        self.dark: list[str] = []
        self.dead: list[str] = []
        self.looked = 0
        self.subscribed = threading.Event()
        """Set once somebody follows the lab."""
        self.ended = threading.Event()
        self.publisher = Publisher(self.events, self.view)
        threading.Thread(target=self.publisher.run, args=(self.ended,), daemon=True).start()
        self.subscribers: list[Caller] = []
        self.service = Service(
            self.lab.socket,
            lambda call, caller: call.answer(FollowedApi(self, caller)),
            self.drop,
            partial(decode_call, FollowedApi),
        )

    def view(self) -> LabView:
        self.looked += 1
        ranks: Any = [rank.copy() for rank in self.ranks.values()]
        return {"ranks": ranks, "dark": list(self.dark), "dead_containers": list(self.dead)}

    def drop(self, caller: Caller) -> None:
        self.publisher.drop(caller)
        if caller in self.subscribers:
            self.subscribers.remove(caller)

    def set(self, rank: int, state: str) -> None:
        self.ranks[rank] = {"rank": rank, "state": state}
        self.publisher.changed()

    def hang_up(self) -> None:
        """End all subscriptions, as the end of its process does."""
        for caller in list(self.subscribers):
            caller.push.__self__.socket.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]

    def end(self) -> None:
        self.ended.set()
        self.publisher.changed()
        self.service.close()
