"""The coded values of all replicas, on every replica: an all-gather of codes, decoded in the order of replicas.

An all-reduce would have to add codes, and round again at each hop. Here all replicas decode the same bytes in the same
order and add them as float32, each its own decoded value too: so their sums are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from testbed_agents.codec import Codec
from testbed_agents.exchange import gather_into
from testbed_agents.groups import Replicas

__all__ = ["CodedExchange", "added"]


class CodedExchange:
    """Codes of ``values``, (elements,), on their way to the other replicas, and theirs to this one.

    A rank without a slice (``replicas.slice``) exchanges nothing.
    """

    def __init__(
        self, values: Tensor, codec: Codec, replicas: Replicas, generator: torch.Generator | None = None
    ) -> None:
        self._codec, self._elements = codec, values.numel()
        code = codec.encode(values, generator)
        # What is gathered comes in the order of torch, which sorts the ranks of a group; replicas have their own.
        self._places = [sorted(replicas.across_ranks).index(rank) for rank in replicas.across_ranks] or [0]
        self._size = code.numel()
        self._whole, self._work = code, None
        if len(self._places) > 1:
            self._whole = code.new_empty(self._size * len(self._places))
            self._work = gather_into(self._whole, code, group=replicas.across, async_op=True)

    def wait(self) -> list[Tensor]:
        """Return the decoded values of each replica, in order. Raises RuntimeError if a peer is gone."""
        if self._work is not None:
            self._work.wait()
        codes = torch.split(self._whole, self._size)
        return [self._codec.decode(codes[place], self._elements) for place in self._places]


def added(parts: Sequence[Tensor], shares: Sequence[float] = ()) -> Tensor:
    """Return the float32 sum of ``parts`` in their order, a new tensor; of share times part where there are shares."""
    weighed = [part * share for part, share in zip(parts, shares, strict=True)] if shares else parts
    total = weighed[0].clone()
    for part in weighed[1:]:
        total += part
    return total
