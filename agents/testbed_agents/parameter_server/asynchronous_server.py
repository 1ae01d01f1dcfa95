"""The parameter server of async-diloco: applies pushes by delayed Nesterov, one by one, as they are admitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from testbed_agents.checksums import crc32
from testbed_agents.exchange.outer_optimizers import DelayedNesterov
from testbed_agents.hooks import Hooks
from testbed_agents.parameter_server.admission import Admission
from testbed_agents.parameter_server.messages import Header
from testbed_agents.parameter_server.server import ParameterServer, as_floats

__all__ = ["AsynchronousServer"]


class AsynchronousServer(ParameterServer):
    """Applies pushes one by one as they come, as far as ``admission`` lets it."""

    def __init__(
        self,
        sites: Sequence[str],
        lead: bool,
        hooks: Hooks,
        optimizer: DelayedNesterov,
        admission: Admission,
        by_tokens: bool,
    ) -> None:
        super().__init__(sites, lead, hooks)
        self._optimizer, self._admission, self._by_tokens = optimizer, admission, by_tokens
        self._pushed: dict[tuple[str, int], tuple[Header, Tensor]] = {}
        self._pending: list[tuple[str, Header]] = []
        self._tokens: dict[str, int] = {}
        """Of the last push of each site."""
        self.saved = {
            "server.values": optimizer.values.clone(),
            "server.momentum": optimizer.momentum.clone(),
            "server.gathered": optimizer.gathered.clone(),
            "server.numbers": torch.zeros(2 + 2 * len(self.sites), dtype=torch.int64),
        }

    def keep(self, site: str, header: Header, payload: Tensor) -> None:
        self._pushed[site, int(header["push"])] = (header, as_floats(payload))

    def observe(self, site: str, header: Header) -> None:
        if header["kind"] == "push":
            self._pending.append((site, header))
        if header["kind"] in ("settled", "end") or header.get("last"):
            self._admission.rests(site, sum(1 for name, _ in self._pending if name == site))

    def decide(self) -> Header | None:
        seen: set[str] = set()
        for index, (site, header) in enumerate(self._pending):
            if site not in seen and self._admission.admits(site):
                del self._pending[index]
                return self._order(site, header)
            seen.add(site)  # a site's pushes are applied in their order
        return None

    def _order(self, site: str, header: Header) -> Header:
        staleness = self._admission.version - int(header["base"])
        if staleness > self._admission.staleness:
            raise RuntimeError(
                f"push {header['push']} of {site} is {staleness} versions old, {self._admission.staleness} allowed"
            )
        tokens = self._tokens[site] = int(header["tokens"])
        others = [self._tokens.get(name, tokens) for name in self.sites]
        mean = sum(others) / len(others)
        weight = tokens / mean if self._by_tokens and mean else 1.0
        version = self._admission.apply(site)
        return {
            "do": "apply",
            "site": site,
            "push": header["push"],
            "version": version,
            "staleness": staleness,
            "weight": weight,
        }

    def ready(self, order: Header) -> bool:
        return order["do"] == "settle" or (order["site"], order["push"]) in self._pushed

    def apply(self, order: Header) -> None:
        site, version = order["site"], order["version"]
        header, delta = self._pushed.pop((site, order["push"]))
        if not self.hooks.failpoint("lost-version"):
            lines = self._optimizer.step(delta if order["weight"] == 1.0 else delta * order["weight"])
            self.log += [{"what": "outer", "line": line} for line in lines]
        self._admission.version = version
        served: dict[str, Any] = {name: order[name] for name in ("site", "push", "version", "staleness", "weight")}
        for name in ("base", "first", "step", "tokens"):
            served[name] = header[name]
        self.log.append({**served, "steps": self._optimizer.pushes, "crc": crc32([self._optimizer.values])})
        if not header["last"]:
            answer = {"kind": "answer", "push": order["push"], "version": version, "staleness": order["staleness"]}
            self.deliver[site](answer, self._optimizer.values)

    def settle(self, headers: dict[str, Header]) -> Header:
        held = {site: int(header["version"]) for site, header in headers.items()}
        fresh = self._admission.resume(held)
        held |= dict.fromkeys(fresh, self._admission.version)
        return {"version": self._admission.version, "fresh": fresh, "held": held, "tokens": self._tokens}

    def snapshot(self, order: Header) -> None:
        optimizer = self._optimizer
        for name, tensor in (
            ("values", optimizer.values),
            ("momentum", optimizer.momentum),
            ("gathered", optimizer.gathered),
        ):
            self.saved[f"server.{name}"].copy_(tensor)
        held = [order["held"][site] for site in self.sites]
        tokens = [order["tokens"].get(site, 0) for site in self.sites]
        numbers = (optimizer.pushes, order["version"], *held, *tokens)
        self.saved["server.numbers"].copy_(torch.tensor(numbers))
        for site in self.sites:
            fresh = optimizer.values if site in order["fresh"] else None
            self.deliver[site]({"kind": "settled", "version": order["version"]}, fresh)

    def end(self) -> None:
        for site in self.sites:
            self.deliver[site]({"kind": "final", "version": self._admission.version}, self._optimizer.values)

    def loaded(self) -> None:
        """Go on from the tensors that a checkpoint has filled."""
        with self.lock:
            optimizer = self._optimizer
            optimizer.values = self.saved["server.values"].clone()
            optimizer.momentum.copy_(self.saved["server.momentum"])
            optimizer.gathered.copy_(self.saved["server.gathered"])
            optimizer.pushes, self._admission.version, *numbers = self.saved["server.numbers"].tolist()
            held, tokens = numbers[: len(self.sites)], numbers[len(self.sites) :]
            self._tokens = {site: count for site, count in zip(self.sites, tokens, strict=True) if count}
            self._admission.resume(dict(zip(self.sites, held, strict=True)))
