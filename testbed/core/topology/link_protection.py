"""``protection:`` of a link as written, and the second path that follows from it.

``protection: route`` or ``none``; ``{type: 1+1, via: [coast]}`` or ``{type: restoration, via: […]}`` with ``switch``,
``hold_off``, ``wait_to_restore``, ``revertive``, ``carrier``; ``core/physics/protection_selector.py`` defines each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from testbed.core.physics.protection_selector import (
    DEFAULT_SWITCH_S,
    DEFAULT_WAIT_TO_RESTORE_S,
    PROTECTIONS,
    SWITCHED,
    SecondPath,
)
from testbed.core.units import Unreadable, format_delay, format_duration, parse_choice, parse_duration_s
from testbed.core.user_text import expected, out_of_range, shown, unknown

__all__ = ["ProtectionText", "parse", "second_path", "text"]

_EXAMPLE: Final = "{type: 1+1, via: [DUCT, …]}"
_LEAST_SWITCH_S: Final = 0.001
_MOST_S: Final = 3600.0


@dataclass(frozen=True)
class ProtectionText:
    """The parsed text: times in s, None if not written; ``via`` is set if ``type`` is 1+1 or restoration."""

    type: str
    via: tuple[str, ...] = ()
    switch_s: float | None = None
    hold_off_s: float | None = None
    wait_to_restore_s: float | None = None
    revertive: bool | None = None
    carrier_kept: bool | None = None


def parse(value: object) -> ProtectionText:
    """Parse ``protection:``. Raises Unreadable for the first mistake."""
    if not isinstance(value, Mapping):
        kind = _type(value)
        if kind in SWITCHED:
            raise Unreadable(f"{kind} needs a second path", f"write {_EXAMPLE.replace('1+1', kind)}")
        return ProtectionText(kind)
    if "type" not in value:
        raise Unreadable("missing type", f"write {_EXAMPLE}")
    kind = _type(value["type"])
    settings = {key: setting for key, setting in value.items() if key != "type"}
    if kind not in SWITCHED:
        if settings:
            raise Unreadable(f"{kind} takes no {shown(next(iter(settings)))}", f"write protection: {kind}")
        return ProtectionText(kind)
    fields: dict[str, Any] = {}
    for key, setting in settings.items():
        if key not in _KEYS:
            message, fix = unknown("key", str(key), _KEYS)
            raise Unreadable(f"{kind}: {message}", fix)
        field, read = _KEYS[key]
        try:
            fields[field] = read(setting)
        except Unreadable as error:
            raise Unreadable(f"{key}: {error.message}", error.fix) from error
    if "via" not in fields:
        raise Unreadable(f"{kind} needs a second path", f"add via: [DUCT, …], as in {_EXAMPLE.replace('1+1', kind)}")
    return ProtectionText(kind, **fields)


def second_path(written: ProtectionText, length_m: float) -> SecondPath | None:
    """Return the second path with every default filled in; None if the type has none."""
    if written.type not in SWITCHED:
        return None

    def given(value: Any, default: Any) -> Any:
        return default if value is None else value

    return SecondPath(
        via=written.via,
        length_m=length_m,
        switch_s=given(written.switch_s, DEFAULT_SWITCH_S[written.type]),
        hold_off_s=given(written.hold_off_s, 0.0),
        wait_to_restore_s=given(written.wait_to_restore_s, DEFAULT_WAIT_TO_RESTORE_S),
        revertive=given(written.revertive, True),
        carrier_kept=given(written.carrier_kept, written.type == "1+1"),
    )


def text(protection: str, second: SecondPath | None) -> str:
    """Format the protection of a link for display."""
    if second is None:
        return protection
    back = f"back {format_duration(second.wait_to_restore_s)} after the repair" if second.revertive else "non-revertive"
    hold_off = f", hold-off {format_delay(second.hold_off_s)}" if second.hold_off_s else ""
    carrier = "carrier kept" if second.carrier_kept else "carrier lost"
    switch = f"switch {format_duration(second.switch_s)}"
    return f"{protection} via {', '.join(second.via)}: {switch}{hold_off}, {carrier}, {back}"


def _type(value: object) -> str:
    return parse_choice(value, PROTECTIONS, "type")


def _via(value: object) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise Unreadable(*expected("a list of ducts", value, "write via: [DUCT, …]"))
    if len({*names}) < len(names):
        raise Unreadable("a duct occurs twice", "name each duct once")
    return tuple(names)


def _time(least_s: float) -> Callable[[object], float]:
    def read(value: object) -> float:
        seconds = parse_duration_s(value)
        if not least_s <= seconds <= _MOST_S:
            raise Unreadable(*out_of_range(value, format_duration(least_s), format_duration(_MOST_S)))
        return seconds

    return read


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Unreadable(*expected("a boolean", value, "write true or false"))
    return value


def _carrier(value: object) -> bool:
    if value not in ("kept", "lost"):
        raise Unreadable(*expected("kept or lost", value, "write carrier: kept or carrier: lost"))
    return value == "kept"


_KEYS: Final[Mapping[str, tuple[str, Callable[[object], Any]]]] = {
    "via": ("via", _via),
    "switch": ("switch_s", _time(_LEAST_SWITCH_S)),
    "hold_off": ("hold_off_s", _time(0.0)),
    "wait_to_restore": ("wait_to_restore_s", _time(0.0)),
    "revertive": ("revertive", _flag),
    "carrier": ("carrier_kept", _carrier),
}
