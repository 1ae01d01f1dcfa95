"""What twins share whose sites exchange with a server at a home site, and do not step together.

A site pushes after steps of its own count, so the operations of a step are those of all ranks that begin in *their*
step of that number, whenever it is. What the server answers belongs to the step of the push. Nothing here is a
collective between sites: the messages are parcels over connections of their own, which the watched process group does
not see; the ranks write an ``exchange`` record of each push, of its receipt, of each version that the server makes, and
of each that a site adopts. From these :func:`faults_of_versions` tells whether each push arrived as it was sent,
whether every version that was adopted is the one that was made, whether each push is in one version exactly once, and
whether one was too stale.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from testbed.core.training.exchange import Exchange, exchanges
from testbed.core.training.layout import FLOAT32_BYTES, Layout
from testbed.core.training.site_exchange import mean_in_sites
from testbed.core.training.site_process import Keyed, Process, StepDone, in_order, passes
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Mistake, Option, Twin
from testbed.core.units import Unreadable
from testbed.core.user_text import expected, unknown

__all__ = ["HOME", "Served", "faults_of_versions"]

TOKEN_BYTES, ADDRESS_BYTES = 32, 64
"""Exchanged over the default group before the first step."""

GROUP = "parcels"


def _site(value: object) -> str:
    if not isinstance(value, str):
        raise Unreadable(*expected("the name of a site", value, "write one of the lab's sites"))
    return value


HOME = Option("home", "", _site, "site of the server of outer parameters; the first one unless it is named")


class Served(Twin):
    """``agreed_bytes``: what the ranks of a site agree on after each step, by an all-reduce."""

    agreed_bytes: int
    alike = False
    together = False
    _pushed: Mapping[tuple[str, int], frozenset[int | None]] | None = None
    """Fragments by site and step of its own, as recorded; None: at equal paces."""
    _merged: Mapping[int, Mapping[tuple[int | None, int], int]] = {}
    """Step of the home site -> (fragment, slice) -> how many versions were sent to all sites, as recorded."""
    composed = False
    unpredicted = "its sites go at their own paces, and what one waits for at the server cannot be timed before the job"

    @property
    def home(self) -> str:
        return str(self.values["home"]) or self.layout.site_names[0]

    def mistakes(self) -> Sequence[Mistake]:
        if self.home in self.layout.site_names:
            return ()
        message, fix = unknown("home site", self.home, self.layout.site_names)
        return (Mistake("home", message, fix or f"write one of {', '.join(self.layout.site_names)}"),)

    def operations(self, step: int) -> Sequence[Operation]:
        layout = self.layout
        if step == 0:
            everyone = tuple(range(layout.world_size))
            return (
                Operation("broadcast", everyone, TOKEN_BYTES, "state"),
                Operation("all_gather", everyone, ADDRESS_BYTES * layout.world_size, "state"),
            )
        if not 1 <= step <= layout.steps:
            return ()
        found = mean_in_sites(layout, layout.payload_bytes)
        for site in layout.site_names:
            for fragment, elements in self._due_or_done(site, step):
                found += [replace(it, fragment=fragment) for it in self._exchange(site, elements)]
        for (fragment, index), count in self._merged.get(step, {}).items():
            for site in layout.site_names if self.home in layout.members else ():
                if site != self.home:
                    found += [replace(self._answer(site, index, fragment), fragment=fragment)] * count
        return (*found, *in_sites(layout, "all_reduce", self.agreed_bytes, "state"))

    def as_recorded(self, records: Iterable[Mapping[str, Any]]) -> Served:
        pushed: dict[tuple[str, int], set[int | None]] = defaultdict(set)
        merged: dict[int, Counter[tuple[int | None, int]]] = defaultdict(Counter)
        for it in records:
            if it.get("what") == "pushed":
                pushed[str(it.get("site")), int(it.get("step", 0))].add(it.get("fragment"))
            elif it.get("what") == "served" and "taken" in it:  # an update of all sites, no answer to one
                merged[int(it.get("step", 0))][it.get("fragment"), int(it.get("slice", 0))] += 1
        if not pushed:
            return self
        found = copy.copy(self)
        found._pushed = {place: frozenset(fragments) for place, fragments in pushed.items()}
        found._merged = merged
        return found

    def train_alone(self, site: str, step: int) -> Process:
        """Do a step inside ``site``: the mean gradient beside the backward pass, and what its ranks agree on."""
        inside, agreed = self._inside[site]
        yield from passes(inside, (site, step))
        yield from in_order(agreed, ("agreed", site, step))

    def quiet_step(self, site: str, step: int) -> Process:
        """Do a step after which nothing is pushed."""
        yield from self.train_alone(site, step)
        yield StepDone()

    @cached_property
    def _inside(self) -> Mapping[str, tuple[Keyed, Sequence[Exchange]]]:
        layout = self.layout
        mean = exchanges(mean_in_sites(layout, layout.payload_bytes), layout.sites)
        agreed = exchanges(in_sites(layout, "all_reduce", self.agreed_bytes, "state"), layout.sites)
        return {
            site: (
                tuple((site, replace(it, parts=it.first.parts)) for it in mean if site in it.sites),
                [it for it in agreed if site in it.sites],
            )
            for site in layout.site_names
        }

    def trip(self, site: str, elements: int) -> tuple[Exchange, Exchange, tuple[Exchange, ...]]:
        """Return the push of ``elements`` from ``site`` to the server, the answer, and what follows in the site.

        Of the server's own site they move nothing.
        """
        operations = self._exchange(site, elements)
        sent = [it for it in operations if it.kind == "send"]
        push = tuple(it for it in sent if self.layout.sites[it.ranks[0]] == site)
        answer = tuple(it for it in sent if self.layout.sites[it.ranks[0]] != site)
        inside = tuple(Exchange((it,), (site,)) for it in operations if it.kind != "send")
        return Exchange(push, (site,)), Exchange(answer, (site,)), inside

    def pushes(self, site: str, step: int) -> Sequence[tuple[int | None, int]]:
        """Return the fragments that ``site`` pushes after its ``step``, and their elements."""
        raise NotImplementedError

    def elements(self, fragment: int | None) -> int:
        """Return how many parameters a fragment has; None: all of them."""
        return self.layout.elements

    def _due_or_done(self, site: str, step: int) -> Sequence[tuple[int | None, int]]:
        if self._pushed is None:
            return self.pushes(site, step)
        done = self._pushed.get((site, step), frozenset())
        return [(it, self.elements(it)) for it in sorted(done, key=lambda it: -1 if it is None else it)]

    @property
    def most_pushes(self) -> float:
        """How many pushes a site may make for each one of :meth:`pushes`."""
        return 1.0

    @property
    def most_answers(self) -> float:
        """How many answers it may get for each one of them."""
        return self.most_pushes

    def outer_updates(self, step: int) -> int:
        """0: which versions a site has after a step depends on the others' paces."""
        return 0

    def slice_bytes(self, elements: int) -> float:
        """Return what one slice of ``elements`` puts on a fiber, each way; slices are padded to the same size."""
        return float(FLOAT32_BYTES * -(-elements // self.layout.slices))

    def parcel_bytes(self, fragment: int | None) -> float | None:
        return self.slice_bytes(self.elements(fragment))

    def equal(self, step: int) -> Sequence[Equal]:
        members = self.layout.members
        if 0 < step < self.layout.steps:
            return tuple(Equal("parameters", ranks) for ranks in members.values())
        slices = [tuple(ranks[index] for ranks in members.values()) for index in range(self.layout.slices)]
        everyone = tuple(range(self.layout.world_size))
        return (Equal("parameters", everyone), *(Equal("outer", ranks) for ranks in slices))

    def _exchange(self, site: str, elements: int) -> list[Operation]:
        members, each = self.layout.members, self.slice_bytes(elements)
        found = []
        if site != self.home and self.home in members:
            for index in range(self.layout.slices):
                there, here = members[self.home][index], members[site][index]
                push = Operation("send", (here, there), each, "pseudo-gradients", GROUP, lands=1, watched=False)
                answer = replace(push, ranks=(there, here), what="parameters", at_most=self.most_answers)
                if self._pushed is None:
                    found += [replace(push, at_most=self.most_pushes), answer]
                else:
                    found += [push] if self._merged else [push, replace(answer, at_most=1.0)]
        ranks = members[site]
        if len(ranks) > 1:
            whole = float(FLOAT32_BYTES * -(-elements // self.layout.slices) * len(ranks))
            found.append(Operation("all_gather", ranks, whole, "parameters", f"adopted:{site}", watched=False))
        return found

    def _answer(self, site: str, index: int, fragment: int | None) -> Operation:
        """Return what the server sends to ``site`` of one slice of a merged fragment."""
        ranks = (self.layout.members[self.home][index], self.layout.members[site][index])
        each = self.slice_bytes(self.elements(fragment))
        return Operation("send", ranks, each, "parameters", GROUP, lands=1, watched=False)


def in_sites(layout: Layout, kind: Any, byte_count: float, what: str) -> list[Operation]:
    """Return an operation of the ranks of each site that has several."""
    return [
        Operation(kind, ranks, byte_count, what, f"site:{name}")
        for name, ranks in layout.members.items()
        if len(ranks) > 1
    ]


def faults_of_versions(records: Iterable[Mapping[str, Any]], staleness: int | None = None) -> list[str]:
    """Return what is wrong with the ``exchange`` records of one attempt, of all ranks, one sentence each.

    ``staleness``: the most versions between the one that a push is based on and the one that it makes; None: no bound.
    """
    written = list(records)
    faults: list[str] = []
    made: dict[tuple[Any, ...], Any] = {}
    for it in written:
        if it["what"] != "served":
            continue
        key = (it.get("fragment"), it.get("slice"), it["version"])
        if key in made:
            faults.append(f"{_name(it)} was made twice")
        made[key] = it
        if staleness is not None and it.get("staleness", 0) > staleness:
            faults.append(
                f"{_name(it)} took a push of {it['site']} that was {it['staleness']} versions old, {staleness} allowed"
            )
        # An attempt that resumes goes on with both numbers; where sites apply merges themselves, there is no count.
        if it.get("steps", it["version"]) != it["version"]:
            faults.append(f"{_name(it)} was made by {it['steps']} steps of the outer optimizer")
    faults += _chain(made)
    faults += _steps_pushed(written)
    faults += _received(written)
    for (where, number), count in _taken(made.values()).items():
        if count > 1:
            faults.append(f"push {number} of {_where(where)} is in {count} versions")
    told: dict[tuple[Any, ...], Any] = {}
    for it in written:
        if it["what"] != "pulled" or it.get("slice") is None:
            continue
        key = (it.get("fragment"), it["slice"], it["version"])
        source = made.get(key, {})
        # Where the server does not hold the parameters itself, all sites that adopted a version must agree.
        crc = source.get("crc", told.setdefault(key, it["crc"]))
        if it["crc"] != crc:
            faults.append(f"{it['site']} adopted other parameters as {_name(it)} than were made")
        # The last version may have been sent and not been recorded when a job was ended.
        if key not in made and 0 < it["version"] < max((old[2] for old in made if old[:2] == key[:2]), default=0):
            faults.append(f"{it['site']} adopted {_name(it)}, which was never made")
    return faults


def _chain(made: Mapping[tuple[Any, ...], Any]) -> Iterable[str]:
    """Yield a sentence for each gap in the versions of a slice; an attempt may begin with a later one than 1."""
    by_slice: dict[tuple[Any, ...], list[int]] = {}
    for fragment, part, version in made:
        by_slice.setdefault((fragment, part), []).append(version)
    for (fragment, part), versions in by_slice.items():
        missing = sorted(set(range(min(versions), max(versions) + 1)) - set(versions))
        for version in missing:
            yield f"{_name({'fragment': fragment, 'slice': part, 'version': version})} is missing"


def _steps_pushed(written: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Yield a sentence for each inner step that is in two pushes of its site or in none, or if its ranks differ."""
    by_site: dict[tuple[Any, ...], dict[int, tuple[int, int]]] = {}
    for it in written:
        if it["what"] == "pushed" and "first" in it:
            where, steps = (it.get("fragment"), None, it["site"]), (it["first"], it["step"])
            if by_site.setdefault(where, {}).setdefault(it["push"], steps) != steps:
                yield f"ranks of {_where(where)} made push {it['push']} of different steps"
    for where, pushes in by_site.items():
        for push, (_, last) in pushes.items():
            first = pushes.get(push + 1, (last + 1, 0))[0]
            if first != last + 1:
                yield f"push {push} of {_where(where)} ends with step {last}, and the next one begins with step {first}"


def _received(written: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Yield a sentence for each push that arrived with other bytes than were sent, or more than once."""
    sent: dict[tuple[Any, ...], Any] = {}
    received: Counter[tuple[Any, ...]] = Counter()
    for it in written:
        key = (it.get("fragment"), it.get("slice"), it.get("site"), it.get("push"))
        if it["what"] == "pushed" and "parcel_crc" in it:
            sent[key] = it["parcel_crc"]
    for it in written:
        if it["what"] != "received":
            continue
        key = (it.get("fragment"), it.get("slice"), it.get("site"), it.get("push"))
        received[key] += 1
        if it["parcel_crc"] != sent.get(key, it["parcel_crc"]):
            yield f"push {it['push']} of {_where((*key[:2], it['site']))} arrived with other bytes than were sent"
    for (*where, site, push), count in received.items():
        if count > 1:
            yield f"push {push} of {_where((*where, site))} arrived {count} times"


def _taken(made: Iterable[Any]) -> Counter[tuple[tuple[Any, ...], int]]:
    """Count in how many versions each push is."""
    found: Counter[tuple[tuple[Any, ...], int]] = Counter()
    for it in made:
        for site, numbers in _pushes(it).items():
            for number in numbers:
                found[(it.get("fragment"), it.get("slice"), site), number] += 1
    return found


def _pushes(it: Any) -> dict[str, Sequence[int]]:
    taken = it.get("taken")
    return {it["site"]: (it["push"],)} if taken is None else {site: tuple(numbers) for site, numbers in taken.items()}


def _name(it: Any) -> str:
    part = "" if it.get("slice") is None else f" of slice {it['slice']}"
    return f"version {it['version']}{part}" + ("" if it.get("fragment") is None else f" of fragment {it['fragment']}")


def _where(where: tuple[Any, ...]) -> str:
    fragment, part, site = where
    return (
        f"{site}" + ("" if fragment is None else f", fragment {fragment}") + ("" if part is None else f", slice {part}")
    )
