"""Base twin of strategies whose sites exchange with a parameter server at a home site, and do not step together.

A site pushes after steps of its own count, so the operations of a step are those of all ranks that begin in *their*
step of that number, whenever it is. What the server answers belongs to the step of the push. Nothing here is a
collective between sites: messages go over connections of their own, which the watched process group does not see; the
ranks write an ``exchange`` record of each push, of its receipt, of each version that the server makes, and
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
from testbed.core.training.layout import FLOAT32_BYTES
from testbed.core.training.site_exchange import in_sites, mean_in_sites, unknown_site
from testbed.core.training.site_process import Keyed, Process, StepDone, in_order, passes
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import text
from testbed.core.training.twin import Equal, Mistake, Option, Twin

__all__ = ["HOME", "ParameterServerTwin", "faults_of_versions"]

TOKEN_BYTES, ADDRESS_BYTES = 32, 64
"""Exchanged over the default group before the first step."""

GROUP = "parcels"


HOME = Option(
    "home",
    "",
    text("the name of a site", "write one of the lab's sites"),
    "site of the server of outer parameters; the first one unless it is named",
)


class ParameterServerTwin(Twin):
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
        return unknown_site(self.layout, "home", "home site", self.home)

    def operations(self, step: int) -> Sequence[Operation]:
        layout = self.layout
        if step == 0:
            return (
                Operation("broadcast", layout.everyone, TOKEN_BYTES, "state"),
                Operation("all_gather", layout.everyone, ADDRESS_BYTES * layout.world_size, "state"),
            )
        if not 1 <= step <= layout.steps:
            return ()
        operations = mean_in_sites(layout)
        for site in layout.site_names:
            for fragment, elements in self._pushed_or_due(site, step):
                operations += [replace(part, fragment=fragment) for part in self._exchange(site, elements)]
        for (fragment, index), count in self._merged.get(step, {}).items():
            for site in layout.site_names if self.home in layout.members else ():
                if site != self.home:
                    operations += [replace(self._answer(site, index, fragment), fragment=fragment)] * count
        return (*operations, *in_sites(layout, "all_reduce", self.agreed_bytes, "state"))

    def as_recorded(self, records: Iterable[Mapping[str, Any]]) -> ParameterServerTwin:
        pushed: dict[tuple[str, int], set[int | None]] = defaultdict(set)
        merged: dict[int, Counter[tuple[int | None, int]]] = defaultdict(Counter)
        for record in records:
            if record.get("what") == "pushed":
                pushed[str(record.get("site")), int(record.get("step", 0))].add(record.get("fragment"))
            elif record.get("what") == "served" and "taken" in record:  # an update of all sites, no answer to one
                merged[int(record.get("step", 0))][record.get("fragment"), int(record.get("slice", 0))] += 1
        if not pushed:
            return self
        recorded = copy.copy(self)
        recorded._pushed = {place: frozenset(fragments) for place, fragments in pushed.items()}
        recorded._merged = merged
        return recorded

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
        means = exchanges(mean_in_sites(layout), layout.sites)
        agreed = exchanges(in_sites(layout, "all_reduce", self.agreed_bytes, "state"), layout.sites)
        return {
            site: (
                tuple((site, replace(mean, parts=mean.first.parts)) for mean in means if site in mean.sites),
                [agreement for agreement in agreed if site in agreement.sites],
            )
            for site in layout.site_names
        }

    def trip(self, site: str, elements: int) -> tuple[Exchange, Exchange, tuple[Exchange, ...]]:
        """Return the push of ``elements`` from ``site`` to the server, the answer, and what follows in the site.

        Of the server's own site they move nothing.
        """
        operations = self._exchange(site, elements)
        sent = [operation for operation in operations if operation.kind == "send"]
        push = tuple(message for message in sent if self.layout.sites[message.ranks[0]] == site)
        answer = tuple(message for message in sent if self.layout.sites[message.ranks[0]] != site)
        inside = tuple(Exchange((operation,), (site,)) for operation in operations if operation.kind != "send")
        return Exchange(push, (site,)), Exchange(answer, (site,)), inside

    def pushes(self, site: str, step: int) -> Sequence[tuple[int | None, int]]:
        """Return the fragments that ``site`` pushes after its ``step``, and their elements."""
        raise NotImplementedError

    def elements(self, fragment: int | None) -> int:
        """Return how many parameters a fragment has; None: all of them."""
        return self.layout.elements

    def _pushed_or_due(self, site: str, step: int) -> Sequence[tuple[int | None, int]]:
        if self._pushed is None:
            return self.pushes(site, step)
        pushed = self._pushed.get((site, step), frozenset())
        in_order = sorted(pushed, key=lambda fragment: -1 if fragment is None else fragment)
        return [(fragment, self.elements(fragment)) for fragment in in_order]

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
        return (Equal("parameters", self.layout.everyone), *(Equal("outer", ranks) for ranks in slices))

    def _exchange(self, site: str, elements: int) -> list[Operation]:
        members, slice_bytes, operations = self.layout.members, self.slice_bytes(elements), list[Operation]()
        if site != self.home and self.home in members:
            for index in range(self.layout.slices):
                there, here = members[self.home][index], members[site][index]
                push = Operation("send", (here, there), slice_bytes, "pseudo-gradients", GROUP, lands=1, watched=False)
                answer = replace(push, ranks=(there, here), what="parameters", at_most=self.most_answers)
                if self._pushed is None:
                    operations += [replace(push, at_most=self.most_pushes), answer]
                else:
                    operations += [push] if self._merged else [push, replace(answer, at_most=1.0)]
        ranks = members[site]
        if len(ranks) > 1:
            whole = float(FLOAT32_BYTES * -(-elements // self.layout.slices) * len(ranks))
            name = f"adopted:{site}"
            operations.append(Operation("all_gather", ranks, whole, "parameters", name, watched=False))
        return operations

    def _answer(self, site: str, index: int, fragment: int | None) -> Operation:
        """Return what the server sends to ``site`` of one slice of a merged fragment."""
        ranks = (self.layout.members[self.home][index], self.layout.members[site][index])
        slice_bytes = self.slice_bytes(self.elements(fragment))
        return Operation("send", ranks, slice_bytes, "parameters", GROUP, lands=1, watched=False)


def faults_of_versions(records: Iterable[Mapping[str, Any]], staleness: int | None = None) -> list[str]:
    """Return what is wrong with the ``exchange`` records of one attempt, of all ranks, one sentence each.

    ``staleness``: the most versions between the one that a push is based on and the one that it makes; None: no bound.
    """
    written = list(records)
    faults: list[str] = []
    made: dict[tuple[Any, ...], Any] = {}
    for record in written:
        if record["what"] != "served":
            continue
        key = (record.get("fragment"), record.get("slice"), record["version"])
        if key in made:
            faults.append(f"{_name(record)} was made twice")
        made[key] = record
        if staleness is not None and record.get("staleness", 0) > staleness:
            faults.append(
                f"{_name(record)} took a push of {record['site']} that was {record['staleness']} versions old,"
                f" {staleness} allowed"
            )
        # An attempt that resumes goes on with both numbers; where sites apply merges themselves, there is no count.
        if record.get("steps", record["version"]) != record["version"]:
            faults.append(f"{_name(record)} was made by {record['steps']} steps of the outer optimizer")
    faults += _chain(made)
    faults += _steps_pushed(written)
    faults += _received(written)
    for (where, number), count in _taken(made.values()).items():
        if count > 1:
            faults.append(f"push {number} of {_where(where)} is in {count} versions")
    adopted: dict[tuple[Any, ...], Any] = {}
    for record in written:
        if record["what"] != "pulled" or record.get("slice") is None:
            continue
        key = (record.get("fragment"), record["slice"], record["version"])
        source = made.get(key, {})
        # Where the server does not hold the parameters itself, all sites that adopted a version must agree.
        crc = source.get("crc", adopted.setdefault(key, record["crc"]))
        if record["crc"] != crc:
            faults.append(f"{record['site']} adopted other parameters as {_name(record)} than were made")
        # The last version may have been sent and not been recorded when a job was ended.
        if key not in made and 0 < record["version"] < max((old[2] for old in made if old[:2] == key[:2]), default=0):
            faults.append(f"{record['site']} adopted {_name(record)}, which was never made")
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
    for record in written:
        if record["what"] == "pushed" and "first" in record:
            where, steps = (record.get("fragment"), None, record["site"]), (record["first"], record["step"])
            if by_site.setdefault(where, {}).setdefault(record["push"], steps) != steps:
                yield f"ranks of {_where(where)} made push {record['push']} of different steps"
    for where, pushes in by_site.items():
        for push, (_, last) in pushes.items():
            first = pushes.get(push + 1, (last + 1, 0))[0]
            if first != last + 1:
                yield f"push {push} of {_where(where)} ends with step {last}, and the next one begins with step {first}"


def _received(written: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Yield a sentence for each push that arrived with other bytes than were sent, or more than once."""
    sent: dict[tuple[Any, ...], Any] = {}
    received: Counter[tuple[Any, ...]] = Counter()
    for record in written:
        key = (record.get("fragment"), record.get("slice"), record.get("site"), record.get("push"))
        if record["what"] == "pushed" and "parcel_crc" in record:
            sent[key] = record["parcel_crc"]
    for record in written:
        if record["what"] != "received":
            continue
        key = (record.get("fragment"), record.get("slice"), record.get("site"), record.get("push"))
        received[key] += 1
        if record["parcel_crc"] != sent.get(key, record["parcel_crc"]):
            name = _where((*key[:2], record["site"]))
            yield f"push {record['push']} of {name} arrived with other bytes than were sent"
    for (*where, site, push), count in received.items():
        if count > 1:
            yield f"push {push} of {_where((*where, site))} arrived {count} times"


def _taken(made: Iterable[Any]) -> Counter[tuple[tuple[Any, ...], int]]:
    """Count in how many versions each push is."""
    versions: Counter[tuple[tuple[Any, ...], int]] = Counter()
    for record in made:
        for site, numbers in _pushes(record).items():
            for number in numbers:
                versions[(record.get("fragment"), record.get("slice"), site), number] += 1
    return versions


def _pushes(record: Any) -> dict[str, Sequence[int]]:
    taken = record.get("taken")
    return (
        {record["site"]: (record["push"],)}
        if taken is None
        else {site: tuple(numbers) for site, numbers in taken.items()}
    )


def _name(record: Any) -> str:
    part = "" if record.get("slice") is None else f" of slice {record['slice']}"
    return f"version {record['version']}{part}" + (
        "" if record.get("fragment") is None else f" of fragment {record['fragment']}"
    )


def _where(where: tuple[Any, ...]) -> str:
    fragment, part, site = where
    return (
        f"{site}" + ("" if fragment is None else f", fragment {fragment}") + ("" if part is None else f", slice {part}")
    )
