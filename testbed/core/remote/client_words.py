"""How the testbed is called at the client of ``--on``, where the hints of a command on another host are typed.

The client tells it in one environment variable, :data:`VARIABLE`. The process there that reads the variable removes it
(:mod:`testbed.host.linux.invocation`): a keeper, a program or a later command has another client, or none.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

__all__ = ["VARIABLE", "ClientWords", "decoded"]

VARIABLE: Final = "TESTBED_CLIENT_WORDS"

_MOST_BYTES: Final = 100_000
"""Linux takes at most 128 KiB in one variable (MAX_ARG_STRLEN, execve(2))."""


@dataclass(frozen=True)
class ClientWords:
    """Words of the client's shell.

    Attributes:
        program: what calls the testbed there.
        host: the other host, as it was named.
        on: ``("--on", HOST)``; () where the client's ``TESTBED_ON`` names the host.
        ssh: what runs a line of shell on the other host: ``("ssh", HOST)``.
        typed: the arguments that were typed, without ``--on``; None if they are not known.
        names: words that were typed for files which travelled, by their paths below the folder of the command.
    """

    program: tuple[str, ...]
    host: str
    on: tuple[str, ...]
    ssh: tuple[str, ...]
    typed: tuple[str, ...] | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def encoded(self) -> str:
        """Return them as the variable's value, without ``typed`` and ``names`` if these do not fit in."""
        whole = json.dumps(asdict(self))
        return whole if len(whole) <= _MOST_BYTES else json.dumps(asdict(replace(self, typed=None, names={})))

    def line(self, verb: str, arguments: str) -> str:
        """Return a command line; ``arguments`` follow the verb, as written in a shell.

        ``--on`` follows the verb at once, for what comes after a verb's first argument may belong to a child.
        """
        if verb.startswith("-"):  # an option of the program alone
            return " ".join(filter(None, [shlex.join(self.program), verb, arguments]))
        return " ".join(filter(None, [shlex.join([*self.program, verb, *self.on]), arguments]))

    def command(self, verb: str, *arguments: str) -> str:
        """Return the command line of a verb."""
        return self.line(verb, shlex.join(arguments))

    def shown(self, word: str, folder: str) -> str:
        """Return a word as it is typed at the client, where files that travelled into ``folder`` have other names."""
        if not folder or not word.startswith(f"{folder}/"):
            return word
        below = word.removeprefix(f"{folder}/")
        if below in self.names:
            return self.names[below]
        place, _, path = below.partition("/")
        return {"here": path, "there": f"/{path}"}.get(place, word)


def decoded(value: str) -> ClientWords | None:
    """Return what :meth:`ClientWords.encoded` made; None for anything else."""
    try:
        read = json.loads(value)
        argvs = {key: tuple(map(str, read[key])) for key in ("program", "on", "ssh")}
        typed = None if read["typed"] is None else tuple(map(str, read["typed"]))
        names = {str(there): str(here) for there, here in read["names"].items()}
        return ClientWords(**argvs, host=str(read["host"]), typed=typed, names=names) if argvs["program"] else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
