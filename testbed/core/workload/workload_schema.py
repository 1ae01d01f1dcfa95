"""Read ``workload:`` of a file: the job of the testbed's agents, or a command of the user's.

::

    workload: {steps: 500, seed: 1, checkpoint: 50, restarts: 3}      # strategy: ddp
    workload:
      strategy: diloco                  # and its options: strategy_section.py
      every: 50
      outer: {rate: 0.7, momentum: 0.5}
      compute: 80ms                     # declared_compute.py
      model: 1.3B
    workload:
      command: [python, train.py, --batch, 8]
      env: {OMP_NUM_THREADS: 1}
      ranks_per_node: 2
      progress: nanogpt                 # progress_schema.py
      steps: 2000                       # that the program makes, for step 40%
      folder: ..                        # where it runs, seen from the file; default: the file's own folder
      timeout: 20 min                   # or for: 60s
      stall: 2 min
      keep_scratch: true                # TESTBED_SCRATCH of each node stays with the run

Which of the two it is follows from ``command``. Every key belongs to one of them, ``steps`` and ``timeout`` to both.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from testbed.core.topology.topology_schema import Mistakes, check, whole
from testbed.core.training.strategies_built import BUILT, UNUSABLE
from testbed.core.units import Unreadable, format_duration, parse_number
from testbed.core.user_text import expected, unknown
from testbed.core.workload import declared_compute, progress_schema, strategy_section
from testbed.core.workload.declared_compute import MODEL_LAYERS, DeclaredCompute
from testbed.core.workload.file_section import Part, one_line, some_time, switch
from testbed.core.workload.progress_source import Calls
from testbed.core.workload.workload import AgentWorkload, ProgramWorkload, Workload
from testbed.core.yamltext import Path
from testbed.errors import UserError

__all__ = ["AGENT_KEYS", "COMMAND_KEYS", "COMMAND_TIMEOUT_S", "MOST_STEPS", "OWN_KEYS", "read"]

MOST_STEPS: Final = 10_000_000
COMMAND_TIMEOUT_S: Final = 3600.0
"""Default of a command's ``timeout``: a program that hangs must not keep a CI system's machine for ever."""

_MOST_WORDS: Final = 1000
_LONGEST_WORD: Final = 20_000
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
_ITS_OWN: Final = "the program has a model of its own"

AGENT_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "strategy": ("the program trains by its own strategy", "remove it"),
    "seed": ("the program has a seed of its own", "hand it over: command: [..., --seed, 1]"),
    "data": ("the program reads its own data", "hand the path over in command"),
    "checkpoint": ("the testbed saves no state of a program", "remove it"),
    "evaluate": (_ITS_OWN, "remove it"),
    **dict.fromkeys(("compute", "model", "noise"), ("the program computes itself", "remove it")),
    "restarts": ("the testbed starts a program once", "remove it, or have a launcher such as torchrun restart it"),
    **dict.fromkeys(("batch", "context", "layers", "heads", "width", "learning_rate"), (_ITS_OWN, "remove it")),
}
"""Keys that do not apply to a command: why, and what to do."""

COMMAND_KEYS: Final = ("env", "folder", "for", "keep_scratch", "progress", "ranks_per_node", "stall")
"""Keys that need a command."""


def _strategy(value: object) -> str:
    if isinstance(value, str) and value in BUILT:
        return value
    if not isinstance(value, str):
        raise Unreadable(*expected("the name of a strategy", value, f"write strategy: {next(iter(BUILT))}"))
    if value in UNUSABLE:
        raise Unreadable(UNUSABLE[value], "mend that package, or choose another strategy")
    message, fix = unknown("strategy", value, BUILT)
    raise Unreadable(message, fix or f"write strategy: {next(iter(BUILT))}")


def _rate(value: object) -> float:
    rate = parse_number(value, low=0.0, high=1e3)
    if rate == 0:
        raise Unreadable(*expected("a rate greater than 0", value, "write a number such as 0.001"))
    return rate


def _command(value: object) -> tuple[str, ...]:
    """Parse program and arguments: a list, never a line for a shell."""
    if isinstance(value, str) and value.strip():
        try:
            split = ", ".join(_quoted(word) for word in shlex.split(value))
        except ValueError:
            split = "python, train.py"
        raise Unreadable(*expected("a list of words", value, f"write command: [{split}]"))
    if not isinstance(value, list) or not value:
        raise Unreadable(*expected("a list of words", value, "write command: [python, train.py]"))
    if len(value) > _MOST_WORDS:
        raise Unreadable(f"too many words: {len(value)}", f"use at most {_MOST_WORDS}")
    argv = tuple(_word(part) for part in value)
    if not argv[0].strip():
        raise Unreadable(*expected("a program", argv[0], "write command: [python, train.py]"))
    return argv


def _word(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Unreadable(*expected("a word", value, "put it in quotes"))
    if isinstance(value, str) and ("\0" in value or len(value) > _LONGEST_WORD):
        fix = f"use at most {_LONGEST_WORD} characters, without zero bytes"
        raise Unreadable(*expected("a word", value, fix))
    return str(value)


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[A-Za-z./][A-Za-z0-9._/-]*", word, re.ASCII) else f"'{word}'"


def _environment(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise Unreadable(*expected("a mapping of variables", value, "write env: {OMP_NUM_THREADS: 1}"))
    for name in value:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            fix = "write letters, digits and _, as in OMP_NUM_THREADS"
            raise Unreadable(*expected("the name of a variable", name, fix))
    return {str(name): _word(raw) for name, raw in value.items()}


class _Section(Part):
    command: Annotated[tuple[str, ...] | None, BeforeValidator(_command)] = None
    env: Annotated[dict[str, str] | None, BeforeValidator(_environment)] = None
    ranks_per_node: Annotated[int | None, BeforeValidator(whole(1, 64))] = None
    progress: Any = None
    folder: Annotated[str | None, BeforeValidator(one_line)] = None
    duration: Annotated[float | None, BeforeValidator(some_time), Field(alias="for")] = None
    stall: Annotated[float | None, BeforeValidator(some_time)] = None
    keep_scratch: Annotated[bool | None, BeforeValidator(switch("keep_scratch"))] = None
    steps: Annotated[int | None, BeforeValidator(whole(1, MOST_STEPS))] = None
    timeout: Annotated[float | None, BeforeValidator(some_time)] = None
    strategy: Annotated[str | None, BeforeValidator(_strategy)] = None
    seed: Annotated[int | None, BeforeValidator(whole(0, 2**63 - 1))] = None
    data: Annotated[str | None, BeforeValidator(one_line)] = None
    checkpoint: Annotated[int | None, BeforeValidator(whole(0, MOST_STEPS))] = None
    evaluate: Annotated[int | None, BeforeValidator(whole(0, MOST_STEPS))] = None
    restarts: Annotated[int | None, BeforeValidator(whole(0, 1000))] = None
    batch: Annotated[int | None, BeforeValidator(whole(1, 4096))] = None
    context: Annotated[int | None, BeforeValidator(whole(1, 4096))] = None
    layers: Annotated[int | None, BeforeValidator(whole(1, 1000))] = None
    heads: Annotated[int | None, BeforeValidator(whole(1, 1000))] = None
    width: Annotated[int | None, BeforeValidator(whole(1, 100_000))] = None
    learning_rate: Annotated[float | None, BeforeValidator(_rate)] = None
    compute: Annotated[tuple[float, bool, dict[str, float]] | None, BeforeValidator(declared_compute.parse_compute)] = (
        None
    )
    model: Annotated[float | None, BeforeValidator(declared_compute.parse_model)] = None
    noise: Annotated[float | None, BeforeValidator(declared_compute.parse_noise)] = None


OWN_KEYS: Final = frozenset(field.alias or name for name, field in _Section.model_fields.items())
"""Keys of the section itself, which no option of a strategy may have."""


def read(raw: object, path: Path, mistakes: Mistakes) -> Workload:
    """Return the workload in the section ``raw`` at ``path``, without what is wrong in it, which is noted.

    Steps that are written wrong count as :data:`MOST_STEPS`, so that no fault is called late because of them.
    """
    written: Mapping[str, object] = raw if isinstance(raw, Mapping) else {}
    is_command = "command" in written
    of_agents = {**AGENT_KEYS, **dict.fromkeys(_options(), AGENT_KEYS["strategy"])}
    foreign = {key: _foreign(key, of_agents, is_command) for key in (of_agents if is_command else COMMAND_KEYS)}
    foreign = {key: why for key, why in foreign.items() if key in written}
    for key, why in foreign.items():
        mistakes.note((*path, key), *why)
    if isinstance(raw, Mapping):
        raw = {key: value for key, value in written.items() if key not in foreign}
    return _program_of(raw, path, mistakes) if is_command else _agents(raw, path, mistakes)


def _options() -> frozenset[str]:
    """Return the keys of options of strategies that are no keys of the section itself."""
    return strategy_section.option_keys() - OWN_KEYS


def _agents(raw: object, path: Path, mistakes: Mistakes) -> AgentWorkload:
    def note(inner: tuple[str, ...], message: str, fix: str) -> None:
        mistakes.note((*path, *inner), message, fix)

    keys = sorted(OWN_KEYS)
    written_options: dict[str, tuple[tuple[str, ...], object]] = {}
    written: Mapping[str, object] = {}
    if isinstance(raw, Mapping):
        raw, written_options = strategy_section.split(raw, keys, note)
        written = raw
        allowed_keys = {*keys, *_options()}
        for key in [key for key in raw if key not in allowed_keys]:
            mistakes.note((*path, key), *_unknown_key(str(key), keys))
            raw.pop(key)
    section = check(_Section, raw, path, "the workload", mistakes)
    strategy = section.strategy or AgentWorkload.strategy
    options: dict[str, Any] = {}
    if (*path, "strategy") not in mistakes.bad:
        options = strategy_section.read_options(strategy, written_options, note, keys)
    compute = _compute(section, written, path, mistakes)
    bad_steps = mistakes.bad & {path, (*path, "steps")}
    layers = MODEL_LAYERS if section.layers is None and compute is not None and compute.model else section.layers
    given = {
        "steps": MOST_STEPS if bad_steps else section.steps,
        "timeout_s": section.timeout,
        "checkpoint_every": section.checkpoint,
        "evaluate_every": section.evaluate,
        **{key: getattr(section, key) for key in ("strategy", "seed", "data", "restarts", "batch", "context")},
        **{key: getattr(section, key) for key in ("heads", "width", "learning_rate")},
        **{"layers": layers, "options": options or None, "compute": compute},
    }
    given = {key: value for key, value in given.items() if value is not None}
    try:
        return AgentWorkload(**given)
    except UserError as error:  # each value is right by itself
        key = "width" if "width" in written else "heads"
        fix = f"write a width such as {24 * (section.heads or AgentWorkload.heads)}"
        mistakes.note((*path, key), f"{key} of the workload: {error}", fix)
        return AgentWorkload(**{key: value for key, value in given.items() if key not in ("width", "heads")})


def _unknown_key(key: str, keys: Sequence[str]) -> tuple[str, str]:
    message, fix = unknown("key", key, (*keys, *sorted(_options())))
    return f"the workload: {message}", fix


def _compute(
    section: _Section, written: Mapping[str, object], path: Path, mistakes: Mistakes
) -> DeclaredCompute | None:
    """Return what is declared of compute; ``model`` and ``noise`` without it are noted."""
    if section.compute is None:
        if (*path, "compute") not in mistakes.bad:
            for key in ("model", "noise"):
                if key in written and (*path, key) not in mistakes.bad:
                    mistakes.note((*path, key), f"{key} belongs to declared compute", "add compute: 80ms")
        return None
    seconds, real, speeds = section.compute
    if real and section.model is not None:
        why = "model: the agents' GPT runs inside declared time, so a size cannot be declared; compute: has real: true"
        mistakes.note((*path, "model"), why, "remove it, or write compute: with a time alone")
    return DeclaredCompute(seconds, real, None if real else section.model, section.noise or 0.0, speeds)


def _foreign(key: str, of_agents: Mapping[str, tuple[str, str]], is_command: bool) -> tuple[str, str]:
    """Return why a key of the one form does not belong into the other, and the fix."""
    if not is_command:
        fix = "add command: [python, train.py], or remove it"
        return f"{key} belongs to a command, and the workload has none", fix
    why, fix = of_agents[key]
    return f"{key} does not apply to a command: {why}", fix


def _program_of(raw: object, path: Path, mistakes: Mistakes) -> ProgramWorkload:
    section = check(_Section, raw, path, "the workload", mistakes)
    if section.duration is not None and section.timeout is not None:
        why = "the testbed ends the program after for:, so a timeout has no meaning"
        mistakes.note((*path, "timeout"), f"the workload has both for and timeout; {why}", "keep one of them")
    timeout_s = section.timeout or (COMMAND_TIMEOUT_S if section.duration is None else None)
    progress = progress_schema.parse(section.progress, (*path, "progress"), mistakes)
    if progress is None and section.progress is not None:
        progress = Calls()  # nothing else counts as wrong because of it
    if section.stall is not None and section.progress is None:
        fix = "add progress:, so that the program's steps are seen, or write timeout:"
        mistakes.note((*path, "stall"), f"a stall of {format_duration(section.stall)} cannot be noticed", fix)
    return ProgramWorkload(
        section.command or ("?",),
        section.env or {},
        section.ranks_per_node or 1,
        progress,
        MOST_STEPS if (*path, "steps") in mistakes.bad else section.steps,
        section.duration,
        timeout_s,
        section.stall,
        section.folder,
        section.keep_scratch or False,
    )
