"""Training with a parameter server: sites push to a server at a home site, and do not step together.

Inside a site, gradients are averaged in every step. Rank i of a site speaks to rank i of the home site about slice i of
the parameters, by messages; the home site's own messages stay in the process. All ranks of a site must go over to what
they received after the same step: after each step they agree on what all of them have, by an all-reduce of a few bytes
inside the site.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from testbed_agents.checksums import crc32
from testbed_agents.exchange.sums import gather_into
from testbed_agents.parameter_server.messages import TOKEN_BYTES, Channel, Connector, Header, Listener
from testbed_agents.parameter_server.server import ParameterServer
from testbed_agents.strategies.periodic_exchange import ReplicaTraining
from testbed_agents.strategies.strategy import Context

__all__ = ["ParameterServerTraining"]

_ADDRESS_BYTES = 64
"""Of "ADDRESS PORT" in ASCII, padded."""
_ORDER_BYTES = 1 << 16
_UNKNOWN = 2**62
"""The number of a rank without a slice: more than that of any other rank."""
TURN = 0.25
"""Share of the timeout after which ranks that wait for messages meet those of their site that have none to wait for."""


class ParameterServerTraining(ReplicaTraining):
    """``home``: the site of the server; empty for the first one."""

    def __init__(self, home: str = "") -> None:
        super().__init__("site")
        self._home = home
        self.server: ParameterServer | None = None
        """The part of the server at this rank."""
        self._uplink: Channel | None = None
        self._inbox: deque[tuple[Header, Tensor]] = deque()
        self._news = threading.Condition()
        self._channels: dict[str, Channel] = {}
        """Of the server's part: to the sites by name."""
        self._orders: list[Channel] = []
        self._listener: Listener | None = None
        self.tokens = 0
        """Of all ranks of this site, as far as a strategy counts them."""

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        self.sites = context.groups.site_names
        self.home = self._home or self.sites[0]
        if self.home not in self.sites:
            raise ValueError(f"unknown home site '{self.home}' (available: {', '.join(self.sites)})")
        parameters = super().prepare(model, context)
        self.site = context.groups.site
        self._site_size = len(self.replicas.inside_ranks)
        self._in_site = self.replicas.inside
        # Versions are adopted when they come, in no certain step: by a group of its own, which no step counts.
        for name, ranks in context.groups.members.items():
            made = context.groups.new(ranks, f"adopted:{name}")
            if name == self.site:
                self.replicas = dataclasses.replace(self.replicas, inside=made)
        self.build(parameters)
        self._connect()
        return parameters

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        self.tokens += inputs.numel() * self._site_size
        if self.server is not None:
            self.server.begin()  # a checkpoint, if there is one, is loaded
        return super().run(inputs, targets)

    @abstractmethod
    def build(self, parameters: list[nn.Parameter]) -> None:
        """Make what is needed of the parameters before the sites are connected."""

    @abstractmethod
    def make_server(self, lead: bool) -> ParameterServer:
        """Return the part of the server for this rank's slice."""

    @abstractmethod
    def most_bytes(self) -> int:
        """Return the bytes of the largest tensor that is sent."""

    @abstractmethod
    def take(self, header: Header, payload: Tensor) -> None:
        """Take notice of a message of the server, in the training thread."""

    # -- messages ----------------------------------------------------------------------------------------------------

    def send(self, header: dict[str, Any], tensor: Tensor | None = None) -> None:
        """Send a message to the server; a rank without a slice sends nothing. ``tensor`` is given away."""
        if self.server is not None:
            payload = torch.empty(0, dtype=torch.uint8) if tensor is None else tensor.view(torch.uint8)
            self.server.begin()  # an attempt that resumes after the last step runs none
            self.server.receive(self.site, header, payload)
        elif self._uplink is not None:
            self._uplink.send(header, tensor)

    def push(self, header: dict[str, Any], payload: Tensor) -> None:
        """Send a push, and record it. ``payload``: (bytes,) uint8 or (elements,) float32, given away."""
        fields: dict[str, Any] = {name: value for name, value in header.items() if name != "kind"}
        if self.replicas.slice is not None:
            message = payload.view(torch.uint8)
            fields |= {"slice": self.replicas.slice, "bytes": len(message), "parcel_crc": crc32([message])}
        self.context.checks.exchange(what="pushed", site=self.site, **fields)
        self.send(header, payload)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Take messages until ``condition``, without a bound while there is a connection: a slow site is no fault.

        In a :attr:`mixed` site a collective call of its ranks. Raises RuntimeError if there was no connection for the
        job's timeout.
        """
        began_t = time.monotonic()
        while True:
            here = self.replicas.slice is None or self._wait_in_turn(condition, what, began_t)
            if not self.mixed:
                return
            # Those without a slice wait for the others in the process group, whose waits have a bound: so in turns.
            all_here = torch.tensor([int(here)])
            dist.all_reduce(all_here, op=dist.ReduceOp.MIN, group=self.replicas.inside)
            if all_here.item():
                return

    @property
    def mixed(self) -> bool:
        """Whether some ranks of this site have no slice."""
        return self._site_size > self.replicas.slices

    def _wait_in_turn(self, condition: Callable[[], bool], what: str, began_t: float) -> bool:
        """Take messages until ``condition``; in a mixed site return False after a part of the timeout, else True."""
        until_t = time.monotonic() + (TURN * self.context.timeout_s if self.mixed else math.inf)
        while True:
            self.read()
            if condition():
                return True
            disconnected_s, peer = self._longest_gap()
            if disconnected_s > self.context.timeout_s and time.monotonic() - began_t > self.context.timeout_s:
                raise RuntimeError(f"no connection to {peer} for {disconnected_s:.0f} s while waiting for {what}")
            if time.monotonic() > until_t:
                return False
            with self._news:
                self._news.wait_for(lambda: bool(self._inbox), 0.1)

    def read(self) -> None:
        """Take the messages that have arrived. Raises RuntimeError if this rank's connections have failed."""
        for channel in (self._uplink, *self._channels.values(), *self._orders):
            if channel is not None and channel.failure is not None:
                raise RuntimeError(str(channel.failure)) from channel.failure
        if self.server is not None and self.server.failure is not None:
            raise RuntimeError(str(self.server.failure)) from self.server.failure
        while True:
            with self._news:
                if not self._inbox:
                    break
                header, payload = self._inbox.popleft()
            self.take(header, payload)
        if self.server is not None:
            for entry in self.server.take_log():
                if entry.get("what") == "outer":
                    self.context.checks.outer_taken(entry["line"])
                else:
                    self.context.checks.exchange(**{"what": "served", "slice": self.replicas.slice, **entry})

    def agree(self, *values: int) -> tuple[int, ...]:
        """Return the least of each value over the ranks of the site, those without a slice left out; collective."""
        mine = torch.tensor(values if self.replicas.slice is not None else [_UNKNOWN] * len(values))
        if self._site_size > 1:
            dist.all_reduce(mine, op=dist.ReduceOp.MIN, group=self._in_site)
        return tuple(int(number) for number in mine)

    def close(self) -> None:
        """Deliver what is left, and end all connections; one that is disconnected for the job's timeout is given up."""
        for channel in (self._uplink, *self._channels.values(), *self._orders):
            if channel is not None:
                channel.close(self.context.timeout_s)
        if self._listener is not None:
            self._listener.close()

    def _longest_gap(self) -> tuple[float, str]:
        """Return how long a connection has been missing, the longest, and to whom."""
        gaps = [(channel.disconnected_s, f"site {name}") for name, channel in self._channels.items()]
        if self._uplink is not None:
            gaps.append((self._uplink.disconnected_s, f"the server at {self.home}"))
        return max(gaps, default=(0.0, ""))

    def _arrived(self, header: Header, payload: Tensor) -> None:
        with self._news:
            self._inbox.append((header, payload))
            self._news.notify_all()

    # -- connections -------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Exchange the token and the addresses of the listening ranks, then connect. A collective call."""
        groups, index = self.context.groups, self.replicas.slice
        token = torch.frombuffer(bytearray(_random(TOKEN_BYTES)), dtype=torch.uint8)
        dist.broadcast(token, 0)
        key = bytes(token.tolist())
        at_home = self.site == self.home and index is not None
        if at_home:
            self._listener = Listener(self.context.address, key)
            self._register(key, index == 0)
        own = f"{self.context.address} {self._listener.port}" if self._listener else ""
        written = torch.zeros(_ADDRESS_BYTES, dtype=torch.uint8)
        written[: len(own)] = torch.tensor(list(own.encode()), dtype=torch.uint8)
        everyone = torch.empty(groups.world_size * _ADDRESS_BYTES, dtype=torch.uint8)
        gather_into(everyone, written)
        addresses = [_address(row) for row in everyone.view(-1, _ADDRESS_BYTES).tolist()]
        if self._listener is not None:
            self._listener.open()
        home_ranks = groups.members[self.home]
        if index is None:
            return
        if not at_home:
            self._uplink = Channel(_name(self.site, index), key, self.most_bytes(), self._arrived)
            Connector(self._uplink, self.context.address, addresses[home_ranks[index]])
        elif index > 0 and self.server is not None:
            server = self.server
            orders = Channel(f"orders {index}", key, _ORDER_BYTES, lambda header, _: server.order(header))
            self._orders.append(orders)
            Connector(orders, self.context.address, addresses[home_ranks[0]])

    def _register(self, key: bytes, lead: bool) -> None:
        server, listener, index = self.make_server(lead), self._listener, self.replicas.slice
        assert listener is not None and index is not None
        self.server = server
        for name in self.sites:
            if name == self.home:
                server.deliver[name] = lambda header, tensor: self._arrived(
                    header, torch.empty(0, dtype=torch.uint8) if tensor is None else tensor.view(torch.uint8)
                )
                continue
            channel = listener.add(Channel(_name(name, index), key, self.most_bytes(), _receiver(server, name)))
            self._channels[name] = channel
            server.deliver[name] = channel.send
        if lead:
            for other in range(1, self.replicas.slices):
                orders = listener.add(Channel(f"orders {other}", key, 0, lambda header, payload: None))
                self._orders.append(orders)
                server.followers.append(orders.send)


def _receiver(server: ParameterServer, site: str) -> Callable[[Header, Tensor], None]:
    return lambda header, payload: server.receive(site, header, payload)


def _name(site: str, index: int) -> str:
    return f"slice {index} of {site}"


def _address(written: list[int]) -> tuple[str, int]:
    address, _, port = bytes(written).rstrip(b"\0").decode().partition(" ")
    return address, int(port or 0)


def _random(count: int) -> bytes:
    # Not torch's generator, whose state belongs to the training.
    import secrets

    return secrets.token_bytes(count)
