"""Read ``strategy:`` and its options from the section ``workload:`` of a file, or from the words of a command.

::

    workload: {strategy: diloco, every: 50, outer: {rate: 0.7, momentum: 0.9}}
    --strategy diloco:every=50,outer.rate=0.7

What options a strategy has, and which values are right, its twin knows (:mod:`testbed.core.training.twin`); no name of
a strategy is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from testbed.core.training.strategies_built import BUILT
from testbed.core.units import Unreadable
from testbed.core.user_text import expected, shown, unknown

__all__ = ["Note", "list_of_words", "option_keys", "parse_words", "read_options", "split"]

Note: TypeAlias = Callable[[tuple[str, ...], str, str], None]
"""Takes the path of a mistake inside the section, a message, the fix."""


def option_keys() -> frozenset[str]:
    """Return the keys under which options of any strategy are written, first parts of dotted ones included."""
    names = {option.name for twin in BUILT.values() for option in twin.options}
    return frozenset(names | {name.partition(".")[0] for name in names})


def split(
    section: Mapping[str, object], own: Collection[str], note: Note
) -> tuple[dict[str, object], dict[str, tuple[tuple[str, ...], object]]]:
    """Split a section into its own keys and those of options: (own values, path and value by the option's dotted name).

    ``own``: keys of the section itself. A key that no strategy has stays among the own values.
    """
    own_values: dict[str, object] = {}
    options: dict[str, tuple[tuple[str, ...], object]] = {}
    for key, name, path, value in _written(section, own):
        if name is None:
            own_values[key] = value
        elif name in options:
            note(path, f"{name} is written twice", "keep one of them")
        else:
            options[name] = (path, value)
    return own_values, options


def _written(
    section: Mapping[str, object], own: Collection[str]
) -> Iterator[tuple[str, str | None, tuple[str, ...], object]]:
    keys = option_keys()
    for key, value in section.items():
        nested = any(name.startswith(f"{key}.") for name in keys)
        if key in own or key not in keys:
            yield key, None, (key,), value
        elif nested and isinstance(value, Mapping):
            for part, inner in value.items():
                yield key, f"{key}.{part}", (key, str(part)), inner
        else:
            yield key, key, (key,), value


def read_options(
    strategy: str, written: Mapping[str, tuple[tuple[str, ...], object]], note: Note, own: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the options of ``strategy`` by name, parsed, without those that are wrong, which are noted.

    ``own``: further keys that a user may have meant.
    """
    options = {option.name: option for option in BUILT[strategy].options}
    parsed: dict[str, Any] = {}
    for name, (path, value) in written.items():
        if name not in options:
            note(path, *_foreign(strategy, name, tuple(options), own))
            continue
        try:
            parsed[name] = options[name].parse(value)
        except Unreadable as error:
            note(path, f"{name} of strategy {strategy}: {error.message}", error.fix)
    return parsed


def _foreign(strategy: str, name: str, options: Sequence[str], own: Sequence[str]) -> tuple[str, str]:
    """Return why ``strategy`` has no option ``name``, and the fix."""
    parts = [option for option in options if option.startswith(f"{name}.")]
    if parts:  # outer: 0.7
        inner = ", ".join(f"{part.partition('.')[2]}: …" for part in parts)
        return f"{name} of strategy {strategy}: expected a mapping", f"write {name}: {{{inner}}}"
    owners = [twin.name for twin in BUILT.values() if any(option.name == name for option in twin.options)]
    if owners:
        message = f"strategy {strategy} has no {name} (it belongs to {', '.join(owners)})"
        return message, f"remove it, or write strategy: {owners[0]}" if len(owners) == 1 else "remove it"
    message, fix = unknown(f"option of strategy {strategy}", name, (*options, *own))
    return message, fix or f"options of strategy {strategy}: {', '.join(options) or 'none'}"


def parse_words(text: str) -> tuple[str, dict[str, object]]:
    """Parse ``NAME`` or ``NAME:KEY=VALUE,KEY=VALUE``: the name, and values as written. Raises Unreadable.

    >>> parse_words("multi-tier:every=50,regions=[[east, west], [south]]")
    ('multi-tier', {'every': '50', 'regions': '[[east, west], [south]]'})
    """
    name, colon, options_text = text.strip().partition(":")
    if colon and not name.strip():
        raise Unreadable(*expected("NAME:KEY=VALUE", text, "write diloco:every=50,outer.rate=0.7"))
    options: dict[str, object] = {}
    for word in _split(options_text) if colon else ():
        key, equals, value = (part.strip() for part in word.partition("="))
        if not (key and equals and value):
            raise Unreadable(*expected("KEY=VALUE", word.strip(), f"write {name}:every=50,outer.rate=0.7"))
        if key in options:
            raise Unreadable(f"{key} is written twice in {shown(text)}", "keep one of them")
        options[key] = value
    return name.strip(), options


def list_of_words(text: str) -> list[str]:
    """Split ``A,B:K=V,K=V,C`` into one text for each strategy; a word such as ``K=V`` belongs to the one before.

    >>> list_of_words("ddp,diloco:every=50,outer.rate=0.7,hierarchical")
    ['ddp', 'diloco:every=50,outer.rate=0.7', 'hierarchical']
    """
    strategies: list[str] = []
    for word in _split(text):
        if strategies and "=" in word and ":" not in word.partition("=")[0]:
            strategies[-1] += f",{word.strip()}"
        else:
            strategies.append(word.strip())
    return strategies


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
