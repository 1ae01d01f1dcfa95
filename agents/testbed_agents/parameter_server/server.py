"""A parameter server: its part at one rank of the home site, for one slice of the outer parameters.

Rank i of every site exchanges messages with rank i of the home site only, so each part sees the pushes of its slice, in
an order of its own. The parameters of a version must nevertheless contain the same pushes in all slices. So the part of
slice 0 is the *lead*: it alone decides, and sends its orders to the other parts inside the home site; each part carries
the orders out one after the other, as soon as the pushes that an order needs have arrived.

All sites meet at a checkpoint (:meth:`ParameterServer.snapshot`) and at the end of the job. Subclasses define how
pushes become versions.
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
from testbed_agents.parameter_server.messages import Header

__all__ = ["Deliver", "ParameterServer"]

Deliver = Callable[[Header, Tensor | None], None]
"""Sends a header and a tensor to a site; must not block."""


class ParameterServer(ABC):
    """``sites`` in the order of their first ranks; ``lead``: whether this part decides."""

    def __init__(self, sites: Sequence[str], lead: bool, hooks: Hooks) -> None:
        self.sites, self.lead, self.hooks = tuple(sites), lead, hooks
        self.deliver: dict[str, Deliver] = {}
        """How to reach each site; complete before anything is received."""
        self.followers: list[Callable[[Header], None]] = []
        self.lock = threading.RLock()
        self.log: list[dict[str, Any]] = []
        """What was done since it was last taken, for the records of the rank: an entry per push received and version.

        ``what`` is ``served`` where an entry does not say.
        """
        self.failure: BaseException | None = None
        self._orders: deque[Header] = deque()
        self._early: list[tuple[str, Header, Tensor]] | None = []
        """What arrived before :meth:`begin`; None after it."""
        self._settled: dict[str, Header] = {}
        self._ended: set[str] = set()

    def begin(self) -> None:
        """Take what has arrived: the state is complete. Other sites may have loaded a checkpoint long before."""
        with self.lock:
            early, self._early = self._early or [], None
            for message in early:
                self.receive(*message)
            self._carry_out()

    def receive(self, site: str, header: Header, payload: Tensor) -> None:
        """Take a message of ``site``: a ``push``; ``settled``: it waits for all others; ``end``: it has done its last
        step. ``last`` in a push says the same."""
        with self.lock:
            if self._early is not None:
                self._early.append((site, header, payload))
                return
            if header["kind"] == "push":
                if len(payload) and self.hooks.failpoint("wrong-parcel"):
                    payload = payload.clone()
                    payload[0] ^= 1
                received = {
                    "what": "received",
                    "site": site,
                    "push": header["push"],
                    "fragment": header.get("fragment"),
                }
                self.log.append({**received, "bytes": len(payload), "parcel_crc": crc32([payload])})
                self.keep(site, header, payload)
            if self.lead:
                if header["kind"] == "end" or header.get("last"):
                    self._ended.add(site)
                if header["kind"] == "settled":
                    self._settled[site] = header
                self.observe(site, header)
                self.proceed()
            else:
                self._carry_out()

    def order(self, header: Header) -> None:
        """Take an order of the lead."""
        with self.lock:
            self._orders.append(header)
            self._carry_out()

    def proceed(self) -> None:
        """Decide and carry out whatever can be now; of the lead, with the lock held."""
        while order := self.decide():
            self._issue(order)
        if len(self._settled) == len(self.sites):
            headers, self._settled = self._settled, {}
            self._issue({"do": "settle", **self.settle(headers)})
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
    def keep(self, site: str, header: Header, payload: Tensor) -> None:
        """Keep a push until an order needs it."""

    @abstractmethod
    def observe(self, site: str, header: Header) -> None:
        """Take notice of any message, as the lead."""

    @abstractmethod
    def decide(self) -> Header | None:
        """Return the next order, as the lead; None if there is nothing to do yet."""

    @abstractmethod
    def ready(self, order: Header) -> bool:
        """Whether all pushes that an order needs are here."""

    @abstractmethod
    def apply(self, order: Header) -> None:
        """Carry an order out."""

    def settle(self, headers: dict[str, Header]) -> Header:
        """All sites wait: return what to add to the order by which they go on."""
        return {}

    def last_orders(self) -> Sequence[Header]:
        """Return the orders that bring everything into the last version, as the lead."""
        return ()

    @abstractmethod
    def snapshot(self, order: Header) -> None:
        """Copy everything into the tensors that a checkpoint saves, and tell all sites to go on."""

    @abstractmethod
    def end(self) -> None:
        """Tell all sites the last version."""

    def _issue(self, order: Header) -> None:
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
