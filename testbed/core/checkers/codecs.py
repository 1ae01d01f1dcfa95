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
        for each in listed:
            chain = (each.attempt, each.what, each.fragment, each.ranks)
            chains.setdefault(chain, {}).setdefault(each.number, {})[rank] = each
    findings: list[CheckerFinding] = []
    undecided = ""
    for numbers in chains.values():
        for number, ranks in sorted(numbers.items()):
            for rank, each in sorted(ranks.items()):
                texts = [
                    *_alone(each),
                    *_against_members(each, ranks),
                    *_follows(each, numbers.get(number - 1, {}), rank),
                ]
                findings += [_finding(each, rank, text) for text in texts]
            first = next(iter(ranks.values()))
            missing = [rank for rank in first.ranks if rank not in ranks]
            late = first.step > records.last_step(first.attempt) - records.longest_gap
            if missing and not late and not undecided:
                undecided = f"{named(missing)} did not record exchange {number} of {_name(first)}"
    count = sum(len(numbers) for numbers in chains.values())
    looked_at = f"{count} sums of decoded values recomputed" if count else ""
    return Coded(tuple(findings), looked_at, undecided)


def _finding(each: Encoded, rank: int, text: str) -> CheckerFinding:
    where = f"{_name(each)}, exchange {each.number}: rank {rank}: {text}"
    return CheckerFinding(each.attempt, each.step, each.number, (rank,), where, each.what, each.fragment)


def _name(each: Encoded) -> str:
    return each.what if each.fragment is None else f"{each.what}, fragment {each.fragment}"


def _alone(each: Encoded) -> list[str]:
    """Return what is wrong with one rank's record by itself."""
    texts = []
    mine = each.decoded[each.own] if each.own < len(each.decoded) else ()
    bad = [
        index
        for index, (x, decoded, bound) in enumerate(zip(each.inputs, mine, each.bound, strict=False))
        if not abs(x - decoded) <= bound + _EPSILON * (abs(x) + abs(decoded)) + _TINY
    ]
    if bad:
        at = bad[0]
        texts.append(
            f"element {each.at[at]} was decoded as {mine[at]:.9g} from {each.inputs[at]:.9g}: off by more than"
            f" {each.bound[at]:.3g}"
        )
    for index, got in enumerate(each.total):
        values = [part[index] for part in each.decoded]
        if not _is_total(got, values, each.weights):
            texts.append(f"element {each.at[index]} of the total is {got:.9g}, not the sum of the decoded values")
            break
    return texts + _feedback(each, mine)


def _is_total(got: float, values: Sequence[float], weights: Sequence[float]) -> bool:
    if not weights:
        return same(in_order(values), got)
    products = [weight * value for weight, value in zip(weights, values, strict=True)]
    if not all(map(math.isfinite, products)):
        return not math.isfinite(got)
    bound = 2 * len(products) * _EPSILON * math.fsum(map(abs, products)) + _TINY
    return abs(got - math.fsum(products)) <= bound


def _feedback(each: Encoded, mine: Sequence[float]) -> list[str]:
    texts = []
    for index, kept in enumerate(each.residual):
        x, sent = each.inputs[index], mine[index]
        if not abs(kept - (x - sent)) <= _EPSILON * (abs(x) + abs(sent)) + _TINY:
            texts.append(
                f"the residual of element {each.at[index]} is {kept:.9g}; accumulator less what was transmitted is"
                f" {x - sent:.9g}"
            )
            break
    if each.before and each.added and each.decay is not None:
        for index, (before, added) in enumerate(zip(each.before, each.added, strict=True)):
            expected = each.decay * before + added
            if not abs(each.inputs[index] - expected) <= 2 * _EPSILON * (abs(before) + abs(added)) + _TINY:
                texts.append(
                    f"the accumulator of element {each.at[index]} is {each.inputs[index]:.9g}, expected {expected:.9g}"
                )
                break
    return texts


def _against_members(each: Encoded, ranks: Mapping[int, Encoded]) -> list[str]:
    """Compare what this rank decoded of each member with what the member itself decoded."""
    wrong = []
    for index, member in enumerate(each.ranks):
        of = ranks.get(member)
        if of is None or of.at != each.at or index >= len(each.decoded) or of.own >= len(of.decoded):
            continue
        if not all(map(same, each.decoded[index], of.decoded[of.own])):
            wrong.append(member)
    return [f"decoded other values of {named(wrong)} than they have"] if wrong else []


