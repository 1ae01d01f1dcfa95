"""The fuzz corpus, replayed under ASan and UBSan by an ordinary compiler, and its archive (docs/fuzzing.md)."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builders import ROOT
from builders.programs import FIBERD, c_compiler, python, run
from builders.tables import table

FUZZ = ROOT / "tests" / "fuzz"
ARCHIVE = FUZZ / "corpus.tar.xz"
TARGETS = ("packet", "fiber", "control")
GARBAGE = 60
MOST_CORPUS_BYTES = 500_000
BUILD_S = 300


class Fuzz:
    """The replay programs, by the commands of their Makefile; each source is compiled once for all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources: dict[str, list[Path]] = {}
        for line in make("-n", "replay", f"BUILD={folder}").stdout.splitlines():
            if "replay.c" in line:
                words = shlex.split(line)
                target = Path(words[words.index("-o") + 1]).name.removeprefix("replay-")
                self.sources[target] = [(FUZZ / word).resolve() for word in words if word.endswith(".c")]
                self.command = words[: words.index("-o")]
        every = {source for sources in self.sources.values() for source in sources}
        with ThreadPoolExecutor(2) as pool:
            self.objects = dict(zip(every, pool.map(self.compile, every), strict=True))

    def compile(self, source: Path) -> Path:
        return self.build(self.folder / f"{'_'.join(source.parts[1:])}.o", "-c", source)

    def link(self, target: str, instead: Path | None = None) -> Path:
        """Link a program; ``instead``: a source that is compiled in place of the one with its name."""
        objects = self.objects | ({FIBERD / instead.name: self.compile(instead)} if instead else {})
        return self.build(
            self.folder / f"replay-{target}", *(objects[source] for source in self.sources[target]), "-lm"
        )

    def build(self, made: Path, *words: object) -> Path:
        done = run(*self.command, "-o", made, *words, cwd=FUZZ, timeout=BUILD_S)
        assert done.returncode == 0, done.stderr
        return made


