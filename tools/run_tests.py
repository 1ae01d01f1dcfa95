"""Run the tests in two parts: two workers for tests that may run side by side, then the tests marked ``alone``.

::

    python tools/run_tests.py [PYTEST ARGUMENT...]

Both parts get the arguments. Afterwards the slowest tests are listed, and the last line has the totals of both parts in
pytest's form. ``--store-durations`` rewrites tests/durations.json, by which tests/conftest.py gives files to workers.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DURATIONS = ROOT / "tests" / "durations.json"
PARTS = {
    # A file is run by one worker: its tests share labs, and some depend on the order.
    "beside": ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "-m", "not alone"],
    "alone": ["-m", "alone"],
}
NO_TESTS, INTERRUPTED = 5, 2
"""Exit statuses of pytest."""
COUNTED = ("tests", "failures", "errors", "skipped")
SLOWEST = 30
LEAST_S = 0.5
"""Files that take less are not in the file of durations."""


def main() -> int:
    arguments = [word for word in sys.argv[1:] if word != "--store-durations"]
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches pytest as well, which then ends in order
    began = time.monotonic()
    # Without bytecode, each of the suite's many programs compiles the testbed, and each worker compiles all tests.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    statuses, totals, durations_s = [], collections.Counter[str](), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        for part, options in PARTS.items():
            report = Path(folder) / f"{part}.xml"
            words = [*options, f"--junitxml={report}", "-o", "junit_duration_report=total", *arguments]
            statuses.append(subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT).returncode)
            if report.exists():
                suite = ElementTree.parse(report).getroot()[0]
                totals += collections.Counter({word: int(suite.attrib[word]) for word in COUNTED})
                for case in suite.iter("testcase"):
                    name = f"{case.attrib['classname']}::{case.attrib['name']}"
                    durations_s[name] = durations_s.get(name, 0.0) + float(case.attrib["time"])
            if statuses[-1] == INTERRUPTED:
                break
    print(f"\nThe slowest tests, at most {SLOWEST} of a second or more:")
    for name, duration_s in sorted(durations_s.items(), key=lambda pair: -pair[1])[:SLOWEST]:
        if duration_s >= 1:
            print(f"{duration_s:8.1f} s  {name}")
    if "--store-durations" in sys.argv[1:]:
        store(durations_s)
    failed = totals["failures"] + totals["errors"]
    passed = totals["tests"] - failed - totals["skipped"]
    counts = {"failed": totals["failures"], "passed": passed, "skipped": totals["skipped"], "errors": totals["errors"]}
    words = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "no tests ran"
    print(f"\n{words} in {time.monotonic() - began:.2f}s")
    return exit_status(statuses)


def exit_status(statuses: list[int]) -> int:
    """Return the worst of pytest's exit statuses; a part without tests counts only if no part has any.

    A pytest that a signal ended, such as the kernel's when memory is short, has the status that a shell gives it.
    """
    if statuses == [NO_TESTS] * len(PARTS):
        return NO_TESTS
    return max((abs(status) + 128 * (status < 0) for status in statuses if status != NO_TESTS), default=0)


def store(durations_s: dict[str, float]) -> None:
    """Write the duration of each file that takes long enough, in seconds."""
    by_file = collections.Counter[str]()
    for name, duration_s in durations_s.items():
        module = name.partition("::")[0].replace(".", "/")
        while module and not (ROOT / f"{module}.py").exists():  # a class of tests
            module = module.rpartition("/")[0]
        by_file[f"{module}.py".removeprefix("tests/")] += duration_s
    longer = {file: round(total_s, 1) for file, total_s in sorted(by_file.items()) if total_s >= LEAST_S}
    DURATIONS.write_text(json.dumps(longer, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
