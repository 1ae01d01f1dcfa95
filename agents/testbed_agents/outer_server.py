"""The server of outer parameters: its part at one rank of the home site, for one slice of the parameters.

Rank i of every site speaks to rank i of the home site only, so each part sees the pushes of its slice, in an order of
its own. The parameters of a version must nevertheless contain the same pushes in all slices. So the part of slice 0 is
the *lead*: it alone decides, and sends its orders to the other parts inside the home site; each part carries the orders
out one after the other, as soon as the pushes that an order needs have arrived.

All sites meet at a checkpoint (:meth:`OuterServer.snapshot`) and at the end of the job. How pushes become versions is
up to a subclass.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from testbed_agents.checksums import crc32
from testbed_agents.hooks import Hooks
from testbed_agents.parcels import Note

__all__ = ["Deliver", "OuterServer"]

Deliver = Callable[[Note, Tensor | None], None]
"""Sends a note and a tensor to a site; must not block."""


class OuterServer(ABC):
    """``sites`` in the order of their first ranks; ``lead``: whether this part decides."""

    def __init__(self, sites: Sequence[str], lead: bool, hooks: Hooks) -> None:
        self.sites, self.lead, self.hooks = tuple(sites), lead, hooks
        self.deliver: dict[str, Deliver] = {}
        """How to reach each site; complete before anything is received."""
        self.followers: list[Callable[[Note], None]] = []
        self.lock = threading.RLock()
        self.log: list[dict[str, Any]] = []
        """What was done since it was last taken, for the records of the rank: an entry per push received and version.

        ``what`` is ``served`` where an entry does not say.
        """
        self.failure: BaseException | None = None
        self._orders: deque[Note] = deque()
        self._early: list[tuple[str, Note, Tensor]] | None = []
        """What arrived before :meth:`begin`; None after it."""
        self._settled: dict[str, Note] = {}
        self._ended: set[str] = set()

    def begin(self) -> None:
        """Take what has arrived: the state is complete. Other sites may have loaded a checkpoint long before."""
        with self.lock:
            early, self._early = self._early or [], None
            for parcel in early:
                self.receive(*parcel)
            self._carry_out()

    def receive(self, site: str, note: Note, payload: Tensor) -> None:
        """Take a parcel of ``site``: a ``push``; ``settled``: it waits for all others; ``end``: it has done its last
        step. ``last`` in a push says the same."""
        with self.lock:
            if self._early is not None:
                self._early.append((site, note, payload))
                return
            if note["kind"] == "push":
                if len(payload) and self.hooks.failpoint("wrong-parcel"):
                    payload = payload.clone()
                    payload[0] ^= 1
                received = {"what": "received", "site": site, "push": note["push"], "fragment": note.get("fragment")}
                self.log.append({**received, "bytes": len(payload), "parcel_crc": crc32([payload])})
                self.put(site, note, payload)
            if self.lead:
                if note["kind"] == "end" or note.get("last"):
                    self._ended.add(site)
                if note["kind"] == "settled":
                    self._settled[site] = note
                self.heard(site, note)
                self.go_on()
            else:
                self._carry_out()

    def order(self, note: Note) -> None:
        """Take an order of the lead."""
        with self.lock:
            self._orders.append(note)
            self._carry_out()

    def go_on(self) -> None:
        """Decide and carry out whatever can be now; of the lead, with the lock held."""
        while order := self.decide():
            self._issue(order)
        if len(self._settled) == len(self.sites):
            notes, self._settled = self._settled, {}
            self._issue({"do": "settle", **self.settle(notes)})
            while order := self.decide():
                self._issue(order)
        if len(self._ended) == len(self.sites):
            self._ended.clear()
            for order in self.last_orders():
                self._issue(order)
            self._issue({"do": "end"})
        self._carry_out()

    def take_log(self) -> list[dict[str, Any]]:
        """Return what was done since the last call."""
        with self.lock:
            taken, self.log = self.log, []
            return taken

    @abstractmethod
    def put(self, site: str, note: Note, payload: Tensor) -> None:
        """Keep a push until an order needs it."""

    @abstractmethod
    def heard(self, site: str, note: Note) -> None:
        """Take notice of any parcel, as the lead."""

    @abstractmethod
    def decide(self) -> Note | None:
        """Return the next order, as the lead; None if there is nothing to do yet."""

    @abstractmethod
    def ready(self, order: Note) -> bool:
        """Whether all pushes that an order needs are here."""

    @abstractmethod
    def apply(self, order: Note) -> None:
        """Carry an order out."""

    def settle(self, notes: dict[str, Note]) -> Note:
        """All sites wait: return what to add to the order by which they go on."""
        return {}

    def last_orders(self) -> Sequence[Note]:
        """Return the orders that bring everything into the last version, as the lead."""
        return ()

    @abstractmethod
    def snapshot(self, order: Note) -> None:
        """Copy everything into the tensors that a checkpoint saves, and tell all sites to go on."""

    @abstractmethod
    def end(self) -> None:
        """Tell all sites the last version."""

    def _issue(self, order: Note) -> None:
        for follower in self.followers:
            follower(order)
        self._orders.append(order)
        self._carry_out()

    def _carry_out(self) -> None:
        while self._early is None and self._orders and (self._orders[0]["do"] == "end" or self.ready(self._orders[0])):
            order = self._orders.popleft()
            match order["do"]:
                case "settle":
                    self.snapshot(order)
                case "end":
                    self.end()
                case _:
                    self.apply(order)


def as_floats(payload: Tensor) -> Tensor:
    """Return bytes, (4 elements,) uint8, as (elements,) float32."""
    return payload.view(torch.float32)
