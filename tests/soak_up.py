"""Soak of `testbed up`: many labs, one after the other, with every core busy; healthy labs must not be refused.

::

    python tests/soak_up.py --ups 100 --out build/soak-up        # as root; make soak-up SOAK_UPS=100

Each lab is brought up and taken down by the command line, in turn metro-40km and a ring of eight sites, while one busy
process per core runs at normal priority. ``ups.jsonl`` has a line per lab as soon as it is known, ``soak-up.md`` the
summary; a second call with the same folder adds to it. The status is 0 if at most one lab in a hundred was refused, and
none failed otherwise. docs/soak.md has the result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RING = "\n".join(
    (
        "# ring-8: eight campuses in a ring",
        "scale: 1000",
        "sites: {s1: , s2: , s3: , s4: , s5: , s6: , s7: , s8: }",
        "links:",
        *(f"  f{it}{it % 8 + 1}: {{between: [s{it}, s{it % 8 + 1}], km: 40, optics: 800ZR}}" for it in range(1, 9)),
    )
)
BOUND_S = 240.0
COMMAND = (sys.executable, "-c", "from testbed.cli.entry import main; main()")


@contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keep ``cores`` processes busy, each with a loop that never sleeps."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def one(topology: str, name: str, words: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    """Bring a lab up and take it down; return what became of it."""
    began = time.monotonic()
    up = subprocess.run(
        [*COMMAND, "up", topology, "--name", name, "--json", *words],
        env=environment, capture_output=True, text=True, timeout=BOUND_S,
    )  # fmt: skip
    took_s = time.monotonic() - began
    found: dict[str, Any] = {"topology": Path(topology).stem, "took_s": round(took_s, 2), "status": up.returncode}
    if up.returncode == 0:
        certificate = json.loads(up.stdout)["certificate"]
        directions = [each for link in certificate["links"] for each in link["directions"]]
        found |= {
            "certified": certificate["certified"],
            "free": round(certificate["headroom"]["free"], 3),
            "repeated": sum(max(each["tries"].values()) > 1 for each in directions),
            "rates": [each["rate"]["measured_bps"] / each["rate"]["target_bps"] for each in directions if each["rate"]],
        }
        subprocess.run([*COMMAND, "down", name], env=environment, check=True, capture_output=True, timeout=BOUND_S)
    else:
        found["stderr"] = up.stderr[-4000:]
    return found


def summary(found: Sequence[dict[str, Any]], cores: int) -> str:
    """Return the result as Markdown."""
    lines = [
        f"{len(found)} labs on {platform.release()}, {os.cpu_count()} cores, {cores} of them busy besides.",
        "",
        "| lab | ups | refused | failed otherwise | up, median s | CPU free, median | directions measured again"
        " | rate / target, least to most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for topology in sorted({it["topology"] for it in found}):
        own = [it for it in found if it["topology"] == topology]
        good = [it for it in own if it["status"] == 0]
        rates = [rate for it in good for rate in it["rates"]]
        free = f"{statistics.median(it['free'] for it in good):.0%}" if good else "-"
        span = f"{min(rates):.4f} to {max(rates):.4f}" if rates else "-"
        lines.append(
            f"| {topology} | {len(own)} | {sum(it['status'] == 1 for it in own)}"
            f" | {sum(it['status'] not in (0, 1) for it in own)} | {statistics.median(it['took_s'] for it in own):.1f}"
            f" | {free} | {sum(it['repeated'] for it in good)} | {span} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ups", type=int, default=100, help="labs in all, half of them of each topology")
    parser.add_argument("--out", type=Path, default=Path("build/soak-up"))
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 1, help="busy processes beside the labs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no lab after this time")
    parser.add_argument("words", nargs="*", help="further words for `testbed up`, after --")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    ring = out / "ring-8.yaml"
    ring.write_text(RING + "\n")
    log = out / "ups.jsonl"
    environment = os.environ | {"TESTBED_STATE": str(out.resolve() / "state"), "TESTBED_RUNS": str(out / "runs")}
    began = time.monotonic()
    with busy(arguments.busy), log.open("a") as lines:
        for number in range(arguments.ups):
            if time.monotonic() - began > arguments.seconds:
                break
            topology = ("metro-40km", str(ring))[number % 2]
            found = one(topology, f"soak-up-{os.getpid()}", arguments.words, environment)
            lines.write(json.dumps(found) + "\n")
            lines.flush()
            print(f"{number + 1}: {found['topology']}, status {found['status']}, {found['took_s']} s", flush=True)
    every = [json.loads(line) for line in log.read_text().splitlines()]
    told = summary(every, arguments.busy)
    (out / "soak-up.md").write_text(told)
    print(told)
    refused, failed = (sum(test(it["status"]) for it in every) for test in ((1).__eq__, lambda it: it not in (0, 1)))
    return int(refused > len(every) / 100 or failed > 0)


if __name__ == "__main__":
    sys.exit(main())
