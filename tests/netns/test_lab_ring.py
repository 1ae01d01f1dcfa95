"""A ring of 64 sites: the shared-risk audit on paper and pings in the lab agree on who reaches whom, cut by cut."""

from __future__ import annotations

from builders.conditions import THOROUGH
from builders.labs import Lab, address_of, ns, shared_lab
from oracles import oracle

from testbed.core.shared_risk.audit import audit
from testbed.core.shared_risk.connectivity import Failure, Fibers

pytestmark = THOROUGH

CUTS = ("s01-s02", "s32-s33")


lab = shared_lab("ring-64")


def reached(lab: Lab, site: str, family: str) -> frozenset[str]:
    """The sites whose first node answers a ping from that of ``site``; each is asked three times."""
    others = [it.name for it in lab.topology.sites if it.name != site]
    addresses = {it: address_of(lab, f"{it}-0", family=family) for it in others}
    here = ns(lab, f"{site}-0")
    answers = oracle.pings({it: (here, address) for it, address in addresses.items()}, count=3, interval_s=0.2)
    return frozenset(it for it, times in answers.items() if times) | {site}


def test_one_cut_parts_no_sites_and_a_second_those_that_the_audit_names(lab: Lab) -> None:
    """After one cut neighbours are 64 gateways apart: as many as Linux lets a packet pass by default."""
    paper = audit(lab.topology)
    assert not paper.single_points
    fibers = Fibers(lab.topology)
    one, both = Failure(ducts=frozenset(CUTS[:1])), Failure(ducts=frozenset(CUTS))
    with lab.cut(CUTS[0]):
        (ring,) = fibers.islands(one)
        (detour,) = (
            it for cut in paper.ducts if cut.duct == CUTS[0] for it in cut.detours if it.between == ("s01", "s02")
        )
        there = oracle.addresses(ns(lab, "s02-0"), "fabric0")
        for family in ("inet", "inet6"):
            oracle.until(lambda f=family: reached(lab, "s01", f) == ring, 30.0, f"all are reached by {family}")  # type: ignore[misc]
            least_s = min(oracle.ping(ns(lab, "s01-0"), there[family], count=10))
            assert detour.rtt_after_s is not None
            assert detour.rtt_after_s <= least_s < detour.rtt_after_s + 0.02, "the long way round"
        with lab.cut(CUTS[1]):
            halves = fibers.islands(both)
            assert len(halves) == 2
            for site in ("s01", "s02"):
                (mine,) = (it for it in halves if site in it)
                oracle.until(lambda s=site, m=mine: reached(lab, s, "inet") == m, 30.0, f"{site} reaches its half")  # type: ignore[misc]