def make(*words: object) -> subprocess.CompletedProcess[str]:
    if not shutil.which("make"):
        pytest.skip("no make")
    done = run("make", "-s", "-C", FUZZ, *words, f"CC={c_compiler()}", timeout=BUILD_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Fuzz:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    if run(c_compiler(), "-fsanitize=address,undefined", "empty.c", cwd=folder).returncode != 0:
        pytest.skip("this compiler has no sanitizers (musl)")
    return Fuzz(folder)


def fuzz_corpus(*arguments: object, error: str = "") -> None:
    """Run tools/fuzz_corpus.py, which fails if there is to be an error."""
    done = python(ROOT / "tools" / "fuzz_corpus.py", *arguments)
    assert done.returncode == bool(error), done.stderr
    assert re.search(error, done.stderr)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked corpus: a folder with a folder of inputs for each target."""
    folder = tmp_path_factory.mktemp("corpus")
    fuzz_corpus("unpack", folder)
    return folder


@pytest.fixture(scope="module")
def packed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of the corpus, as the tool packs it now."""
    archive = tmp_path_factory.mktemp("packed") / "corpus.tar.xz"
    fuzz_corpus("--archive", archive, "pack", corpus)
    return archive


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first inputs, which the corpus was grown from: limits by hand that coverage does not distinguish."""
    folder = tmp_path_factory.mktemp("seeds")
    python(FUZZ / "seeds.py", folder, check=True)
    return folder


def replay(program: Path, *paths: Path) -> int:
    """Return how many inputs were replayed; fail with the output about the one that broke the program."""
    done = run(program, *paths, timeout=120)
    assert done.returncode == 0, f"{program} {paths}: {done.stderr[-4000:]}"
    replayed = re.fullmatch(r"replayed (\d+)\n", done.stdout)
    assert replayed, done.stdout
    return int(replayed[1])


@pytest.mark.parametrize("target", TARGETS)
def test_all_properties_hold_on_the_corpus_and_on_garbage(
    fuzz: Fuzz, corpus: Path, seeds: Path, target: str, tmp_path: Path
) -> None:
    """And on a damaged corpus."""
    program = fuzz.link(target)
    inputs = sorted((corpus / target).iterdir())
    assert len(inputs) > 10
    assert replay(program, *inputs, seeds / target) == len(inputs) + len(list((seeds / target).iterdir()))
    chance = random.Random(f"garbage for {target}")
    for number in range(GARBAGE):
        damaged = bytearray(chance.choice(inputs).read_bytes() or b"\0")
        for _ in range(4):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        (tmp_path / f"damaged-{number}").write_bytes(damaged)
        (tmp_path / f"garbage-{number}").write_bytes(chance.randbytes(chance.randrange(400)))
    assert replay(program, tmp_path) == 2 * GARBAGE


@pytest.mark.thorough
def test_the_makefile_builds_the_programs_itself(fuzz: Fuzz, corpus: Path, tmp_path: Path) -> None:
    make("replay", f"BUILD={tmp_path}")
    for target in TARGETS:
        assert replay(tmp_path / f"replay-{target}", corpus / target) > 10


def test_the_corpus_is_small(corpus: Path) -> None:
    assert sum(path.stat().st_size for path in corpus.rglob("*") if path.is_file()) < MOST_CORPUS_BYTES


def test_equal_inputs_make_an_equal_archive(corpus: Path, packed: Path, tmp_path: Path) -> None:
    copy, archive = tmp_path / "copy", tmp_path / "corpus.tar.xz"
    for target in reversed(TARGETS):
        (copy / target).mkdir(parents=True)
        for file in sorted((corpus / target).iterdir(), reverse=True):
            twin = copy / target / file.name
            shutil.copyfile(file, twin)
            twin.chmod(0o600)
            os.utime(twin, (1e9, 1e9))
    fuzz_corpus("--archive", archive, "pack", copy)
    assert archive.read_bytes() == packed.read_bytes()


def test_the_archive_is_the_one_that_the_tool_packs(packed: Path) -> None:
    """All members, in order and with their headers; the compressed bytes depend on the release of liblzma."""
    with tarfile.open(ARCHIVE) as kept, tarfile.open(packed) as again:
        assert [member.get_info() for member in kept] == [member.get_info() for member in again]


def crash_name(path: Path) -> str:
    return f"crash-{hashlib.sha1(path.read_bytes()).hexdigest()}"


def test_inputs_that_crashed_are_in_the_corpus_under_their_hash(corpus: Path) -> None:
    crashes = list(corpus.rglob("crash-*"))
    assert crashes
    for path in crashes:
        assert path.name == crash_name(path)


def test_add_an_input_that_crashed(corpus: Path, tmp_path: Path) -> None:
    archive, fresh = tmp_path / "corpus.tar.xz", tmp_path / "crash-fiber-crash-1"
    shutil.copyfile(ARCHIVE, archive)
    fresh.write_bytes(b"an input that crashed")
    listed = min(path for path in (corpus / "fiber").iterdir() if not path.name.startswith("crash-"))
    fuzz_corpus("--archive", archive, "add", "fiber", fresh, listed)
    fuzz_corpus("--archive", archive, "unpack", tmp_path / "after")
    before, after = ({path.name for path in (folder / "fiber").iterdir()} for folder in (corpus, tmp_path / "after"))
    assert after - before == {crash_name(fresh), crash_name(listed)}
    assert before - after == {listed.name}


@table(
    "spoil, error",
    {
        "a name that no tool writes": (
            lambda folder: (folder / "packet" / "of this name.txt").touch(),
            "expected a name of letters, digits",
        ),
        "a target without a folder": (lambda folder: shutil.rmtree(folder / "fiber"), "fiber"),
        "a target without inputs": (
            lambda folder: [file.unlink() for file in (folder / "control").iterdir()],
            "expected inputs in .*control",
        ),
    },
)
def test_a_folder_that_cannot_be_packed_leaves_the_archive(
    corpus: Path, tmp_path: Path, spoil: Callable[[Path], object], error: str
) -> None:
    folder, archive = tmp_path / "corpus", tmp_path / "corpus.tar.xz"
    shutil.copytree(corpus, folder)
    shutil.copyfile(ARCHIVE, archive)
    spoil(folder)
    fuzz_corpus("--archive", archive, "pack", folder, error=error)
    assert archive.read_bytes() == ARCHIVE.read_bytes()


def test_unpack_refuses_a_folder_with_files(tmp_path: Path) -> None:
    (tmp_path / "packet").mkdir()
    fuzz_corpus("unpack", tmp_path, error="expected an empty folder")


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
        mistake
        if mistake[1] not in {earlier[1] for earlier in MISTAKES[:number]}
        else pytest.param(*mistake, marks=pytest.mark.thorough)
        for number, mistake in enumerate(MISTAKES)
    ],
)
def test_a_mistake_is_found(
    fuzz: Fuzz, corpus: Path, seeds: Path, tmp_path: Path, target: str, file: str, right: str, wrong: str
) -> None:
    """The properties can fail: the corpus distinguishes each of these mistakes from the code."""
    text = (FIBERD / file).read_text()
    assert text.count(right) == 1, f"{file} has changed: update this mistake: {right}"
    (tmp_path / file).write_text(text.replace(right, wrong))
    assert run(fuzz.link(target, tmp_path / file), corpus / target, seeds / target, timeout=120).returncode != 0
