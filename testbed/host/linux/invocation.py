"""How this process was called, and so how a user calls the testbed again: hints get their commands from here.

``testbed`` alone works where a shell finds that name: not in a checkout whose ``.venv`` is not on PATH, nor behind
sudo, which has a PATH of its own. A user whose shell is not root's needs sudo, or su; root does not, and may have none.

A command that another host's client called by ``--on`` is called again there, by the client's words, with ``--on`` and
the names that files have there; a line of shell for this host is run there by ssh.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.core.remote import client_words
from testbed.core.remote.client_words import ClientWords
from testbed.core.remote.leash_frames import COMMAND_FOLDER

__all__ = [
    "Invocation",
    "again",
    "as_root",
    "command",
    "current",
    "for_child",
    "python",
    "read",
    "shown",
    "take_client_words",
    "word",
]

NAME: Final = "testbed"

_SUDO_FINDS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""sudo's own PATH (``secure_path`` of sudoers(5)), which has no virtual environment in it."""

_SYSTEM: Final = (*_SUDO_FINDS, "/usr/local/games", "/usr/games")

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh", "fish", "ksh", "mksh", "tcsh", "csh", "su"})
_MULTIPLEXERS: Final = frozenset({"tmux", "screen"})

_MODULES: Final = ((NAME, "__main__.py"), ("cli", "entry.py"), ("cli", "app.py"))
"""Files of the command line that ``python -m`` runs."""

_UNPRIVILEGED: Final = frozenset(
    {"audit", "doctor", "fetch", "host", "image", "lint", "ls", "render", "report", "show"}
)
"""Verbs that neither create namespaces nor enter them. Words that begin with - stand for no verb: ``--help``."""

_CAPABILITIES: Final = 1 << 12 | 1 << 21
"""CAP_NET_ADMIN and CAP_SYS_ADMIN (linux/capability.h)."""


@dataclass(frozen=True)
class Invocation:
    """The words that call programs from the shell of this process's user.

    Attributes:
        program: the testbed: ``testbed``, a path, or ``PYTHON -m testbed``.
        program_as_root: the same behind sudo or su, whose PATH is another.
        python: this Python.
        become: what runs a command as root: ``sudo``, ``doas``, ``su -c``; () for the shell of root, None if this
            machine has nothing of the kind.
        privileged: whether that shell may create network namespaces as it is: it is root's, or has the capabilities.
        typed: the arguments of this process, if it is the command line.
        client: the words of the client, for a command of ``--on``.
        folder: the folder there of what the client sent.
    """

    program: tuple[str, ...] = (NAME,)
    program_as_root: tuple[str, ...] = (NAME,)
    python: str = sys.executable
    become: tuple[str, ...] | None = ()
    privileged: bool = True
    typed: tuple[str, ...] | None = None
    client: ClientWords | None = None
    folder: str = ""

    def command(self, *arguments: str, root: bool | None = None) -> str:
        """Return the command line of a verb. ``root``: whether it needs root; default: as its verb usually does."""
        if self.client is not None:
            arguments = tuple(self.client.shown(argument, self.folder) for argument in arguments)
        return self.line(shlex.join(arguments), root=root)

    def line(self, arguments: str, *, root: bool | None = None) -> str:
        """Return a command line from what follows the program's name, as it is written in a shell."""
        verb, _, after = arguments.partition(" ")
        if self.client is not None:  # the leash there has the rights
            return self.client.line(verb, after)
        needs = bool(verb) and not verb.startswith("-") and verb not in _UNPRIVILEGED if root is None else root
        if needs and not self.privileged:
            return self._one_as_root(f"{shlex.join(self.program_as_root)} {arguments}")
        return f"{shlex.join(self.program)} {arguments}"

    def _one_as_root(self, line: str) -> str:
        """Return how to run one command as root, whatever its arguments quote: ``&&`` in them begins no other."""
        if not self.become or self.become[-1] == "-c":
            return self._as_root_here(line)
        return f"{' '.join(self.become)} {line}"

    def shell(self, line: str, *, terminal: bool = False) -> str:
        """Return how the user runs a line of shell on this host; ``terminal``: the line may ask for a password."""
        if self.client is None:
            return line
        program, *ssh_arguments = self.client.ssh
        return shlex.join([program, *(("-t",) if terminal else ()), *ssh_arguments, line])

    def as_root(self, line: str) -> str:
        """Return how to run a line of shell on this host as root."""
        return self.shell(self._as_root_here(line), terminal=self.become != ())

    def _as_root_here(self, line: str) -> str:
        if self.become == ():
            return line
        if self.become is None:
            return f"{line} (as root)"
        if self.become[-1] == "-c":
            # $$ is the shell in which it is typed, not that of su.
            quoted = f'"{line}"' if "$$" in line else shlex.quote(line)
            return f"{' '.join(self.become)} {quoted}"
        prefix = " ".join(self.become)
        if any(mark in line for mark in "|>;"):
            return f"{prefix} sh -c {shlex.quote(line)}"
        return " && ".join(f"{prefix} {part}" for part in line.split(" && "))

    def again(self, capabilities: str = "") -> str:
        """Return what a user does who lacks root (or these ``capabilities``): what was typed, as root."""
        if self.client is not None:
            return f"root lacks {capabilities or 'the right'} on {self.client.host}"
        if self.become == () and capabilities:
            return f"root lacks {capabilities} here; if this is a container, start it with --privileged"
        advice = f"run as root (or with {capabilities})" if capabilities else "run as root"
        if self.typed is None or self.become == ():
            return advice
        return f"{advice}: {self._one_as_root(shlex.join([*self.program_as_root, *self.typed]))}"


