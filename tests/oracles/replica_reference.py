"""Strategies of replicas in one process: references from the papers' formulas, which share no code with the product.

A replica is a site. Its gradient is the mean over its ranks; slice i of a fragment is coded by rank i. Codecs are loops
over numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
from builders import replica_jobs
from torch import Tensor

Quantize = Callable[[list[float]], list[float]]


class Replica:
    """A site's model, trained by SGD with momentum 0.5 on the data of its ranks."""

    def __init__(self, ranks: Sequence[int], rate: float) -> None:
        self.ranks, self.rate = ranks, rate
        self.model = replica_jobs.tiny()
        self.parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        self.velocity = {name: torch.zeros_like(it) for name, it in self.parameters.items()}

    def step(self, step: int, inner: int = 0) -> None:
        mean = {name: torch.zeros_like(it) for name, it in self.parameters.items()}
        for rank in self.ranks:
            inputs, targets = replica_jobs.drawn(rank, step, inner)
            loss = replica_jobs.loss(self.model(inputs), targets)
            for name, gradient in zip(
                self.parameters, torch.autograd.grad(loss, list(self.parameters.values())), strict=True
            ):
                mean[name] += gradient / len(self.ranks)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                self.velocity[name] = 0.5 * self.velocity[name] + mean[name]
                parameter -= self.rate * self.velocity[name]

    def get(self, names: Sequence[str]) -> Tensor:
        return torch.cat([self.parameters[name].detach().flatten() for name in names])

    def put(self, names: Sequence[str], values: Tensor) -> None:
        with torch.no_grad():
            for name in names:
                parameter = self.parameters[name]
                parameter.copy_(values[: parameter.numel()].view_as(parameter))
                values = values[parameter.numel() :]


def fragments(count: int) -> list[list[str]]:
    """Return the names in each fragment of the tiny model: block i in i mod count, all others in the last."""
    found: list[list[str]] = [[] for _ in range(count)]
    for name, _ in replica_jobs.tiny().named_parameters():
        found[int(name.split(".")[1]) % count if name.startswith("blocks.") else count - 1].append(name)
    return found


def coded(values: Tensor, slices: int, quantize: Quantize) -> Tensor:
    """Return what is decoded of ``values``, each of equal slices coded by itself; the last one is padded with zeros."""
    size = math.ceil(len(values) / slices)
    padded = [*values.tolist(), *[0.0] * (size * slices - len(values))]
    found: list[float] = []
    for index in range(slices):
        found += quantize(padded[index * size : (index + 1) * size])
    return torch.tensor(found[: len(values)])


