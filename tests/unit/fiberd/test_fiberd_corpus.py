"""What the fuzzers found interesting, replayed under ASan and UBSan by an ordinary compiler (docs/fuzzing.md)."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FUZZ = ROOT / "tests" / "fuzz"
TARGETS = ("packet", "fiber", "control")
GARBAGE = 60
MOST_CORPUS_BYTES = 500_000


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with ``replay-<target>``."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler or not shutil.which("make"):
        pytest.skip("no C compiler, or no make")
    folder = tmp_path_factory.mktemp("fuzz")
    if not has_sanitizers(compiler, folder):
        pytest.skip(f"{compiler} has no sanitizers here (musl)")
    make = ["make", "-s", "-j2", "-C", str(FUZZ), "replay", f"BUILD={folder}", f"CC={compiler}"]
    done = subprocess.run(make, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    return folder


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first inputs, which the corpus was grown from: limits by hand that coverage does not tell apart."""
    folder = tmp_path_factory.mktemp("seeds")
    subprocess.run([sys.executable, FUZZ / "seeds.py", folder], check=True, capture_output=True, timeout=60)
    return folder


def has_sanitizers(compiler: str, folder: Path) -> bool:
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    build = [compiler, "-fsanitize=address,undefined", "-o", str(folder / "empty"), str(source)]
    return subprocess.run(build, capture_output=True).returncode == 0


def replay(built: Path, target: str, *paths: Path) -> int:
    """How many inputs were replayed; fails with what the program said of the one that broke it."""
    argv = [built / f"replay-{target}", *paths]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{' '.join(map(str, argv))}: {done.stderr[-4000:]}"
    found = re.fullmatch(r"replayed (\d+)\n", done.stdout)
    assert found, done.stdout
    return int(found[1])


@pytest.mark.parametrize("target", TARGETS)
def test_every_property_holds_on_the_corpus(built: Path, seeds: Path, target: str) -> None:
    corpus = [path for path in (FUZZ / "corpus" / target).iterdir() if not path.name.startswith(".")]
    assert len(corpus) > 10
    assert replay(built, target, *corpus, seeds / target) == len(corpus) + len(list((seeds / target).iterdir()))


@pytest.mark.parametrize("target", TARGETS)
def test_and_on_garbage_and_on_a_damaged_corpus(built: Path, target: str, tmp_path: Path) -> None:
    chance = random.Random(f"garbage for {target}")
    corpus = sorted((FUZZ / "corpus" / target).iterdir())
    for number in range(GARBAGE):
        damaged = bytearray(chance.choice(corpus).read_bytes() or b"\0")
        for _ in range(4):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        (tmp_path / f"damaged-{number}").write_bytes(damaged)
        (tmp_path / f"garbage-{number}").write_bytes(chance.randbytes(chance.randrange(400)))
    assert replay(built, target, tmp_path) == 2 * GARBAGE


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in (FUZZ / "corpus").rglob("*") if path.is_file()) < MOST_CORPUS_BYTES


# One mistake per line, of the kind that the properties are there for: target, file, what is there, what it becomes.
MISTAKES = [
    ("packet", "packet.c", "+ first * shape->payload_bytes);", "+ first);"),
    ("packet", "packet.c", "if (header >= bytes || ", "if ("),
    ("packet", "packet.c", "if (at + 2 > bytes)", "if (at > bytes)"),
    ("fiber", "fiber.c", "fiber->memory_used -= frame_cost(frame);", ""),
    ("fiber", "fiber.c", "fiber->stats.duplicated++;", ""),
    ("fiber", "fiber.c", "later(arrival, fiber->next_free) + ", "arrival + "),
    ("fiber", "plant.c", "f && f->due <= now && count", "f && count"),
    ("control", "control.c", "plant_set(control->plant, fiber, &impairment);\n", "return;\n"),
]


@pytest.mark.parametrize(
    ("target", "file", "right", "wrong"),
    # One of each file; the others are compiled and tried by make test-thorough.
    [
        it if it[1] not in {earlier[1] for earlier in MISTAKES[:n]} else pytest.param(*it, marks=pytest.mark.thorough)
        for n, it in enumerate(MISTAKES)
    ],
)
def test_a_mistake_is_found(
    built: Path, seeds: Path, tmp_path: Path, target: str, file: str, right: str, wrong: str
) -> None:
    """The properties can fail: the corpus tells each of these mistakes from the code."""
    sources = tmp_path / "fiberd"
    shutil.copytree(ROOT / "testbed" / "fiberd", sources, ignore=shutil.ignore_patterns("build", "fiberd"))
    text = (sources / file).read_text()
    assert text.count(right) == 1, f"{file} has changed: say this mistake in its new words: {right}"
    (sources / file).write_text(text.replace(right, wrong))
    program = tmp_path / f"replay-{target}"
    make = ["make", "-s", "-C", str(FUZZ), str(program), f"BUILD={tmp_path}", f"FIBERD={sources}"]
    done = subprocess.run(make, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    inputs = (FUZZ / "corpus" / target, seeds / target)
    found = subprocess.run([program, *inputs], capture_output=True, text=True, timeout=120)
    assert found.returncode != 0