_client: ClientWords | None = None


def take_client_words() -> None:
    """Read the words of the client of ``--on``, if there is one, and remove them from the environment of children."""
    global _client
    if value := os.environ.pop(client_words.VARIABLE, ""):
        _client = client_words.decoded(value)


def for_child() -> dict[str, str]:
    """Return the environment of a child that goes on with this command, and so has the same client."""
    client_variables = {} if _client is None else {client_words.VARIABLE: _client.encoded()}
    return {**os.environ, **client_variables}


def current() -> Invocation:
    """Return how this process was called."""
    return read(sys.argv, Path(sys.executable), os.environ, os.geteuid(), _capabilities(), _client)


def command(*arguments: str, root: bool | None = None) -> str:
    """Return a command line of the testbed that works in the shell of this process's user."""
    return current().command(*arguments, root=root)


def as_root(line: str) -> str:
    """Return how this process's user runs a line of shell as root."""
    return current().as_root(line)


def again(capabilities: str = "") -> str:
    """Return how to do as root what was typed: ``run as root: sudo testbed up metro-40km``."""
    return current().again(capabilities)


def python() -> str:
    """Return this interpreter as one would type it, quoted: unlike the system's it has the testbed's packages."""
    return shlex.quote(current().python)


def word() -> str:
    """Return the program alone, for ``Usage:`` and examples: ``testbed``, ``.venv/bin/testbed``."""
    return shlex.join(current().program)


def read(
    argv: Sequence[str],
    executable: Path,
    environment: Mapping[str, str],
    euid: int,
    capabilities: int,
    client: ClientWords | None = None,
) -> Invocation:
    """Return how a process with these properties was called.

    Args:
        argv: of Python, as in ``sys.argv``: for a script the kernel puts its path first.
        executable: this Python.
        capabilities: effective ones, as bits.
        client: the words of the client of ``--on``.
    """
    first = Path(argv[0] if argv else "")
    is_module = (first.parent.name, first.name) in _MODULES
    is_script = first.name == NAME and (str(first) == NAME or first.is_file())
    is_command = is_module or is_script
    interpreter = shown(executable, near=is_command)
    through_sudo = euid == 0 and _through_sudo(environment)
    plain: tuple[str, ...] = (interpreter, "-m", NAME)
    behind = plain
    if is_script and str(first) == NAME:
        plain = behind = (NAME,)
    elif is_script:
        plain, behind = _script(first, environment, near=True)
    elif not is_module and (beside := executable.parent / NAME).is_file():
        plain, behind = _script(beside, environment, near=False)
    if client is not None:
        plain = behind = client.program
    return Invocation(
        program=plain,
        program_as_root=behind,
        python=interpreter,
        become=_become(environment, euid, through_sudo),
        privileged=not through_sudo and (euid == 0 or capabilities & _CAPABILITIES == _CAPABILITIES),
        typed=client.typed if client and client.typed else tuple(argv[1:]) if is_command else None,
        client=client,
        folder=environment.get(COMMAND_FOLDER, ""),
    )


def _script(script: Path, environment: Mapping[str, str], *, near: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return how to call a script, by this process's user and behind sudo: by its name where PATH leads to it."""
    path = (shown(script, near=near),)
    program_on_path = shutil.which(NAME, path=environment.get("PATH", ""))
    by_name = program_on_path is not None and Path(program_on_path).absolute() == script.absolute()
    system = str(script.absolute().parent) in _SUDO_FINDS
    # Behind sudo PATH is sudo's own, which says nothing of the user's; system folders are in both.
    return (NAME,) if by_name or system else path, (NAME,) if system else path


def shown(path: Path, *, near: bool) -> str:
    """Return a path for the user's shell: relative if ``near`` (that shell has our working directory) and below it.

    The keeper's working directory is /, and no user's.
    """
    try:
        here = Path.cwd()
    except OSError:
        return str(path)
    whole = path.absolute()
    if near and here != Path("/") and whole.is_relative_to(here):
        inside = str(whole.relative_to(here))
        return inside if "/" in inside else f"./{inside}"
    return str(whole)


def _through_sudo(environment: Mapping[str, str]) -> bool:
    """Return whether sudo was typed for this command alone, so that the next one needs it again.

    sudo(8) leaves its traces in the environment of a root shell too (``sudo -s``), where nothing need be typed.
    """
    caller = environment.get("SUDO_UID", "")
    if not caller.isdecimal() or int(caller) == 0:
        return False
    sudo_command = environment.get("SUDO_COMMAND", "").split()
    if not sudo_command:
        return True
    name = sudo_command[0].rpartition("/")[2]
    if name in _MULTIPLEXERS:
        return False
    return not (
        name in _SHELLS
        and all(argument.startswith("-") and argument not in ("-c", "-lc", "-ic") for argument in sudo_command[1:])
    )


def _become(environment: Mapping[str, str], euid: int, through_sudo: bool) -> tuple[str, ...] | None:
    if through_sudo:
        return ("sudo",)
    if euid == 0:
        return ()
    path = os.pathsep.join((environment.get("PATH", ""), *_SYSTEM))
    for prefix in (("sudo",), ("doas",), ("su", "-c")):
        if shutil.which(prefix[0], path=path):
            return prefix
    return None


def _capabilities() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
