"""Change single expressions of the product, and count by room which changes the unit tests notice.

python tools/mutants.py --number 500 --seed 1     # needs: pip install coverage
python tools/mutants.py --rooms testbed/core/analysis --tests tests/unit/core/analysis --number 40

Works on clones of HEAD. First all tests run once under coverage.py, which records the tests of each line
(build/mutants.json, which later calls use until it is deleted). Then each mutant runs against the tests of its line,
those that cover least first.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "build" / "mutants.json"
WORKERS = 2
TESTS_S, BOUND_S = 20.0, 120.0
"""How long the tests of one mutant took without it; a mutant that runs for longer than the bound is killed."""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
}
ANNOTATIONS = ("annotation", "returns")
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    path: str
    line: int
    span: slice
    """Bytes of the file that ``text`` replaces."""
    before: str
    text: str


def changed(node: ast.expr) -> ast.expr | None:
    """Return a copy with the operator, constant or function exchanged; None if the expression has none of these."""
    new: Any = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[operator]) if type(operator) in SWAPS:
            new.ops = [SWAPS[type(operator)]()]
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in SWAPS:
            new.op = SWAPS[type(operator)]()
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return new.operand
        case ast.Constant(value=bool()):
            new.value = not new.value
        case ast.Constant(value=int() | float()):
            new.value += 1
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
            new.func.id = FUNCTIONS[name]
        case ast.IfExp():
            new.body, new.orelse = new.orelse, new.body
        case _:
            return None
    return new


def evaluated(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions below a node, without annotations, and f-strings, whose parts have no place in the file."""
    for name, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.expr) and not isinstance(child, ast.JoinedStr) and name not in ANNOTATIONS:
                yield child
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr) and name not in ANNOTATIONS:
                yield from evaluated(child)


def mutants(clone: Path, path: str) -> Iterator[Mutant]:
    content = (clone / path).read_bytes()
    lines = content.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    for node in evaluated(ast.parse(content)):
        if new := changed(node):
            assert node.end_lineno is not None and node.end_col_offset is not None
            end = starts[node.end_lineno - 1] + node.end_col_offset
            span = slice(starts[node.lineno - 1] + node.col_offset, end)
            yield Mutant(path, node.lineno, span, ast.unparse(node), ast.unparse(new))


def pytest_runtest_protocol(item: Any) -> None:
    """Name the test to coverage.py: in the run that records, this module is a plugin of pytest."""
    import coverage

    if recording := coverage.Coverage.current():
        recording.switch_context(item.nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    with Path(os.environ["MUTANTS_DURATIONS"]).open("a") as stream:
        stream.write(json.dumps([report.nodeid, report.duration, report.passed]) + "\n")


def pytest(clone: Path, *options: str, before: Sequence[str] = (), **variables: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(map(str, (clone, clone / "agents", ROOT / "tools")))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    argv = [sys.executable, *before, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.Popen(argv, cwd=clone, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)


def record(clone: Path, rooms: Sequence[str], tests: Sequence[str]) -> dict[str, Any]:
    """Return by file and line the tests that ran it and passed, and by test its duration."""
    import coverage

    data, durations = clone.parent / "coverage", clone.parent / "durations"
    before = ("-m", "coverage", "run", f"--source={','.join(rooms)}", f"--data-file={data}")
    pytest(clone, "-p", "mutants", *tests, before=before, MUTANTS_DURATIONS=str(durations)).wait()
    took_s, failed = Counter[str](), set()
    for name, duration_s, passed in map(json.loads, durations.read_text().splitlines()):
        took_s[name] += duration_s
        failed |= set() if passed else {name}
    read = coverage.CoverageData(basename=str(data))
    read.read()
    lines: dict[str, dict[str, list[str]]] = {}
    for file in read.measured_files():
        contexts = read.contexts_by_lineno(file).items()
        passed_by = {str(line): [it for it in names if it in took_s and it not in failed] for line, names in contexts}
        lines[str(Path(file).relative_to(clone))] = passed_by
    return {"took_s": took_s, "lines": lines}


def outcome(clone: Path, mutant: Mutant, tests: Sequence[str]) -> str:
    if not tests:
        return "uncovered"
    file = clone / mutant.path
    content = file.read_bytes()
    file.write_bytes(content[: mutant.span.start] + f"({mutant.text})".encode() + content[mutant.span.stop :])
    process = pytest(clone, "-x", *tests)
    try:
        return "killed" if process.wait(BOUND_S) else "survived"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return "killed"
    finally:
        file.write_bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooms", nargs="+", default=["testbed", "agents/testbed_agents"])
    parser.add_argument("--tests", nargs="+", default=["tests/unit"])
    options = parser.parse_args()
    outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory(prefix="testbed-mutants-") as folder:
        Path(folder).chmod(0o755)
        clones: queue.Queue[Path] = queue.Queue()
        for number in range(WORKERS):
            clone = Path(folder, str(number))
            subprocess.run(["git", "clone", "-q", "--shared", ROOT, clone], check=True)
            shutil.copy(ROOT / "testbed/fiberd/fiberd", clone / "testbed/fiberd")
            clones.put(clone)
        paths = sorted(str(it.relative_to(clone)) for room in options.rooms for it in (clone / room).rglob("*.py"))
        every = [mutant for path in paths for mutant in mutants(clone, path)]
        drawn = random.Random(options.seed).sample(every, options.number)
        if not RECORD.exists():
            RECORD.parent.mkdir(exist_ok=True)
            RECORD.write_text(json.dumps(record(clone, options.rooms, options.tests)))
        took_s, lines = json.loads(RECORD.read_text()).values()
        covered = Counter(name for of_file in lines.values() for names in of_file.values() for name in names)

        def run(mutant: Mutant) -> str:
            of_file = lines.get(mutant.path, {})
            names = of_file.get(str(mutant.line), [])
            if str(mutant.line) in of_file and not names:  # it runs when the module is imported
                names = list({name for names in of_file.values() for name in names})
            tests, spent_s = [], 0.0
            for name in sorted(names, key=lambda name: (covered[name], name)):
                spent_s += took_s[name]
                tests += [name] if not tests or spent_s < TESTS_S else []
            clone = clones.get()
            try:
                return outcome(clone, mutant, tests)
            finally:
                clones.put(clone)

        with ThreadPoolExecutor(WORKERS) as pool:
            for mutant, ended in zip(drawn, pool.map(run, drawn), strict=True):
                outcomes["/".join(Path(mutant.path).parent.parts[:3])][ended] += 1
                print(f"{ended:<9} {mutant.path}:{mutant.line}: {mutant.before} to {mutant.text}", flush=True)
    print("\n| room | mutants | killed | survived | uncovered |\n| --- | ---: | ---: | ---: | ---: |")
    for room, count in (*sorted(outcomes.items()), ("all", sum(outcomes.values(), Counter()))):
        print(f"| {room} | {count.total()} | {count['killed']} | {count['survived']} | {count['uncovered']} |")


if __name__ == "__main__":
    main()
