"""The age of a packet, from two clocks that are not read at one instant: never so that the packet is sent early."""

from __future__ import annotations

from pathlib import Path

from builders.programs import compile_c, run


def test_an_interruption_between_the_clocks_makes_no_packet_early(tmp_path: Path) -> None:
    source = Path(__file__).with_name("fiberd_clock_harness.c")
    program = compile_c(tmp_path / "harness", [source], "-Dclock_gettime=fake_clock")
    lines = run(program, check=True).stdout.splitlines()
    late_ns = {int(pattern): int(late) for pattern, late in map(str.split, lines)}
    assert len(late_ns) == 512
    assert min(late_ns.values()) >= 0
    # Interrupted three times in a row, and only then, the error is that of an interruption.
    assert max(late for pattern, late in late_ns.items() if pattern.bit_count() == 1) < 1000
