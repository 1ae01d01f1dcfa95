"""Lost steps of streaming-diloco: as many in several attempts as in one, and those that ran again beside them."""

from __future__ import annotations

import pytest
from builders import jobs
from builders.twins import twin

from testbed.core.analysis import attempt_history
from testbed.core.analysis.goodput import evaluate
from testbed.core.records.rank_log import EndRecord, JobRecord, RankLog

STREAMING = "streaming-diloco:every=20,fragments=4,overlap=2"
"""Fragments are due after steps 5, 10, 15 and 20 of every 20. After step 47 those of 45 or less have landed."""

Attempts = tuple[tuple[int, int], ...]
"""Of each attempt the step that it resumed after, and its last step."""


def records(attempts: Attempts, last: str) -> list[RankLog]:
    """Return the records of 2 x 2 ranks; all attempts fail but the last, which ends as ``last``."""
    logs = []
    for rank in range(4):
        begun, done, ends, t = [], [], [], 0.0
        for number, (resumed, end) in enumerate(attempts, 1):
            site = "west" if rank < 2 else "east"
            begun.append(JobRecord(t, rank, 4, f"n-{rank}", site, "ddp", None, None, 100, number, resumed))
            done += jobs.steps(f"{end - resumed}*1", first=resumed + 1, begin=t + 1, attempt=number)
            t = done[-1].t_end + 2
            ends.append(EndRecord(t, last if number == len(attempts) else "failed", "gone", None, number))
            t += 1
        logs.append(RankLog(rank, tuple(begun), tuple(done), tuple(ends)))
    return logs


def lost(attempts: Attempts, last: str = "failed") -> tuple[int, int]:
    """Return the lost steps of the job, and the sum of its attempts'."""
    logs = records(attempts, last)
    found = evaluate(logs, (), twin=twin(STREAMING))
    return found.steps_lost, sum(it.steps_lost for it in attempt_history.evaluate(logs, (), (), found))


@pytest.mark.parametrize(
    ("attempts", "repeated"),
    [
        pytest.param(((0, 47),), 0, id="one attempt"),
        pytest.param(((0, 30), (30, 47)), 0, id="a restart that repeats nothing"),
        pytest.param(((0, 46), (46, 47)), 0, id="a restart while a fragment is on its way"),
        pytest.param(((0, 43), (40, 47)), 3, id="a restart that repeats three steps"),
        pytest.param(((0, 20), (15, 31), (30, 47)), 6, id="two restarts"),
    ],
)
def test_a_job_that_dies_loses_what_its_fragments_lack_however_many_attempts(attempts: Attempts, repeated: int) -> None:
    # By share of parameters, fragments of steps 40, 45, 30 and 35 are worth 37.3 steps.
    assert lost(attempts) == (10 + repeated, 10 + repeated)


def test_a_job_that_ends_in_order_loses_only_what_it_repeats() -> None:
    assert lost(((0, 47), (45, 100)), last="ok") == (2, 2)
