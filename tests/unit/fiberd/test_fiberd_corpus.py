"""The fuzz corpus, replayed under ASan and UBSan by an ordinary compiler, and its archive (docs/fuzzing.md)."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FUZZ = ROOT / "tests" / "fuzz"
ARCHIVE = FUZZ / "corpus.tar.xz"
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


def fuzz_corpus(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run tools/fuzz_corpus.py."""
    argv = [sys.executable, ROOT / "tools" / "fuzz_corpus.py", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked corpus: a folder with a folder of inputs for each target."""
    folder = tmp_path_factory.mktemp("corpus")
    done = fuzz_corpus("unpack", folder)
    assert done.returncode == 0, done.stderr
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
def test_every_property_holds_on_the_corpus(built: Path, corpus: Path, seeds: Path, target: str) -> None:
    inputs = list((corpus / target).iterdir())
    assert len(inputs) > 10
    assert replay(built, target, *inputs, seeds / target) == len(inputs) + len(list((seeds / target).iterdir()))


@pytest.mark.parametrize("target", TARGETS)
def test_and_on_garbage_and_on_a_damaged_corpus(built: Path, corpus: Path, target: str, tmp_path: Path) -> None:
    chance = random.Random(f"garbage for {target}")
    inputs = sorted((corpus / target).iterdir())
    for number in range(GARBAGE):
        damaged = bytearray(chance.choice(inputs).read_bytes() or b"\0")
        for _ in range(4):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        (tmp_path / f"damaged-{number}").write_bytes(damaged)
        (tmp_path / f"garbage-{number}").write_bytes(chance.randbytes(chance.randrange(400)))
    assert replay(built, target, tmp_path) == 2 * GARBAGE


def test_the_corpus_is_small(corpus: Path) -> None:
    assert sum(path.stat().st_size for path in corpus.rglob("*") if path.is_file()) < MOST_CORPUS_BYTES


def test_equal_inputs_make_an_equal_archive(corpus: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for target in reversed(TARGETS):
        (copy / target).mkdir(parents=True)
        for file in sorted((corpus / target).iterdir(), reverse=True):
            shutil.copyfile(file, copy / target / file.name)
            (copy / target / file.name).chmod(0o600)
            os.utime(copy / target / file.name, (1e9, 1e9))
    archives = [tmp_path / "1.tar.xz", tmp_path / "2.tar.xz"]
    for archive, folder in zip(archives, (corpus, copy), strict=True):
        done = fuzz_corpus("--archive", archive, "pack", folder)
        assert done.returncode == 0, done.stderr
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_the_archive_is_the_one_that_the_tool_packs(corpus: Path, tmp_path: Path) -> None:
    """All members, in order and with their headers; the compressed bytes depend on the release of liblzma."""
    again = tmp_path / "again.tar.xz"
    assert fuzz_corpus("--archive", again, "pack", corpus).returncode == 0
    with tarfile.open(ARCHIVE) as kept, tarfile.open(again) as packed:
        assert [member.get_info() for member in kept] == [member.get_info() for member in packed]


def test_inputs_that_crashed_are_in_the_corpus_under_their_hash(corpus: Path) -> None:
    crashes = list(corpus.rglob("crash-*"))
    assert crashes
    for path in crashes:
        assert path.name == f"crash-{hashlib.sha1(path.read_bytes()).hexdigest()}"


def test_add_an_input_that_crashed(corpus: Path, tmp_path: Path) -> None:
    archive, new = tmp_path / "corpus.tar.xz", tmp_path / "crash-fiber-crash-1"
    shutil.copyfile(ARCHIVE, archive)
    new.write_bytes(b"an input that crashed")
    known = min(path for path in (corpus / "fiber").iterdir() if not path.name.startswith("crash-"))
    done = fuzz_corpus("--archive", archive, "add", "fiber", new, known)
    assert done.returncode == 0, done.stderr
    assert fuzz_corpus("--archive", archive, "unpack", tmp_path / "after").returncode == 0
    before, after = ({it.name for it in (folder / "fiber").iterdir()} for folder in (corpus, tmp_path / "after"))
    assert after - before == {f"crash-{hashlib.sha1(path.read_bytes()).hexdigest()}" for path in (new, known)}
    assert before - after == {known.name}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "packet" / "of this name.txt").touch(), "expected a name of letters, digits"),
        (lambda folder: shutil.rmtree(folder / "fiber"), "fiber"),
        (
            lambda folder: [file.unlink() for file in (folder / "control").iterdir()],
            "expected inputs in .*control",
        ),
    ],
)
def test_a_folder_that_cannot_be_packed_leaves_the_archive(
    corpus: Path, tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    folder, archive = tmp_path / "corpus", tmp_path / "corpus.tar.xz"
    shutil.copytree(corpus, folder)
    shutil.copyfile(ARCHIVE, archive)
    spoil(folder)
    done = fuzz_corpus("--archive", archive, "pack", folder)
    assert done.returncode == 1
    assert re.search(words, done.stderr)
    assert archive.read_bytes() == ARCHIVE.read_bytes()


def test_unpack_refuses_a_folder_with_files(tmp_path: Path) -> None:
    (tmp_path / "packet").mkdir()
    done = fuzz_corpus("unpack", tmp_path)
    assert done.returncode == 1
    assert "expected an empty folder" in done.stderr


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
    ("control", "control.c", "control->out[control->out_used - 1] = '\\n';", "control->out_used--;"),
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
    built: Path, corpus: Path, seeds: Path, tmp_path: Path, target: str, file: str, right: str, wrong: str
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
    inputs = (corpus / target, seeds / target)
    found = subprocess.run([program, *inputs], capture_output=True, text=True, timeout=120)
    assert found.returncode != 0