def blocks(shapes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the places in the flat vector of each block of 64 x 64 of a matrix, of 4096 of a vector, row by row."""
    found, begin = [], 0
    for shape in shapes:
        rows, columns = shape if len(shape) == 2 and min(shape) > 1 else (1, math.prod(shape))
        high, wide = (64, 64) if rows > 1 else (1, 4096)
        for top in range(0, rows, high):
            for left in range(0, columns, wide):
                lines = range(top, min(top + high, rows))
                found.append(
                    [begin + row * columns + it for row in lines for it in range(left, min(left + wide, columns))]
                )
        begin += rows * columns
    return found


def parts_of_slices(listed: Sequence[list[int]], slices: int) -> list[list[list[int]]]:
    """Return the blocks of each slice of equal size; a block over a boundary is in two parts."""
    size = math.ceil(sum(map(len, listed)) / slices)
    found: list[list[list[int]]] = [[] for _ in range(slices)]
    at = 0
    for block in listed:
        for index in range(slices):
            part = block[max(0, index * size - at) : max(0, (index + 1) * size - at)]
            found[index] += [part] if part else []
        at += len(block)
    return found


def mean_of(values: Sequence[Tensor], tokens: Sequence[float] = ()) -> Tensor:
    """Return the mean, weighted by ``tokens`` if there are any."""
    weights = tokens or [1.0] * len(values)
    total = torch.zeros_like(values[0])
    for weight, value in zip(weights, values, strict=True):
        total = total + weight * value
    return total / sum(weights)


def streaming(
    sites: Sequence[Sequence[int]],
    steps: int,
    *,
    every: int,
    count: int,
    overlap: int,
    alpha: float,
    quantize: Quantize = list,
    outer_rate: float = 0.7,
    momentum: float = 0.5,
    rate: float,
    tokens: Sequence[float] = (),
) -> tuple[list[Replica], Tensor]:
    """Return the replicas after the last exchange, and the outer parameters in the order of the model's parameters."""
    torch.set_num_threads(1)  # of tensors this small, more are slower
    replicas = [Replica(ranks, rate) for ranks in sites]
    names = fragments(count)
    slices = min(len(ranks) for ranks in sites)
    theta = [replicas[0].get(it) for it in names]
    velocity = [torch.zeros_like(it) for it in theta]
    due = [math.floor(Fraction(every * p, count) + Fraction(1, 2)) % every for p in range(count)]
    flying: list[tuple[int, int, Tensor]] = []

    def take(p: int, lands: int) -> None:
        deltas = [coded(theta[p] - it.get(names[p]), slices, quantize) for it in replicas]
        flying.append((lands, p, mean_of(deltas, tokens)))

    def land(p: int, mean: Tensor, keep: float) -> None:
        velocity[p] = momentum * velocity[p] + mean
        theta[p] = theta[p] - outer_rate * (mean + momentum * velocity[p])
        for it in replicas:
            it.put(names[p], keep * it.get(names[p]) + (1 - keep) * theta[p])

    for step in range(1, steps + 1):
        for it in replicas:
            it.step(step)
        for p in range(count):
            if step % every == due[p]:
                take(p, step + overlap)
        for _, p, mean in [it for it in flying if it[0] <= step]:
            land(p, mean, alpha)
        flying = [it for it in flying if it[0] > step]
    while flying:
        lands, p, mean = flying.pop(0)
        land(p, mean, alpha if lands - overlap < steps else 0.0)
    for p in range(count):
        if steps % every != due[p]:
            take(p, steps)
            land(p, flying.pop()[2], 0.0)
        for it in replicas:
            it.put(names[p], theta[p])
    outer = {name: value for p in range(count) for name, value in _named(replicas[0], names[p], theta[p])}
    return replicas, torch.cat([outer[name].flatten() for name in replicas[0].parameters])


def sparse(
    sites: Sequence[Sequence[int]],
    steps: int,
    *,
    every: int,
    keep: int,
    decay: float = 0.95,
    outer_rate: float = 1.0,
    rate: float,
    tokens: Sequence[float] = (),
) -> tuple[Tensor, list[Tensor]]:
    """Return the outer parameters, and the residual of each replica in the order of blocks."""
    torch.set_num_threads(1)  # of tensors this small, more are slower
    replicas = [Replica(ranks, rate) for ranks in sites]
    names = list(replicas[0].parameters)
    slices = min(len(ranks) for ranks in sites)
    theta = replicas[0].get(names)
    residuals = [torch.zeros_like(theta) for _ in replicas]
    listed = blocks([it.shape for it in replicas[0].parameters.values()])
    parts = [part for each in parts_of_slices(listed, slices) for part in each]
    for step in range(1, steps + 1):
        for it in replicas:
            it.step(step)
        if step % every == 0 or step == steps:
            sent = []
            for index, it in enumerate(replicas):
                accumulated = decay * residuals[index] + (theta - it.get(names))
                sent.append(torch.zeros_like(accumulated))
                for part in parts:
                    sent[-1][part] = torch.tensor(two_bits(accumulated[part].tolist(), keep))
                residuals[index] = accumulated - sent[-1]
            theta = theta - outer_rate * mean_of(sent, tokens)
            for it in replicas:
                it.put(names, theta)
    return theta, [it[list(itertools.chain(*parts))] for it in residuals]


def _named(replica: Replica, names: Sequence[str], values: Tensor) -> list[tuple[str, Tensor]]:
    sizes = [replica.parameters[name].numel() for name in names]
    return list(zip(names, values.split(sizes), strict=True))


def e3m0(values: list[float]) -> list[float]:
    """Round each number to the nearest of 0 and ± 2^-6 ... 2^0 of the largest magnitude of its 256."""
    found = []
    for begin in range(0, len(values), 256):
        block = values[begin : begin + 256]
        largest = max(map(abs, block))
        levels = [0.0, *(largest * 2.0**-power for power in range(7))]
        for it in block:
            nearest = min(levels, key=lambda level, it=it: abs(abs(it) - level))  # type: ignore[misc]
            found.append(math.copysign(nearest, it))
    return found


def two_bits(values: list[float], keep: int) -> list[float]:
    """Keep the largest of a block; those above their mean, and the others, become the means of their kind."""
    found = [0.0] * len(values)
    kept = sorted(range(len(values)), key=lambda it: -abs(values[it]))[: math.ceil(keep * len(values) / 4096)]
    middle = sum(abs(values[it]) for it in kept) / len(kept)
    for part in ([it for it in kept if abs(values[it]) > middle], [it for it in kept if abs(values[it]) <= middle]):
        for it in part:
            size = sum(abs(values[other]) for other in part) / len(part)
            found[it] = math.copysign(float(torch.tensor(size).to(torch.bfloat16)), values[it])
    return found
