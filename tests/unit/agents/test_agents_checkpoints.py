"""Checkpoints: what comes back is what was there, what is torn is found, what is late is kept out."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import json_files
from builders.tables import table
from testbed_agents.checkpoint import CheckpointError, Checkpoints, State, verified
from testbed_agents.data import Corpus, Windows
from testbed_agents.model import GPT, Shape, cross_entropy, fingerprint
from testbed_agents.records import Fence, Records, RecordsError
from testbed_agents.status_file import StatusFile

from testbed.host.files import checkpoints as host
from testbed.host.files.checkpoints import Checkpoint

SHAPE = Shape(context=16, layers=1, heads=2, width=16)


CORPUS = Corpus("numbers", torch.arange(4096).remainder(251).to(torch.uint8))


def state(seed: int) -> State:
    torch.manual_seed(seed)
    model = GPT(SHAPE)
    windows = Windows(CORPUS, batch=2, context=SHAPE.context, seed=seed, rank=0)
    return State(model, torch.optim.AdamW(model.parameters(), lr=1e-2), windows)


@functools.cache
def trained() -> State:
    """Return the state after a step; it is saved only, and loaded into none but itself."""
    whole = state(1)
    train(whole, 1)
    return whole


def train(it: State, steps: int) -> None:
    for _ in range(steps):
        inputs, targets = it.windows.draw()
        it.optimizer.zero_grad()
        noise = torch.rand(1).item() + random.random()  # as dropout would, and whatever uses Python's own
        (cross_entropy(it.model(inputs), targets) * (1 + noise)).backward()
        it.optimizer.step()


def saved(folder: Path, step: int, attempt: int = 1) -> Path:
    """A checkpoint as rank 0 of a job in ``folder`` writes it."""
    mine = folder / "checkpoints" / "rank-0"
    Checkpoints(mine, Fence(folder, attempt)).save(step, trained())
    return mine / f"step-{step:06d}.a{attempt}"


def test_a_job_goes_on_from_a_checkpoint_as_if_nothing_had_happened(tmp_path: Path) -> None:
    random.seed(3)
    before, kept = state(1), Checkpoints(tmp_path, Fence(tmp_path, 1))
    train(before, 3)
    assert kept.save(3, before) > 0
    train(before, 4)
    after = state(99)
    train(after, 2)  # whatever it did before is gone
    kept.load(3, 1, after)
    assert after.windows.drawn == 3
    train(after, 4)
    assert fingerprint(after.model) == fingerprint(before.model)
    assert after.windows.drawn == 7


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@table(
    "damage",
    {
        "truncated": lambda content, _: os.truncate(content, content.stat().st_size - 1),
        "flipped": lambda content, _: flip_a_bit(content),
        "missing": lambda content, _: content.unlink(),
        "no manifest": lambda _, manifest: manifest.unlink(),
        "half a manifest": lambda _, manifest: os.truncate(manifest, 40),
        "no files": lambda _, manifest: manifest.write_text(json.dumps({"files": {}, "drawn": 1})),
    },
)
def test_a_torn_checkpoint_is_found_by_both_sides(tmp_path: Path, damage: Callable[[Path, Path], Any]) -> None:
    good, bad = saved(tmp_path, 10), saved(tmp_path, 20)
    damage(bad / "__0_0.distcp", bad / "manifest.json")
    assert host.whole(tmp_path, 0) == {Checkpoint(10, 1)}
    assert verified(good)["step"] == 10
    with pytest.raises(CheckpointError):
        Checkpoints(bad.parent, Fence(tmp_path, 2)).load(20, 1, state(1))


def test_what_a_kill_leaves_is_whole_or_not_there(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            for step in range(10_000):
                saved(tmp_path, step)
                os.write(writer, b".")
        os._exit(1)
    os.close(writer)
    for _ in range(3):
        assert os.read(reader, 1)
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    os.close(reader)
    names = {path.name for path in (tmp_path / "checkpoints" / "rank-0").iterdir() if path.name.startswith("step-")}
    whole = host.whole(tmp_path, 0)
    assert len(whole) >= 2
    assert {f"step-{checkpoint.step:06d}.a1" for checkpoint in whole} == names


class Rank:
    """A rank of an attempt: what the trainer does with its checkpoints."""

    def __init__(
        self, folder: Path, rank: int, attempt: int, resume: Checkpoint | None = None, world_size: int = 1
    ) -> None:
        self.checkpoints = Checkpoints(folder / "checkpoints" / f"rank-{rank}", Fence(folder, attempt))
        self.status = StatusFile(folder / f"board.a{attempt}", rank, world_size)
        self.state, self.attempt = trained(), attempt
        if resume:
            self.checkpoints.load(resume.step, resume.attempt, self.state)

    def save(self, *steps: int) -> None:
        for step in steps:
            self.checkpoints.save(step, self.state)
            self.checkpoints.confirm(self.status.saved(step))

    def die_writing(self, step: int) -> None:
        """What a SIGKILL in the middle of :meth:`save` leaves."""
        torn = self.checkpoints.folder / f"unfinished-step-{step:06d}.a{self.attempt}"
        torn.mkdir(parents=True)
        (torn / "__0_0.distcp").write_bytes(b"half")


def start(folder: Path, began_at: dict[int, int]) -> tuple[Checkpoint | None, tuple[Rank, Rank]]:
    """Begin the next attempt as the host does: the fence, the newest checkpoint that both ranks have, both ranks."""
    attempt = len(began_at) + 1
    host.set_fence(folder, attempt)
    newest = host.newest_of_all([host.whole(folder, rank) for rank in (0, 1)], began_at)
    began_at[attempt] = newest.step if newest else 0
    return newest, (Rank(folder, 0, attempt, newest, 2), Rank(folder, 1, attempt, newest, 2))


def test_ranks_that_die_writing_in_attempt_after_attempt_do_not_lead_to_the_first_step(tmp_path: Path) -> None:
    """In each attempt another rank dies while it writes step 30, which the others have: all have step 20 still."""
    began_at: dict[int, int] = {}
    _, ranks = start(tmp_path, began_at)
    for rank in ranks:
        rank.save(10, 20)
    for dying in (1, 0, 1, 1, 0):
        ranks[1 - dying].save(30)
        ranks[dying].die_writing(30)
        newest, ranks = start(tmp_path, began_at)
        assert newest == Checkpoint(20, 1)
    for step in (30, 40):
        for rank in ranks:
            rank.save(step)
    newest, _ = start(tmp_path, began_at)
    assert newest == Checkpoint(40, 6)
    for number in (0, 1):
        assert host.whole(tmp_path, number) == {Checkpoint(30, 6), Checkpoint(40, 6)}, "nothing old is left"


def test_a_rank_that_is_far_ahead_keeps_what_the_other_has(tmp_path: Path) -> None:
    """Sites that exchange every 50 steps may be 50 steps apart, and checkpoints are taken more often."""
    began_at: dict[int, int] = {}
    _, (ahead, behind) = start(tmp_path, began_at)
    behind.save(10)
    ahead.save(10, 20, 30, 40)
    assert host.whole(tmp_path, 0) == {Checkpoint(step, 1) for step in (10, 20, 30, 40)}
    newest, (ahead, behind) = start(tmp_path, began_at)
    assert newest == Checkpoint(10, 1)
    ahead.save(20, 30)
    newest, (ahead, behind) = start(tmp_path, began_at)
    assert newest == Checkpoint(10, 1), "that of the first attempt"
    behind.save(20, 30)
    ahead.save(20, 30, 40)
    assert host.whole(tmp_path, 0) == {Checkpoint(30, 3), Checkpoint(40, 3)}, "nothing old is left"
    assert start(tmp_path, began_at)[0] == Checkpoint(30, 3)


@pytest.mark.parametrize("seed", range(5))
def test_what_all_had_is_never_lost(tmp_path: Path, seed: int) -> None:
    """Attempts end anywhere: here a rank is at most one checkpoint ahead of the other."""
    rng, began_at, confirmed = random.Random(seed), dict[int, int](), 0
    for _ in range(8):
        newest, ranks = start(tmp_path, began_at)
        assert (newest.step if newest else 0) >= confirmed
        step = confirmed = newest.step if newest else 0
        for _ in range(rng.choice([0, 0, 1, 2])):
            step += 10
            for rank in ranks:
                rank.save(step)
            confirmed = step
        (ahead, behind) = rng.sample(ranks, 2)
        if rng.random() < 0.8:
            ahead.save(step + 10)
            behind.die_writing(step + 10)
        for number in (0, 1):
            assert len(host.whole(tmp_path, number)) <= 2 + len(began_at)


def test_a_rank_of_an_old_attempt_removes_none_of_a_later_one(tmp_path: Path) -> None:
    """It was paused between writing a checkpoint and removing what that one supersedes."""
    paused = Rank(tmp_path, 0, 1)
    paused.save(10, 20)
    later = Rank(tmp_path, 0, 2, Checkpoint(20, 1))
    later.save(30, 40)
    assert host.whole(tmp_path, 0) == {Checkpoint(30, 2), Checkpoint(40, 2)}
    paused.checkpoints.confirm(0)
    assert host.whole(tmp_path, 0) == {Checkpoint(30, 2), Checkpoint(40, 2)}


def test_two_are_kept_and_the_next_attempt_keeps_what_it_resumed_from(tmp_path: Path) -> None:
    first = Rank(tmp_path, 0, 1)
    first.save(10, 20, 30)
    assert host.whole(tmp_path, 0) == {Checkpoint(20, 1), Checkpoint(30, 1)}
    second = Rank(tmp_path, 0, 2, Checkpoint(20, 1))
    second.save(25)
    assert host.whole(tmp_path, 0) == {Checkpoint(20, 1), Checkpoint(25, 2)}
    second.save(25)  # again, after a site was warned
    assert host.whole(tmp_path, 0) == {Checkpoint(20, 1), Checkpoint(25, 2)}
    second.save(30)
    assert host.whole(tmp_path, 0) == {Checkpoint(25, 2), Checkpoint(30, 2)}


@contextlib.contextmanager
def at_most(size: int) -> Iterator[None]:
    """Check that what runs inside allocates less than ``size`` bytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("side", ["host", "agent"])
