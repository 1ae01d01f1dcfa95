"""What is said of a direction on netem, from what the kernel counts of two qdiscs and two interfaces."""

from __future__ import annotations

from testbed.host.emulators.netem_stats import Counted
from testbed.host.emulators.tc import Counters
from testbed.host.linux.interfaces import Traffic


def qdisc(packets: int = 0, drops: int = 0, qlen: int = 0, backlog: int = 0) -> Counters:
    return Counters(1500 * packets, packets, drops, qlen, backlog)


def interface(sent: int = 0, dropped: int = 0) -> Traffic:
    return Traffic(sent_bytes=1500 * sent, received_bytes=0, sent_packets=sent, received_drops=dropped)


def test_what_netem_drops_beyond_its_childs_is_chance_where_there_is_loss_else_its_own_limit():
    counted = Counted()
    counted.look(qdisc(drops=10), qdisc(drops=4), by_chance=True)
    counted.look(qdisc(drops=17), qdisc(drops=6), by_chance=False)
    found = counted.stats("north:west", qdisc(drops=17), qdisc(drops=6), 0, interface(), interface())
    assert (found.drops["loss"], found.drops["memory"], found.drops["queue"]) == (6, 5, 6)


def test_what_replaced_qdiscs_had_counted_is_kept():
    counted = Counted()
    gone = (qdisc(packets=100, drops=3), qdisc(packets=100, drops=2))
    counted.look(*gone, by_chance=True)
    counted.replaced(*gone)
    counted.look(qdisc(packets=7, drops=5), qdisc(packets=7, drops=4), by_chance=True)
    found = counted.stats(
        "north:west", qdisc(packets=7, qlen=3), qdisc(drops=4, backlog=900), 0, interface(), interface()
    )
    assert (found.segments, found.bytes) == (107, 107 * 1500)
    assert (found.drops["loss"], found.drops["queue"]) == (1 + 1, 2 + 4)
    assert (found.in_flight_packets, found.queue_bytes) == (3, 900)


def test_interfaces_count_from_when_it_began():
    counted = Counted()
    counted.begin(sender=interface(50, 1), receiver=interface(60, 2))
    found = counted.stats("north:west", qdisc(), qdisc(), 8, interface(75, 1), interface(90, 5))
    assert (found.direction, found.packets) == ("north:west", 25)
    assert (found.drops["size"], found.drops["receive"]) == (8, 3)
