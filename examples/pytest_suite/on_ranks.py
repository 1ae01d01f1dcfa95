"""What each rank runs. The nodes' Python imports it, and may have no pytest, as in a container."""

from __future__ import annotations

import my_library


def summed(count: int, times: int = 1, timeout_s: float = 10.0) -> float:
    """Sum vectors of rank + 1 over all ranks, several times; return one element of the last sum."""
    with my_library.Ring(timeout_s) as ring:
        for step in range(times):
            total = ring.all_reduce([ring.rank + 1.0] * count)
            assert len(set(total)) == 1, f"step {step}: all elements are the same"
            print("step", step, flush=True)
    return total[0]