def test_checkpoints_are_hashed_as_streams(tmp_path: Path, side: str) -> None:
    """One of 64 MiB is found whole, and then corrupted, in less than 4 MiB of memory."""
    folder = tmp_path / "checkpoints" / "rank-0" / "step-000010.a1"
    folder.mkdir(parents=True)
    digest = hashlib.sha256()
    with (folder / "data").open("wb") as file:
        for number in range(64):
            block = bytes([number]) * (1 << 20)
            file.write(block)
            digest.update(block)
    (folder / "manifest.json").write_text(json.dumps({"files": {"data": digest.hexdigest()}}))

    def is_whole() -> bool:
        if side == "host":
            return host.whole(tmp_path, 0) == {Checkpoint(10, 1)}
        with contextlib.suppress(CheckpointError):
            return bool(verified(folder))
        return False

    with at_most(4 << 20):
        assert is_whole()
        with (folder / "data").open("r+b") as stream:
            stream.seek(50 << 20)
            stream.write(b"?")
        assert not is_whole()


def test_a_manifest_without_an_end_is_not_read_into_memory(tmp_path: Path) -> None:
    """Ranks write it; the host, which is root, reads it."""
    folder = tmp_path / "checkpoints" / "rank-0" / "step-000010.a1"
    folder.mkdir(parents=True)
    with (folder / "manifest.json").open("wb") as file:
        file.truncate(1 << 30)
    with at_most(8 << 20):
        assert host.whole(tmp_path, 0) == frozenset()


