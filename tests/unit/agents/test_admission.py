"""No push is ever applied more than σ versions too late, and no set of sites blocks itself, whatever their speeds."""

from __future__ import annotations

import random
from collections import deque

import pytest
from testbed_agents.parameter_server.admission import Admission, window


class Site:
    """A site of a simulated job: it pushes, goes on while at most ``window`` pushes are unanswered, or waits."""

    def __init__(self, name: str, speed: float, pushes: int) -> None:
        self.name, self.speed, self.left = name, speed, pushes
        self.sent = self.answered = self.held = 0
        self.on_its_way: deque[int] = deque()  # versions of answers that the site has not seen yet

    def see(self, count: int) -> None:
        for _ in range(min(count, len(self.on_its_way))):
            self.held = self.on_its_way.popleft()
            self.answered += 1


@pytest.mark.parametrize("seed", range(150))
def test_staleness_is_never_above_the_bound_and_nothing_blocks(seed: int) -> None:
    drawn = random.Random(seed)
    count = drawn.randrange(1, 6)
    staleness = drawn.randrange(count - 1, 5 * count + 3)
    admission = Admission(map(str, range(count)), staleness)
    assert admission.window == window(staleness, count) >= 0
    sites = [Site(str(it), drawn.choice((0.02, 0.3, 1.0)), drawn.randrange(1, 25)) for it in range(count)]
    settles_after = {site.name: drawn.randrange(0, site.left + 1) for site in sites}
    pending: list[tuple[Site, int, int]] = []
    settled: set[str] = set()
    resumed, made, stuck = False, 0, 0
    total = sum(site.left for site in sites)
    while made < total:
        before = made, sum(site.sent for site in sites), len(settled), sum(site.answered for site in sites)
        for site in sites:
            if drawn.random() > site.speed:
                continue
            site.see(drawn.randrange(3))
            at_meeting = not resumed and site.sent == settles_after[site.name]
            if at_meeting:
                if site.answered == site.sent and site.name not in settled:
                    settled.add(site.name)
                    admission.rests(site.name)
            elif site.left and site.sent - site.answered <= admission.window:
                # It has gone on with at most ``window`` unanswered, and now pushes what it did meanwhile.
                site.sent, site.left = site.sent + 1, site.left - 1
                pending.append((site, site.sent, site.held))
                if not site.left and (resumed or site.sent != settles_after[site.name]):
                    admission.rests(site.name, sum(1 for it, *_ in pending if it is site))
        moved = True
        while moved:
            moved, seen = False, set()
            for index, (site, _, base) in enumerate(pending):
                if site.name not in seen and admission.admits(site.name):
                    assert admission.version - base <= staleness
                    site.on_its_way.append(admission.apply(site.name))
                    made += 1
                    del pending[index]
                    moved = True
                    break
                seen.add(site.name)
        if len(settled) == count and not resumed:
            assert not pending
            for name in admission.resume({site.name: site.held for site in sites}):
                sites[int(name)].held = admission.version
            for site in sites:
                if not site.left:
                    admission.rests(site.name)
            resumed = True
        after = made, sum(site.sent for site in sites), len(settled), sum(site.answered for site in sites)
        stuck = stuck + 1 if after == before else 0
        assert stuck < 3000, f"blocked at version {admission.version}"
    assert admission.version == total


def test_the_least_staleness_lets_sites_take_turns() -> None:
    admission = Admission(("a", "b"), 1)
    assert admission.window == 0
    assert admission.admits("a")
    admission.apply("a")
    assert not admission.admits("a"), "b's first push would be two versions late"
    assert admission.admits("b")


def test_a_bound_that_no_schedule_can_meet_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 for 3 sites, got 1"):
        Admission(("a", "b", "c"), 1)
