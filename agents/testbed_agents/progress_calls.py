"""Report the steps of a training script to the lab that it runs in; outside a lab, do nothing.

Launched programs find this one file, alone, as the module ``testbed_agents``::

    try:
        from testbed_agents import step
    except ImportError:  # outside a lab
        def step(*args, **kwargs): pass
    ...
    step(iteration, train_loss=loss.item(), tokens=tokens_of_all_ranks)

It imports nothing beyond the standard library, and does nothing where ``TESTBED_PROGRESS`` is not set.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import SupportsFloat

__all__ = ["step"]

if __name__ == "testbed_agents":
    # Alone, on the path of a launched program. It hides none of the agents' own modules, where those are on the path.
    _folders = (os.path.join(path, "testbed_agents") for path in sys.path)  # noqa: PTH118
    __path__ = [folder for folder in _folders if os.path.isdir(folder)]  # noqa: PTH112

_opened: dict[str, int] = {}


def step(
    step: SupportsFloat,
    train_loss: SupportsFloat | None = None,
    tokens: SupportsFloat | None = None,
    tokens_seen: SupportsFloat | None = None,
    **numbers: SupportsFloat | None,
) -> None:
    """Report that ``step`` is done, now.

    ``tokens``: those of the whole job in one step; ``tokens_seen``: those of the whole job since it began, instead.
    ``numbers``: other figures to record, such as ``grad_norm=1.5``. Values are what ``float`` takes, such as a tensor
    of one element. Never raises and never waits: what cannot be reported is not.
    """
    path = os.environ.get("TESTBED_PROGRESS")
    if not path:
        return
    try:
        t = time.monotonic()
        figures = {"step": step, "train_loss": train_loss, "tokens": tokens, "tokens_seen": tokens_seen, **numbers}
        line = json.dumps({**{key: float(value) for key, value in figures.items() if value is not None}, "t": t})
        if path not in _opened:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            _opened[path] = os.open(path, flags, 0o644)
        os.write(_opened[path], f"{line}\n".encode())  # one write a line: forked children share the descriptor
    except Exception:  # a figure that is no number, a full disk, a folder that is gone: training goes on
        return