def test_a_late_writer_of_an_old_attempt_commits_nothing(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    records = Records(tmp_path / "rank-0.jsonl", Fence(tmp_path, 1))
    records.write("step", step=10)
    host.set_fence(tmp_path, 2)
    with pytest.raises(RecordsError, match="attempt 2 has begun"):
        records.write("step", step=11)
    with pytest.raises(CheckpointError, match="attempt 2 has begun"):
        saved(tmp_path, 20)
    assert host.whole(tmp_path, 0) == {Checkpoint(10, 1)}
    assert [it.name for it in (tmp_path / "checkpoints" / "rank-0").iterdir()] == ["step-000010.a1"]
    assert json_files.read_lines(tmp_path / "rank-0.jsonl") == [{"kind": "step", "attempt": 1, "step": 10}]
    saved(tmp_path, 20, attempt=2)  # the new one can
    assert Checkpoint(20, 2) in host.whole(tmp_path, 0)


@table(
    "have, began_at, newest",
    {
        "both have the last": ("50.1 100.1, 50.1 100.1", {1: 0}, (100, 1)),
        "the other did not get there": ("50.1 100.1, 50.1", {1: 0}, (50, 1)),
        "a disk was lost": ("50.1 100.1,", {1: 0}, None),
        "no rank": (None, {1: 0}, None),
        # Even if all have it by now.
        "what was beyond the beginning of a later attempt is another story": (
            "50.1 100.1, 50.1 100.1",
            {1: 0, 2: 50},
            (50, 1),
        ),
        "of two attempts the later": ("100.1 100.2, 100.1 100.2", {1: 0, 2: 50}, (100, 2)),
        "states of different attempts are not mixed": ("100.1, 100.2", {1: 0, 2: 50}, None),
        "a superseded attempt": ("50.1 60.2, 50.1 60.2", {1: 0, 2: 50, 3: 50}, (50, 1)),
    },
)
def test_the_newest_that_all_have(have: str | None, began_at: dict[int, int], newest: tuple[int, int] | None) -> None:
    """What each rank has: step and attempt."""
    ranks = [[map(int, checkpoint.split(".")) for checkpoint in rank.split()] for rank in (have or "").split(",")]
    sets = [frozenset(Checkpoint(*checkpoint) for checkpoint in rank) for rank in ranks] if have else []
    assert host.newest_of_all(sets, began_at) == (Checkpoint(*newest) if newest else None)


def test_a_job_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert host.whole(tmp_path, 0) == frozenset()
    saved(tmp_path, 10)
    host.remove(tmp_path)
    assert not (tmp_path / "checkpoints").exists()
    host.remove(tmp_path)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, 10)
    other, checkpoints = state(1), Checkpoints(folder.parent, Fence(tmp_path, 2))
    wide = GPT(Shape(context=16, layers=1, heads=2, width=32))
    with pytest.raises(CheckpointError, match="does not fit"):
        checkpoints.load(10, 1, State(wide, torch.optim.AdamW(wide.parameters()), other.windows))
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="cannot read"):
        checkpoints.load(10, 1, other)


def test_a_disk_that_takes_no_more_is_told_in_a_line(tmp_path: Path) -> None:
    """torch's own words are the tracebacks of all ranks."""
    checkpoints, (soft, hard) = Checkpoints(tmp_path, Fence(tmp_path, 1)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError) as raised:
            checkpoints.save(3, state(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(raised.value).startswith("cannot write the checkpoint of step 3: ")
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
