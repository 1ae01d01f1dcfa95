"""What strategies encode, decode and add themselves, and the steps of their outer optimizers.

Of a sum of decoded values (``testbed_agents.recording.evidence``), in the recorded elements:

- this rank's own decoded values are within the codec's bound of what it encoded;
- every rank decoded the same values of a member: those that the member itself decoded;
- the total is their float32 sum in the order of addition, bit for bit; with weights, within rounding;
- error feedback: accumulator = decay * before + added, residual = accumulator - decoded, and an exchange begins with
  the residual that the one before left, by the CRC-32 of all of it.

Of a step of an outer optimizer: m ← momentum m + g, Θ ← Θ - rate (g + momentum m), within rounding; each step begins
with what the one before left, by CRC-32; there is one step of an optimizer in a step of the job. Delayed Nesterov
numbers its steps, and is recomputed by its own rule (Liu et al. 2024, arXiv:2401.09135, Algorithm 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.core.checkers.finding import CheckerFinding, named
from testbed.core.checkers.rounding import in_order, same
from testbed.core.records.check_record import Grouped
from testbed.core.records.operation_record import Encoded, OuterStep

__all__ = ["Coded", "codecs", "outer_steps"]

_EPSILON = 2.0**-23
_TINY = 2.0**-126

_Chain = tuple[int, str, int | None, tuple[int, ...]]


@dataclass(frozen=True)
class Coded:
    """Findings, what was looked at (empty for nothing), and why something could not be decided."""

    findings: tuple[CheckerFinding, ...] = ()
    looked_at: str = ""
    undecided: str = ""


def codecs(records: Grouped) -> Coded:
    """Judge all sums of decoded values of a job."""
    chains: dict[_Chain, dict[int, dict[int, Encoded]]] = {}
    for rank, listed in records.encoded.items():
        for event in listed:
            chain = (event.attempt, event.what, event.fragment, event.ranks)
            chains.setdefault(chain, {}).setdefault(event.number, {})[rank] = event
    findings: list[CheckerFinding] = []
    undecided = ""
    for numbers in chains.values():
        for number, ranks in sorted(numbers.items()):
            for rank, record in sorted(ranks.items()):
                texts = [
                    *_alone(record),
                    *_against_members(record, ranks),
                    *_follows(record, numbers.get(number - 1, {}), rank),
                ]
                findings += [_finding(record, rank, text) for text in texts]
            first = next(iter(ranks.values()))
            missing = [rank for rank in first.ranks if rank not in ranks]
            late = first.step > records.last_step(first.attempt) - records.longest_gap
            if missing and not late and not undecided:
                undecided = f"{named(missing)} did not record exchange {number} of {_name(first)}"
    count = sum(len(numbers) for numbers in chains.values())
    looked_at = f"{count} sums of decoded values recomputed" if count else ""
    return Coded(tuple(findings), looked_at, undecided)


def _finding(encoded: Encoded, rank: int, text: str) -> CheckerFinding:
    where = f"{_name(encoded)}, exchange {encoded.number}: rank {rank}: {text}"
    return CheckerFinding(encoded.attempt, encoded.step, encoded.number, (rank,), where, encoded.what, encoded.fragment)


def _name(encoded: Encoded) -> str:
    return encoded.what if encoded.fragment is None else f"{encoded.what}, fragment {encoded.fragment}"


def _alone(encoded: Encoded) -> list[str]:
    """Return what is wrong with one rank's record by itself."""
    texts = []
    mine = encoded.decoded[encoded.own] if encoded.own < len(encoded.decoded) else ()
    bad = [
        index
        for index, (x, decoded, bound) in enumerate(zip(encoded.inputs, mine, encoded.bound, strict=False))
        if not abs(x - decoded) <= bound + _EPSILON * (abs(x) + abs(decoded)) + _TINY
    ]
    if bad:
        at = bad[0]
        texts.append(
            f"element {encoded.at[at]} was decoded as {mine[at]:.9g} from {encoded.inputs[at]:.9g}: off by more than"
            f" {encoded.bound[at]:.3g}"
        )
    for index, got in enumerate(encoded.total):
        values = [part[index] for part in encoded.decoded]
        if not _is_total(got, values, encoded.weights):
            texts.append(f"element {encoded.at[index]} of the total is {got:.9g}, not the sum of the decoded values")
            break
    return texts + _feedback(encoded, mine)


def _is_total(got: float, values: Sequence[float], weights: Sequence[float]) -> bool:
    if not weights:
        return same(in_order(values), got)
    products = [weight * value for weight, value in zip(weights, values, strict=True)]
    if not all(map(math.isfinite, products)):
        return not math.isfinite(got)
    bound = 2 * len(products) * _EPSILON * math.fsum(map(abs, products)) + _TINY
    return abs(got - math.fsum(products)) <= bound