def _follows(each: Encoded, before: Mapping[int, Encoded], rank: int) -> list[str]:
    """Compare what an exchange began with and what the one before left."""
    last = before.get(rank)
    if last is None or not last.residual_crc32 or not each.before_crc32:
        return []
    if last.residual_crc32 == each.before_crc32:
        return []
    return [f"began with another residual than exchange {last.number} left"]


def outer_steps(records: Grouped) -> Coded:
    """Judge all steps of outer optimizers of a job."""
    findings: list[CheckerFinding] = []
    count = 0
    for rank, listed in sorted(records.outer.items()):
        last: dict[tuple[int, str], OuterStep] = {}
        for each in listed:
            count += 1
            before = last.get((each.attempt, each.name))
            texts = list(_delayed_nesterov(each) if each.delay else _nesterov(each))
            # At the end of a job, what is on its way lands, and is exchanged once more: two exchanges after one step.
            if before is not None and before.step == each.step and before.gradient == each.gradient:
                texts.append("an exchange was applied twice")
            if before is not None and not each.restarted and before.after_crc32 != each.before_crc32:
                texts.append(f"the outer state is not the one that step {before.step} left")
            if before is not None and not each.restarted and each.delay and each.number != before.number + 1:
                texts.append(f"step {each.number} of the outer optimizer follows its step {before.number}")
            last[each.attempt, each.name] = each
            findings += [
                CheckerFinding(each.attempt, each.step, None, (rank,), f"{each.name}: rank {rank}: {text}", each.name)
                for text in texts
            ]
    return Coded(tuple(findings), f"{count} steps of outer optimizers recomputed" if count else "")


def _nesterov(each: OuterStep) -> list[str]:
    for index, gradient in enumerate(each.gradient):
        momentum, size = 0.0, abs(gradient)
        if each.momentum and each.momentum_before and each.momentum_after:
            old = each.momentum * each.momentum_before[index]
            momentum = each.momentum_after[index]
            size += abs(old) + abs(momentum)
            if not abs(momentum - (old + gradient)) <= 4 * _EPSILON * size + _TINY:
                return [
                    f"the outer momentum of element {each.at[index]} is {momentum:.9g}, expected {old + gradient:.9g}"
                ]
        expected = each.before[index] - each.rate * (gradient + each.momentum * momentum)
        size = abs(each.before[index]) + each.rate * size
        if not abs(each.after[index] - expected) <= 4 * _EPSILON * size + _TINY:
            return [f"element {each.at[index]} became {each.after[index]:.9g}, expected {expected:.9g}"]
    return []


def _delayed_nesterov(each: OuterStep) -> list[str]:
    """Δ ← Δ + g; every N-th step m ← β m + Δ/N, Δ ← 0; Θ ← Θ - rate (a β m + g/N), a = c, every N-th 1 - cN + c."""
    count, moves = each.delay, each.number % each.delay == 0
    share = 1.0 - each.activation * count + each.activation if moves else each.activation
    rows = zip(
        each.at, each.before, each.momentum_before, each.gathered_before, each.gradient,
        each.after, each.momentum_after, each.gathered_after, strict=True,
    )  # fmt: skip
    for at, theta, m, gathered, gradient, theta_after, m_after, gathered_after in rows:
        total = gathered + gradient
        size = abs(gathered) + abs(gradient) + abs(m)
        momentum = each.momentum * m + total / count if moves else m
        value = theta - each.rate * (share * each.momentum * momentum + gradient / count)
        parts = (
            ("the sum of pushes", gathered_after, 0.0 if moves else total, size),
            ("the outer momentum", m_after, momentum, size),
            ("the outer parameter", theta_after, value, abs(theta) + each.rate * size),
        )
        for what, got, expected, scale in parts:
            if not abs(got - expected) <= 8 * _EPSILON * scale + _TINY:
                return [f"{what} of element {at} became {got:.9g}, expected {expected:.9g}"]
    return []
