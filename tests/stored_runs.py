"""Compare what this version makes of the stored runs with what was stored: reports, ``--json``, plans, options.

``tests/golden/stored_runs`` has run directories of all kinds (``runs.tar.xz``, made by ``make_stored_runs.py``), and in
``expected.json.xz`` the outputs of every verb that reads a run, for them and for damaged copies of them
(``builders/damaged_runs.py``); of every verb that needs no lab, for shipped topologies, experiments and strategies; and
the options of all verbs.

    python tests/stored_runs.py                     # compare everything
    python tests/stored_runs.py --part 1/2          # a half, drawn by seed
    python tests/stored_runs.py --only ddp-passed   # subjects whose name has this
    python tests/stored_runs.py --refresh           # store what this version makes
    python tests/stored_runs.py --pack FOLDER       # store other runs; then --refresh

Keys, numbers, verdicts and exit statuses must be equal. Texts must be equal too, or changed as ``accepted_texts.json``
has it: pairs of templates, old and new, in which ``{name}`` stands for any text.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import shutil
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from builders.damaged_runs import SEED
from builders.stored_outputs import PAGES, Document, Subject, outputs, preload, subjects
from oracles.differences import Difference, Templates, differences, sentence_differences, text_differences

STORED = Path(__file__).resolve().parent / "golden" / "stored_runs"
RUNS, EXPECTED, ACCEPTED = STORED / "runs.tar.xz", STORED / "expected.json.xz", STORED / "accepted_texts.json"

MOST_SHOWN = 20
"""Differences printed of a subject; and of texts, in all, twice as many."""


def compared(expected: Document, made: Document) -> Iterator[Difference]:
    """Yield the differences of a subject's outputs."""
    for command in [*expected, *(name for name in made if name not in expected)]:
        old, new = expected.get(command), made.get(command)
        if old is None or new is None:
            yield Difference(command, "not stored" if old is None else "stored", "not made" if new is None else "made")
            continue
        for key in [*old, *(key for key in new if key not in old)]:
            path = f"{command}: {key}"
            compare: Callable[[Any, Any, str], Iterator[Difference]] = differences
            if _is_text(old.get(key)) and _is_text(new.get(key)):
                compare = sentence_differences if key.endswith(".md") else text_differences
            yield from compare(old.get(key), new.get(key), path)


def _is_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(line, str) for line in value)


class Verdict:
    """The differences so far, printed as they are found; those of texts at the end, each once."""

    def __init__(self, accepted: Templates) -> None:
        self.figures = 0
        self.texts: Counter[tuple[str, str]] = Counter()
        self._where: dict[tuple[str, str], str] = {}
        self._accepted = accepted

    def add(self, subject: str, found: Iterator[Difference]) -> None:
        figures = []
        for difference in found:
            if not difference.prose:
                figures.append(difference)
            elif not self._accepted.accept(difference.old, difference.new):
                self.texts[difference.old, difference.new] += 1
                self._where.setdefault((difference.old, difference.new), f"{subject}: {difference.path}")
        self.figures += len(figures)
        for difference in figures[:MOST_SHOWN]:
            print(f"{subject}: {difference}")
        if len(figures) > MOST_SHOWN:
            print(f"{subject}: and {len(figures) - MOST_SHOWN} more")

    def show_texts(self, most: int) -> None:
        for (old, new), count in self.texts.most_common(most):
            print(f"text differs, {count} times, first at {self._where[old, new]}:\n  - {old}\n  + {new}")
        if len(self.texts) > most:
            print(f"and {len(self.texts) - most} other texts")


def chosen(every: Sequence[Subject], part: str, only: str) -> list[Subject]:
    """Return the subjects of a part, k/n, drawn by seed, whose name contains ``only``."""
    number, _, count = (part or "1/1").partition("/")
    drawn = random.Random(SEED).sample(every, len(every))[int(number) - 1 :: int(count)]
    return [subject for subject in every if subject in drawn and only in subject.name]


def pack(folder: Path) -> None:
    """Store the runs in a folder, without what reports write."""
    with lzma.open(RUNS, "wb", preset=9) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name not in PAGES:
                entry = tarfile.TarInfo(str(path.relative_to(folder)))
                entry.size, entry.mode = path.stat().st_size, 0o644
                with path.open("rb") as stream:
                    archive.addfile(entry, stream)
    print(f"{RUNS}: {RUNS.stat().st_size / 1e6:.2f} MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="", metavar="K/N")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--refresh", action="store_true")
    parser.add_argument("--pack", type=Path, metavar="FOLDER")
    parser.add_argument("--texts", type=int, default=2 * MOST_SHOWN, metavar="N", help="differences of texts to print")
    arguments = parser.parse_args()
    if arguments.pack:
        pack(arguments.pack)
        return 0
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set must make no difference here
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    for name in [name for name in os.environ if name.startswith(("TESTBED_", "SUDO_"))]:
        del os.environ[name]
    os.environ |= {"COLUMNS": "120", "NO_COLOR": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
    time.tzset()
    preload()
    with tempfile.TemporaryDirectory(prefix="stored-runs-") as made:
        sources = Path(made) / "sources"
        with tarfile.open(RUNS) as archive:
            archive.extractall(sources)
        return _compare(arguments, chosen(subjects(sources), arguments.part, arguments.only), Path(made))


def _compare(arguments: argparse.Namespace, wanted: Sequence[Subject], folder: Path) -> int:
    stored: Document = json.loads(lzma.decompress(EXPECTED.read_bytes())) if EXPECTED.exists() else {}
    verdict = Verdict(Templates(json.loads(ACCEPTED.read_text()) if ACCEPTED.exists() else []))
    began = os.times()
    for number, subject in enumerate(wanted):
        work = folder / f"{number:03}"
        work.mkdir()
        made = json.loads(json.dumps(outputs(subject, work)))
        shutil.rmtree(work)
        if arguments.refresh:
            stored[subject.name] = made
        else:
            verdict.add(subject.name, compared(stored.get(subject.name, {}), made))
    ended = os.times()
    if arguments.refresh:
        if not arguments.only and not arguments.part:
            stored = {subject.name: stored[subject.name] for subject in wanted}
        EXPECTED.write_bytes(lzma.compress(json.dumps(stored).encode(), preset=9 | lzma.PRESET_EXTREME))
        print(f"{EXPECTED}: {EXPECTED.stat().st_size / 1e6:.2f} MB")
    verdict.show_texts(arguments.texts)
    cpu_s = ended.user + ended.system + ended.children_user + ended.children_system
    cpu_s -= began.user + began.system + began.children_user + began.children_system
    differ = f"{verdict.figures} figures and {len(verdict.texts)} texts differ"
    print(f"{len(wanted)} subjects: {differ}; {cpu_s:.0f} s of CPU time")
    return 1 if verdict.figures or verdict.texts else 0


if __name__ == "__main__":
    sys.exit(main())