def _feedback(encoded: Encoded, mine: Sequence[float]) -> list[str]:
    texts = []
    for index, kept in enumerate(encoded.residual):
        x, sent = encoded.inputs[index], mine[index]
        if not abs(kept - (x - sent)) <= _EPSILON * (abs(x) + abs(sent)) + _TINY:
            texts.append(
                f"the residual of element {encoded.at[index]} is {kept:.9g}; accumulator less what was transmitted is"
                f" {x - sent:.9g}"
            )
            break
    if encoded.before and encoded.added and encoded.decay is not None:
        for index, (before, added) in enumerate(zip(encoded.before, encoded.added, strict=True)):
            expected = encoded.decay * before + added
            if not abs(encoded.inputs[index] - expected) <= 2 * _EPSILON * (abs(before) + abs(added)) + _TINY:
                texts.append(
                    f"the accumulator of element {encoded.at[index]} is {encoded.inputs[index]:.9g},"
                    f" expected {expected:.9g}"
                )
                break
    return texts


def _against_members(encoded: Encoded, ranks: Mapping[int, Encoded]) -> list[str]:
    """Compare what this rank decoded of each member with what the member itself decoded."""
    wrong = []
    for index, member in enumerate(encoded.ranks):
        of = ranks.get(member)
        if of is None or of.at != encoded.at or index >= len(encoded.decoded) or of.own >= len(of.decoded):
            continue
        if not all(map(same, encoded.decoded[index], of.decoded[of.own])):
            wrong.append(member)
    return [f"decoded other values of {named(wrong)} than they have"] if wrong else []


def _follows(encoded: Encoded, before: Mapping[int, Encoded], rank: int) -> list[str]:
    """Compare what an exchange began with and what the one before left."""
    last = before.get(rank)
    if last is None or not last.residual_crc32 or not encoded.before_crc32:
        return []
    if last.residual_crc32 == encoded.before_crc32:
        return []
    return [f"began with another residual than exchange {last.number} left"]


def outer_steps(records: Grouped) -> Coded:
    """Judge all steps of outer optimizers of a job."""
    findings: list[CheckerFinding] = []
    count = 0
    for rank, listed in sorted(records.outer.items()):
        last: dict[tuple[int, str], OuterStep] = {}
        for event in listed:
            count += 1
            before = last.get((event.attempt, event.name))
            texts = list(_delayed_nesterov(event) if event.delay else _nesterov(event))
            # At the end of a job, what is on its way lands, and is exchanged once more: two exchanges after one step.
            if before is not None and before.step == event.step and before.gradient == event.gradient:
                texts.append("an exchange was applied twice")
            if before is not None and not event.restarted and before.after_crc32 != event.before_crc32:
                texts.append(f"the outer state is not the one that step {before.step} left")
            if before is not None and not event.restarted and event.delay and event.number != before.number + 1:
                texts.append(f"step {event.number} of the outer optimizer follows its step {before.number}")
            last[event.attempt, event.name] = event
            findings += [
                CheckerFinding(
                    event.attempt, event.step, None, (rank,), f"{event.name}: rank {rank}: {text}", event.name
                )
                for text in texts
            ]
    return Coded(tuple(findings), f"{count} steps of outer optimizers recomputed" if count else "")


def _nesterov(outer_step: OuterStep) -> list[str]:
    for index, gradient in enumerate(outer_step.gradient):
        momentum, size = 0.0, abs(gradient)
        if outer_step.momentum and outer_step.momentum_before and outer_step.momentum_after:
            old = outer_step.momentum * outer_step.momentum_before[index]
            momentum = outer_step.momentum_after[index]
            size += abs(old) + abs(momentum)
            if not abs(momentum - (old + gradient)) <= 4 * _EPSILON * size + _TINY:
                return [
                    f"the outer momentum of element {outer_step.at[index]} is {momentum:.9g},"
                    f" expected {old + gradient:.9g}"
                ]
        expected = outer_step.before[index] - outer_step.rate * (gradient + outer_step.momentum * momentum)
        size = abs(outer_step.before[index]) + outer_step.rate * size
        if not abs(outer_step.after[index] - expected) <= 4 * _EPSILON * size + _TINY:
            return [f"element {outer_step.at[index]} became {outer_step.after[index]:.9g}, expected {expected:.9g}"]
    return []


def _delayed_nesterov(outer_step: OuterStep) -> list[str]:
    """Δ ← Δ + g; every N-th step m ← β m + Δ/N, Δ ← 0; Θ ← Θ - rate (a β m + g/N), a = c, every N-th 1 - cN + c."""
    count, moves = outer_step.delay, outer_step.number % outer_step.delay == 0
    share = 1.0 - outer_step.activation * count + outer_step.activation if moves else outer_step.activation
    rows = zip(
        outer_step.at, outer_step.before, outer_step.momentum_before, outer_step.gathered_before, outer_step.gradient,
        outer_step.after, outer_step.momentum_after, outer_step.gathered_after, strict=True,
    )  # fmt: skip
    for at, theta, m, gathered, gradient, theta_after, m_after, gathered_after in rows:
        total = gathered + gradient
        size = abs(gathered) + abs(gradient) + abs(m)
        momentum = outer_step.momentum * m + total / count if moves else m
        value = theta - outer_step.rate * (share * outer_step.momentum * momentum + gradient / count)
        parts = (
            ("the sum of pushes", gathered_after, 0.0 if moves else total, size),
            ("the outer momentum", m_after, momentum, size),
            ("the outer parameter", theta_after, value, abs(theta) + outer_step.rate * size),
        )
        for what, got, expected, scale in parts:
            if not abs(got - expected) <= 8 * _EPSILON * scale + _TINY:
                return [f"{what} of element {at} became {got:.9g}, expected {expected:.9g}"]
    return []
