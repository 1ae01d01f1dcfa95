"""The parameter server of decoupled: merges a fragment once a quorum of sites has delivered it, after a grace time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from testbed_agents.exchange.codec import Codec
from testbed_agents.hooks import Hooks
from testbed_agents.parameter_server.messages import Header
from testbed_agents.parameter_server.server import ParameterServer

__all__ = ["QuorumServer", "merged"]

Push = tuple[int, int, Tensor]
"""Its number, the tokens behind it, and its decoded values, (elements,)."""


def merged(pushes: Sequence[Sequence[Push]]) -> Tensor:
    """Return the mean movement over sites, weighted by tokens, (elements,); ``pushes`` of each site, in site order.

    What one site delivered in several pushes is one movement: their sum. All parts add in the same order.
    """
    moved = [
        (sum(tokens for _, tokens, _ in site_pushes), _sum([values for *_, values in site_pushes]))
        for site_pushes in pushes
        if site_pushes
    ]
    total = sum(tokens for tokens, _ in moved)
    return _sum([values * (tokens / total if total else 1 / len(moved)) for tokens, values in moved])


class QuorumServer(ParameterServer):
    """``sizes``: elements of each fragment's slice. ``quorum``: K sites. ``grace_s``: time for the others, then."""

    def __init__(
        self,
        sites: Sequence[str],
        lead: bool,
        hooks: Hooks,
        sizes: Sequence[int],
        codec: Codec,
        quorum: int,
        grace_s: float,
    ) -> None:
        super().__init__(sites, lead, hooks)
        self._sizes, self._codec, self._quorum, self._grace_s = tuple(sizes), codec, quorum, grace_s
        self._waiting: list[dict[str, list[Push]]] = [{site: [] for site in self.sites} for _ in sizes]
        self._versions = [0] * len(sizes)
        self._included = [dict.fromkeys(self.sites, 0) for _ in sizes]
        self._timers: dict[int, threading.Timer] = {}
        self._due: set[int] = set()
        self._resumes = False
        self.saved = {f"syncer.{index}": torch.zeros(len(sites), size) for index, size in enumerate(sizes)}
        self.saved["syncer.numbers"] = torch.zeros(len(sizes), 1 + 3 * len(sites), dtype=torch.int64)

    def keep(self, site: str, header: Header, payload: Tensor) -> None:
        fragment = int(header["fragment"])
        values = self._codec.decode(payload, self._sizes[fragment])
        self._waiting[fragment][site].append((int(header["push"]), int(header["tokens"]), values))

    def observe(self, site: str, header: Header) -> None:
        if header["kind"] == "push":
            for fragment in range(len(self._sizes)) if self._resumes else (int(header["fragment"]),):
                self._consider(fragment)
            self._resumes = False

    def _consider(self, fragment: int) -> None:
        delivered = sum(1 for pushes in self._waiting[fragment].values() if pushes)
        if delivered == len(self.sites):
            self._due.add(fragment)
        elif delivered >= self._quorum and fragment not in self._timers:
            timer = self._timers[fragment] = threading.Timer(self._grace_s, self._grace_over, (fragment,))
            timer.daemon = True
            timer.start()

    def _grace_over(self, fragment: int) -> None:
        timer = threading.current_thread()
        with self.lock:
            if self._timers.get(fragment) is not timer:
                return  # all were there before
            self._due.add(fragment)
            try:
                self.proceed()
            except Exception as error:
                self.failure = error

    def decide(self) -> Header | None:
        if not self._due:
            return None
        fragment = min(self._due)
        self._due.remove(fragment)
        return self._merge(fragment)

    def _merge(self, fragment: int) -> Header:
        if timer := self._timers.pop(fragment, None):
            timer.cancel()
        upto = {site: pushes[-1][0] for site, pushes in self._waiting[fragment].items() if pushes}
        return {"do": "merge", "fragment": fragment, "version": self._versions[fragment] + 1, "upto": upto}

    def ready(self, order: Header) -> bool:
        needed = order["pending"] if order["do"] == "settle" else [{}] * order["fragment"] + [order["upto"]]
        return all(
            any(number == push for number, *_ in self._waiting[fragment][site])
            for fragment, upto in enumerate(needed)
            for site, push in upto.items()
        )

    def apply(self, order: Header) -> None:
        fragment, version, upto = order["fragment"], order["version"], order["upto"]
        waiting = self._waiting[fragment]
        taken = [[push for push in waiting[site] if push[0] <= upto.get(site, 0)] for site in self.sites]
        for site in self.sites:
            waiting[site] = [push for push in waiting[site] if push[0] > upto.get(site, 0)]
        code = self._codec.encode(merged(taken))
        self._versions[fragment] = version
        self._included[fragment] |= upto
        by_site = {site: site_pushes for site, site_pushes in zip(self.sites, taken, strict=True) if site_pushes}
        self.log.append(
            {
                "fragment": fragment,
                "version": version,
                "taken": {site: [number for number, *_ in site_pushes] for site, site_pushes in by_site.items()},
                "tokens": {site: sum(tokens for _, tokens, _ in site_pushes) for site, site_pushes in by_site.items()},
            }
        )
        header = {
            "kind": "merged",
            "fragment": fragment,
            "version": version,
            "included": dict(self._included[fragment]),
        }
        for site in self.sites:
            self.deliver[site](header, code)

    def settle(self, headers: dict[str, Header]) -> Header:
        self._due.clear()
        while self._timers:
            self._timers.popitem()[1].cancel()
        pending = [{site: pushes[-1][0] for site, pushes in waiting.items() if pushes} for waiting in self._waiting]
        return {"pending": pending}

    def snapshot(self, order: Header) -> None:
        numbers = self.saved["syncer.numbers"].zero_()
        for fragment, waiting in enumerate(self._waiting):
            row = [self._versions[fragment], *(self._included[fragment][site] for site in self.sites)]
            for index, site in enumerate(self.sites):
                pushes = waiting[site]
                row += [pushes[-1][0], sum(tokens for _, tokens, _ in pushes)] if pushes else [0, 0]
                sums = self.saved[f"syncer.{fragment}"][index]
                sums.copy_(_sum([values for *_, values in pushes])) if pushes else sums.zero_()
            numbers[fragment] = torch.tensor(row)
        for site in self.sites:
            self.deliver[site]({"kind": "settled"}, None)
        # Nothing is merged until a site has gone on: the checkpoint has what all sites have applied.
        self._resumes = True

    def last_orders(self) -> Sequence[Header]:
        self._due.clear()
        return [self._merge(index) for index, waiting in enumerate(self._waiting) if any(waiting.values())]

    def end(self) -> None:
        for site in self.sites:
            self.deliver[site]({"kind": "final"}, None)

    def loaded(self) -> None:
        """Go on from the tensors that a checkpoint has filled; what one site had delivered is one push."""
        count = len(self.sites)
        with self.lock:
            for fragment, row in enumerate(self.saved["syncer.numbers"].tolist()):
                self._versions[fragment] = row[0]
                self._included[fragment] = dict(zip(self.sites, row[1 : 1 + count], strict=True))
                for index, site in enumerate(self.sites):
                    push, tokens = row[1 + count + 2 * index : 3 + count + 2 * index]
                    sums = self.saved[f"syncer.{fragment}"][index].clone()
                    self._waiting[fragment][site] = [(push, tokens, sums)] if push else []
            self._resumes = True


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total
