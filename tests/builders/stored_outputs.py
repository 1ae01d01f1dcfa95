"""What is compared of the stored runs (``stored_runs.py``): which commands, and what they print and write here.

Each command is ``testbed.__main__.main`` in a process forked from one that has imported everything. Three outputs have
no command of their own and are made by ADAPTERS: follow the functions that they call where these are moved.
"""

from __future__ import annotations

import gc
import html
import importlib
import json
import os
import pkgutil
import random
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders.damaged_runs import SEED, Damaged, damaged_runs

ROOT = Path(__file__).resolve().parents[2]

Document = dict[str, Any]


@dataclass(frozen=True)
class Command:
    """A command line of the testbed, or the name of one of ADAPTERS and its arguments."""

    words: tuple[str, ...]
    files: tuple[str, ...] = ()
    """What it writes: kept beside its output."""

    @property
    def name(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Subject:
    """What is compared as a whole: the outputs for one run, one topology or so, by commands in their order."""

    name: str
    commands: tuple[Command, ...]
    prepare: Callable[[Path], None] = field(default=lambda runs: None)
    """Put its runs into a folder: the folder of runs of its commands."""


PAGES = ("report.json", "report.md", "index.html")


def subjects(sources: Path) -> list[Subject]:
    """Return all subjects; the stored runs are in ``sources``."""
    stored = [path.name for path in sorted(sources.iterdir()) if path.is_dir()]
    return [
        *(_run(name, sources) for name in stored),
        *_damaged(sources),
        *_pairs(stored, sources),
        *_ways(sources),
        *_topologies(),
        *_experiments(),
        *_predictions(),
        Subject("options", (Command(("options",)),)),
        *(Subject(f"ls {kind}", (Command(("ls", kind, "--json")),)) for kind in LISTS),
    ]


LISTS = ("topologies", "experiments", "faults", "strategies")


def _copy(sources: Path, *names: str) -> Callable[[Path], None]:
    def copy(runs: Path) -> None:
        for name in names:
            shutil.copytree(sources / name, runs / name)

    return copy


def _run(name: str, sources: Path) -> Subject:
    commands = (
        Command(("report", name, "--json"), files=tuple(f"{name}/{page}" for page in PAGES)),
        Command(("report", name)),
        Command(("junit", name)),
        Command(("predict", "--measured", name, "--json")),
        Command(("ls", "runs", "--json")),
    )
    return Subject(f"run {name}", commands, _copy(sources, name))


def _damaged(sources: Path) -> Iterator[Subject]:
    for damaged in damaged_runs(sources):
        commands = (
            Command(("report", damaged.name, "--json"), files=(f"{damaged.name}/report.json",)),
            Command(("ls", "runs", "--json")),
        )

        def prepare(runs: Path, made: Damaged = damaged) -> None:
            made.make(sources, runs / made.name)

        yield Subject(f"{damaged.name} ({damaged.source})", commands, prepare)


def _pairs(stored: Sequence[str], sources: Path) -> Iterator[Subject]:
    chance = random.Random(SEED)
    for first, second in (chance.sample(stored, 2) for _ in range(6)):
        commands = (Command(("report", first, second, "--json")), Command(("report", first, second)))
        yield Subject(f"pair {first} {second}", commands, _copy(sources, first, second))


def _ways(sources: Path) -> Iterator[Subject]:
    runs = ("compared", "compared-2")
    if all((sources / run).exists() for run in runs):
        yield Subject("ways compared", (Command(("ways", "ddp", runs[0], "diloco", runs[1])),), _copy(sources, *runs))


def _topologies() -> Iterator[Subject]:
    declared = ("--strategy", "diloco:every=50", "--compute", "80ms", "--model", "1.3B")
    for path in sorted((ROOT / "topologies").glob("*.yaml")):
        name = path.stem
        commands = [Command((verb, name, "--json")) for verb in ("show", "lint", "audit")]
        commands += [Command(("render", name)), Command(("predict", name, *declared, "--json"))]
        if name in ("metro-40km", "regional-protected"):
            commands += [Command((verb, name)) for verb in ("show", "audit", "predict")]
        if name != "ring-64":  # its plan has 10,120 steps
            commands.append(Command(("up", name, "--dry-run", "--driver", "netns", "--emulator", "fiberd")))
        yield Subject(f"topology {name}", tuple(commands))


def _experiments() -> Iterator[Subject]:
    for path in sorted((ROOT / "experiments").glob("*.yaml")):
        commands = (Command(("lint", path.stem, "--json")), Command(("predict", path.stem, "--json")))
        yield Subject(f"experiment {path.stem}", commands)


STRATEGIES = (
    "ddp:accumulate=2",
    "hierarchical",
    "fsdp",
    "hsdp",
    "local-sgd:every=10",
    "diloco:every=20",
    "streaming-diloco:every=20,fragments=4,overlap=1,bits=4",
    "sparse-loco:every=20",
    "multi-tier:every=10,every_regions=20",
    "async-diloco:every=20",
    "decoupled:every=20",
    "pipeline:micro_batches=4",
    "tensor",
    "moe",
)


def _predictions() -> Iterator[Subject]:
    declared = ("--compute", "80ms", "--model", "1.3B")
    for strategy in STRATEGIES:
        words = ("--strategy", strategy, *declared)
        commands = (
            Command(("predict", "metro-40km", *words, "--json")),
            Command(("show", "metro-triangle", "--strategy", strategy, "--json")),
        )
        yield Subject(f"strategy {strategy.partition(':')[0]}", commands)
    predictions: dict[str, tuple[str, ...]] = {
        "failures": ("--mtbf", "8h", "--cuts", "2.13", "--repair", "6h"),
        "target": ("--strategy", "diloco:every=50", *declared, "--target", "0.9"),
        "table": (*declared, "--over", "km=5..9000"),
        "without a topology": ("--sites", "3", "--ranks-per-site", "2", "--rate", "50G", "--delay", "1ms", *declared),
        "TCP": (*declared, "--window", "6MB", "--loss", "1e-5", "--connections", "4", "--cold-start"),
    }
    for name, options in predictions.items():
        topology = () if name == "without a topology" else ("longhaul-1000km",)
        yield Subject(f"prediction {name}", (Command(("predict", *topology, *options, "--json")),))


def show_junit(run: str) -> None:
    """Print a run's JUnit XML, which ``--junit`` writes."""
    from testbed.core.report import junit
    from testbed.core.report.validation import validation_junit
    from testbed.lab import api

    if (validated := api.validation_report(Path(run))) is not None:
        print(validation_junit.junit(*validated[:2]))
    else:
        print(junit.junit(api.report(Path(run))[0]))


def show_ways(*ways_and_runs: str) -> None:
    """Print the comparison of runs that ``compare`` makes: alternately a way of training and its run."""
    from testbed.core.report.comparison.ways_compared import WaysCompared, to_json, way_of_run
    from testbed.host.files import runs_folder

    found = [(way, runs_folder.find(Path(run))) for way, run in zip(*[iter(ways_and_runs)] * 2, strict=True)]
    runs = tuple(way_of_run(way, 0, run.name, str(run.path), run.read()) for way, run in found)
    print(json.dumps(to_json(WaysCompared("metro-40km", tuple(way for way, _ in found), (0,), runs))))


def show_options() -> None:
    """Print the options and arguments of all verbs: how they are written, their defaults and help."""
    import typer

    from testbed.cli.app import app

    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    verbs = {"testbed": group, **{name: group.get_command(context, name) for name in group.list_commands(context)}}
    described = {name: _described(command, typer.Context(command)) for name, command in verbs.items()}
    print(json.dumps(described, default=str))


def _described(command: Any, context: Any) -> Document:
    names = ("param_type_name", "required", "multiple", "nargs", "min", "max", "envvar", "default", "hidden", "help")
    parameters = {}
    for parameter in command.params:
        facts = {name: getattr(parameter, name, None) for name in names}
        written = (parameter.get_help_record(context) or ("",))[0]
        choices = re.search(r"[<\[]([^<>\[\]]*\|[^<>\[\]]*)[>\]]", written)  # of <a|b>, [a|b] or <list[a|b]>
        facts["values"] = parameter.metavar or (choices[1] if choices else None)
        parameters[" ".join((*parameter.opts, *parameter.secondary_opts))] = facts
    return {"help": command.help, "panel": getattr(command, "rich_help_panel", None), "parameters": parameters}


ADAPTERS: dict[str, Callable[..., None]] = {"junit": show_junit, "ways": show_ways, "options": show_options}


def preload() -> None:
    """Import all of the testbed, so that forked processes need not."""
    import testbed

    for module in pkgutil.walk_packages(testbed.__path__, "testbed."):
        if not module.name.startswith(("testbed.pytest_plugin", "testbed.chaos")) and "__main__" not in module.name:
            importlib.import_module(module.name)
    gc.freeze()


def outputs(subject: Subject, work: Path) -> Document:
    """Return what the commands of a subject print and write, by their names."""
    runs = work / "runs"
    runs.mkdir()
    (work / "here").mkdir()
    subject.prepare(runs)
    return {command.name: _output(command, work) for command in subject.commands}


def _output(command: Command, work: Path) -> Document:
    status = _forked(command.words, work)
    out, errors = (normalized((work / name).read_text(errors="replace"), work) for name in ("out", "errors"))
    if command.words[0] == "show" and "--json" not in command.words:
        out = re.sub(r"[ \u2500]{2,}", "  ", out)  # widths of columns depend on the path of the repository
    document: Document = {"status": status, **_parsed("output", out)}
    if errors:
        document["errors"] = errors.splitlines()
    for file in command.files:
        path, name = work / "runs" / file, file.rpartition("/")[2]
        if not path.exists():
            document[name] = None
        elif path.suffix == ".html":
            document |= _page(name, normalized(path.read_text(), work))
        else:
            document |= _parsed(name, normalized(path.read_text(), work))
            if document[name] == document["output"]:
                document[name] = "as printed"
    return document


def _parsed(name: str, text: str) -> Document:
    try:
        return {name: json.loads(text)}
    except ValueError:
        return {name: text.splitlines()}


def _page(name: str, text: str) -> Document:
    """Return a page's figures, and its text, a line for each element."""
    figures = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    bare = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    lines = [" ".join(html.unescape(part).split()) for part in re.split(r"<[^>]*>", bare)]
    return {f"{name} figures": json.loads(figures[1]) if figures else None, name: [line for line in lines if line]}


def _forked(words: Sequence[str], work: Path) -> int:
    """Do a command in a process of its own; its output goes to files in ``work``. Return its exit status."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        status = 99
        try:
            for name, number in (("out", 1), ("errors", 2)):
                os.dup2(os.open(work / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(work / "here")
            os.environ |= {"TESTBED_RUNS": str(work / "runs"), "TESTBED_STATE": str(work / "state")}
            if words[0] == "show":
                os.environ["COLUMNS"] = "500"  # no path is wrapped
            status = _do(words)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _do(words: Sequence[str]) -> int:
    if adapter := ADAPTERS.get(words[0]):
        adapter(*words[1:])
        return 0
    from testbed.__main__ import main

    sys.argv = ["testbed", *words]
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    return 0


def normalized(text: str, work: Path) -> str:
    """Replace what depends on the machine, the moment and the version."""
    from testbed.version import __version__

    here = Path(sys.executable).parent
    for path, name in {
        f"{sys.executable} -m testbed": "testbed",
        str(here / "testbed"): "testbed",
        str(work): "WORK",
        str(ROOT): "REPOSITORY",
        str(here): "BIN",
        str(Path.home()): "HOME",
    }.items():
        text = text.replace(path, name)
    text = text.replace("sudo testbed", "testbed")
    text = re.sub(rf"\b{re.escape(__version__)}\b", "VERSION", text)
    return re.sub(r"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?\b", "TIME", text)
