"""What each number of a page means, in a sentence: shown on hover, on focus and on touch, and in a list on the page.

A column is looked up by the name of its table and its head, then by its head alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from testbed.core.report.blocks import Table

__all__ = ["legend", "meaning"]

_OF_TABLES: Mapping[str, Mapping[str, str]] = {
    "Certificate": {
        "fiber": "The link, and the site that the packets travel toward. A round trip goes there and back.",
        "target us": "The delay that the fiber shall have, one way, in microseconds: its length times the time light"
        " takes in it, plus optics and huts.",
        "median us": "The measured delay: half of the packets took less, half took more. Without calibration it"
        " includes the path without delay, which the error leaves out.",
        "error us, min / median": "How much later than the target the fastest and the median packet were; negative:"
        " earlier. What the veths and routers take by themselves is not counted.",
        "± us": "How far off the delay may be to be certified: 50 us, or 2 % of a long fiber's delay.",
        "taken off us": "What calibration takes off the emulated delay, so that two nodes see the fiber's and no more.",
        "jitter us": "How far the delays of packets spread around their middle.",
        "lost": "Probe packets that did not arrive, of those sent.",
        "rate": "The bits per second that a train of packets arrived with, and what they stand for at full"
        " scale. Distances and delays are never scaled.",
        "verdict": "Certified: every quantity is within its tolerance. Not told: too few packets to decide. Not"
        " measured: the host delayed too many packets to judge.",
    },
    "Every quantity of the certificate": {
        "expected": "The value that the topology asks for.",
        "measured": "The value that was found.",
        "accepted": "The range that counts as right: the tolerance, or what chance allows for this many packets.",
        "verdict": "ok: within the range. bad: outside of it. not told: too few packets to decide. not measured: the"
        " host delayed too many packets.",
    },
    "Fidelity under load": {
        "packets": "Packets that the emulator sent in this direction while the job ran.",
        "late us, median / p99": "How much later than due the emulator sent a packet: half of them, and 99 of 100,"
        " were less late.",
        "longest queue": "The most bytes that were seen waiting for their turn. A queue is a property of the network.",
        "dropped by the emulator": "Packets lost because the emulator failed; losses that are configured do not count.",
        "verdict": "Held: the fiber did what was certified, also under the job's load.",
    },
    "Scale model": {
        "here": "The value in the lab.",
        "at full scale": "The value that the same lab would have at scale 1.",
        "verdict": "Holds: scaling changes nothing. Biased: too kind or too harsh, by the reason beside it.",
    },
    "Prediction": {
        "predicted": "From the certified fibers, the strategy's operations as timed alone before the job, and the"
        " compute.",
        "measured": "The mean step of the critical path, outside of faults.",
        "residual": "Measured less predicted.",
    },
    "Critical path": {
        "per step": "Mean of all committed steps, of the rank that ended each of them last.",
        "share of the step": "Of the mean step; the parts add up to it.",
        "per step with an exchange": "Mean of the steps that wait for an operation across a fiber.",
        "longest in a step": "The most that any one step spent in this part.",
    },
    "Operations between sites": {
        "size": "Bytes that one rank contributes; of an all_gather, the gathered result.",
        "took": "Median, from when all ranks had begun and the library had a slot until the last rank ended.",
        "propagation": "One-way delays of its rounds, less those during which the fiber carries its bytes.",
        "serialization": "Its own bytes over the certified payload rate.",
        "queueing": "Waiting while lanes or cores served other operations of the job.",
        "slow start": "Its connections had idled longer than TCP's timeout.",
        "software": "The remainder: work of the library, and waiting for a core.",
        "waited for a slot": "Median, after all ranks had begun; the library runs two operations of a group at once.",
    },
    "Ways of training": {
        "held-out loss": "Nats per byte of the outer parameters after the last step, on text that no run trains on.",
        "compute utilization": "Compute / (compute + exposed communication), over all ranks.",
        "goodput": "Productive time and its communication, as a share of all rank-seconds; faults are in the rest.",
        "tokens per second": "Of all ranks, faults included, evaluations not.",
        "time of training": "From the first step to the last, evaluations not included.",
        "step, mean": "Mean time of a step of the rank that ended it last; exchanges are in it.",
        "compute per step, median": "Forward, backward and optimizer of a rank, without what they waited for.",
        "exposed per step": "The part of that step that is no compute.",
        "bytes per token": "TCP payload that crossed all directions of all fibers, over the tokens of all ranks.",
        "by theory": "What the strategy's operations send between sites, over the same tokens.",
        "recovery": "The longest time between two steps that all ranks finished, near a fault.",
    },
    "Held-out loss at equal budgets (toy scale)": {
        "budget": "What the shortest of the runs that reached their last step had used at its last evaluation.",
        "held-out loss": "Nats per byte of the outer parameters, interpolated between the evaluations around the"
        " budget; none where no evaluation came before.",
    },
    "Critical path of a step": {
        "compute": "Forward, backward, optimizer.",
        "peer wait": "Until the last rank took part in the operation.",
        "late fragments": "Waiting for fragments that were to have arrived by then.",
        "propagation": "One-way delays of the fiber in sequence.",
        "serialization": "Bytes of the exchange over the certified payload rate.",
        "TCP recovery": "What retransmission added, and slow start after idling.",
        "software": "Operations inside the site, and what the library takes beside the fiber.",
        "unattributed": "What this model of a step does not explain.",
        "the step": "The sum of the parts.",
    },
    "Runs": {"seed": "Of the model, of each rank's windows and of packet losses."},
    "Cost of faults": {
        "rank-seconds": "Time that the ranks lost to the fault and its aftermath, summed over ranks.",
        "share of all": "Of world size × wall time.",
        "slowed": "What steps took longer than their fault-free pace.",
        "lost work": "Steps that were repeated, or that no checkpoint or exchange kept.",
        "detection and restart": "From the failure until training went on.",
    },
    "Rank-seconds": {
        "rank-seconds": "Seconds of all ranks together: four ranks in ten seconds have 40.",
        "productive": "Compute of steps that count, at the pace they have without faults.",
        "exposed communication": "Communication of steps that count, which no compute hid, at the same pace.",
        "checkpoint": "Time in which a checkpoint blocked training, and waiting for a peer's.",
        "lost work": "Steps that had to be done again, or that not all ranks finished.",
        "detection and restart": "From a failure until the next attempt trains.",
        "slowed by faults": "Time that steps took longer because of a fault.",
        "begin and end": "Before the first step, after the last, and between steps.",
        "evaluation": "The outer parameters on held-out text, between two steps: in no other figure of the job.",
        "not told apart": "Time of which the records do not tell what it was for.",
    },
    "Faults": {
        "#": "The number of the fault in the plots.",
        "began": "Seconds since the job began.",
        "lasted": "From the fault's beginning to its end.",
        "carrier lost after": "Until the first gateway saw that the light was gone.",
        "longest gap": "The longest time between two steps that all ranks finished, near this fault.",
        "back after": "From the fault's beginning until a step was as fast as usual again (1.1 times the median).",
        "back after its end": "From the fault's end until a step was as fast as usual again.",
    },
    "Traffic": {
        "moved": "Bytes while the program ran, with all headers of Ethernet.",
        "silences": "How often nothing moved for at least one whole interval between two readings.",
        "longest silence": "The least and the most that it may have lasted, by the readings around it.",
        "from": "Seconds since the program began.",
        "longest outside faults": "The longest silence that no fault was near: what is usual for this program.",
    },
    "Fault schedule": {
        "for": "How long the fault was planned to last.",
        "began": "How often it began, of how often it was planned to.",
    },
    "Values in force": {
        "from": "Seconds since the job began.",
        "to": "Seconds since the job began.",
    },
    "Attempts": {
        "attempt": "The number of the attempt; the first is 1.",
        "from step": "The step of the checkpoint that it resumed from; 0: from the beginning.",
        "detected after": "From the failure until the testbed knew of it.",
        "steps lost": "Steps that had been done and had to be done again.",
        "resumed after": "From the failure until the next attempt trained.",
        "goodput": "Productive time and its communication, as a share of this attempt's rank-seconds.",
    },
    "Checkers": {"found": "What the checker found to be wrong; 0 is right."},
    "What the checkers found": {
        "attempt": "The attempt in which it was found.",
        "step": "The training step in which it was found.",
        "collective": "Which collective of that step, in order.",
    },
    "Steady state": {
        "measured": "The value measured last, or the worst one where the condition was violated.",
        "bound": "The value that the condition allows.",
    },
    "Scraped metrics against step records": {
        "scraped": "The value by the ranks' own counters, as they were scraped.",
        "step records": "The value by the records that each rank wrote of its steps.",
    },
    "Gaps in scraping": {"scrapes missed": "Scrapes that the rank did not answer."},
    "Speed": {
        "size": "Bytes of the operation: its n.",
        "median, 95 % interval": "Half of the repetitions took less. Another series of the same operation would have"
        " its median within the interval 19 times of 20.",
        "one-way delays": "The median in one-way delays of the fiber: what a small message costs.",
        "bound: route in use / all routes": "The least time that the fiber's delay and rate allow.",
        "efficiency": "Bound ÷ median: 100 % is as fast as the fiber allows.",
        "algorithm / bus bandwidth": "Bytes per second as nccl-tests define them.",
    },
    "On the fiber": {
        "size": "Bytes of the operation: its n.",
        "required": "The bytes that must cross toward the site that receives most, whatever the algorithm.",
        "crossed ÷ required": "How many times that the fiber carried.",
    },
    "Fibers": {
        "one way": "The delay from one site to the other, as certified.",
        "payload rate": "Bytes of payload per second that the fiber can carry, headers taken off.",
    },
}

_OF_HEADS: Mapping[str, str] = {
    "verdict": "The judgement on this row.",
    "time s": "Seconds since the job began; negative: before it.",
    "began": "Seconds since the job began.",
    "ended": "Seconds since the job began.",
    "from s": "Seconds since the job began.",
    "to s": "Seconds since the job began.",
    "elements": "Numbers that each rank put into the operation.",
}


def meaning(table: str, head: str) -> str:
    """Return what the column ``head`` of the table labelled ``table`` means; empty where its head says it all."""
    return _OF_TABLES.get(table, {}).get(head) or _OF_HEADS.get(head, "")


def legend(*tables: Table | None) -> tuple[tuple[str, str], ...]:
    """Return the columns of the tables with their meanings, each once, for a reader without a pointer or a script."""
    listed = {head: text for table in tables if table for head in table.head if (text := meaning(table.label, head))}
    return tuple(listed.items())
