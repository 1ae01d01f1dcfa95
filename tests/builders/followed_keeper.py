"""A keeper with a real socket and real pushes, of a lab that is made up."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

from testbed.errors import LabError
from testbed.host.lab_folder import LabFolder
from testbed.keeper import protocol
from testbed.keeper.event_log import EventLog
from testbed.keeper.publisher import Publisher, State
from testbed.keeper.service import Caller, Service


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
        self.publisher = Publisher(self.events, self.state)
        threading.Thread(target=self.publisher.run, args=(self.ended,), daemon=True).start()
        self.subscribers: list[Caller] = []
        self.service = Service(self.lab.socket, self.answer, self.drop, protocol.decode_request)

    def state(self) -> State:
        self.looked += 1
        return State({number: rank.copy() for number, rank in self.ranks.items()}, list(self.dark), list(self.dead))

    def answer(self, request: Any, caller: Caller) -> Any:
        match request:
            case protocol.Subscribe():
                self.subscribers.append(caller)
                self.publisher.subscribe(caller, request.since)
                self.subscribed.set()
                return None
            case protocol.Events():
                return self.events.since(request.since)
            case protocol.Ranks():
                return list(self.ranks.values())
            case protocol.Stats():
                counted = {"direction": "north:west", "packets": 1, "segments": 1, "bytes": 1, "drops": {}}
                return {"t": time.monotonic(), "cpu_s": 0.0, "directions": [counted]}
            case protocol.Faults():
                return []
            case protocol.ProtectionStates():
                return {}
            case protocol.Hello():
                return dict.fromkeys(("emulator_died", "prometheus_ended", "dead_containers", "waits"), ()) | {
                    "state": "up",
                    "since_unix_s": time.time(),
                    "emulator": "fiberd",
                    "scheduling": "",
                    "prometheus": "",
                }
        raise LabError(f"unknown verb '{request.verb}': the lab's keeper runs testbed 0.0.1")

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
