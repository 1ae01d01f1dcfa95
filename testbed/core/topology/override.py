"""Override values of a topology file before it is checked, as in ``--set links.north.km=80``.

Keys are dotted and may contain ``*``: ``links.*.fiber=hollow-core``. A key can change or add a field of an existing
site, link or duct, but creates none of these. The value is parsed as YAML, so ``links.north.via=[coast, bridge]`` is
a list. ``links.*.toward.west.delay`` matches every link that leads to west.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from testbed.core.physics.parameters import PARAMETERS
from testbed.core.topology import site_fabric
from testbed.core.topology.topology_schema import LinkDefaults, LinkText, SiteText, Written
from testbed.core.user_text import shown
from testbed.core.yamltext import Document, Path, read_value
from testbed.errors import FileMistakes, UnknownName, UserError

__all__ = ["apply", "split"]

_TOP: Final = ("name", "scale", "seed", "routing", "congestion")
_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "sites": tuple(SiteText.model_fields),
    "links": tuple(LinkText.model_fields),
    "ducts": (),
}
_DEFAULTS: Final = {"site": tuple(SiteText.model_fields), "link": tuple(LinkDefaults.model_fields)}


def split(assignment: str) -> tuple[str, str]:
    """Split ``K=V`` into key and value.

    Raises:
        UserError: without ``=``, or with an empty key.
    """
    key, equals, value = assignment.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set: expected KEY=VALUE, got {shown(assignment)}; write --set links.north.km=80")
    return key.strip(), value.strip()


def apply(document: Document, overrides: Mapping[str, object]) -> Written:
    """Apply ``overrides`` (dotted key to value; strings are parsed as YAML) to ``document``, in order.

    Raises:
        UnknownName: a key names a field, site, link or duct that does not exist.
        UserError: a key or value cannot be parsed.
    """
    if not overrides or not isinstance(document.data, Mapping):
        return Written(document)
    data: dict[str, Any] = copy.deepcopy(dict(document.data))
    sets: dict[Path, str] = {}
    for key, value in overrides.items():
        paths = _paths(key, data)
        plain = _value(key, value)
        for path in paths:
            _put(data, path, plain)
            sets[path] = key
    return Written(replace(document, data=data), sets)


def _value(key: str, value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    if not isinstance(value, str):
        return value
    try:
        return read_value(value, f"--set {key}")
    except FileMistakes as error:
        raise UserError(str(error)) from error


def _paths(key: str, data: Mapping[str, Any]) -> list[Path]:
    """Return the paths in ``data`` that ``key`` matches; at least one, unless the file itself is invalid there."""
    parts = tuple(key.split("."))
    first = parts[0]
    if first in _TOP and len(parts) == 1:
        return [parts]
    if first == "defaults" and len(parts) >= 3:
        if parts[1] not in _DEFAULTS:
            raise UnknownName("field", key, (f"defaults.{kind}.{parts[2]}" for kind in _DEFAULTS))
        if parts[2] not in _DEFAULTS[parts[1]]:
            raise UnknownName("field", key, (f"defaults.{parts[1]}.{field}" for field in _DEFAULTS[parts[1]]))
        deeper = _below(key, parts, 2)
        if deeper and parts[2] == "toward" and parts[3] not in (data.get("sites") or {}):
            raise UnknownName("site", parts[3], [name for name in data.get("sites") or () if name.isprintable()])
        return [parts] if isinstance(data.get("defaults") or {}, Mapping) else []
    if first in _SECTIONS:
        return _in_section(key, parts, data.get(first))
    raise UnknownName("field", key, (*_TOP, "sites.NAME.nodes", "links.NAME.km", "ducts.NAME", "defaults.link.fiber"))


def _below(key: str, parts: tuple[str, ...], field: int) -> bool:
    """Return whether ``parts`` continues below its field, as for ``impair`` and ``toward``. Raises UnknownName."""
    place, depth = ".".join(parts[: field + 1]), {"impair": 1, "toward": 2, "fabric": 1}.get(parts[field], 0)
    below = parts[field + 1 :]
    if not below or (len(below) == 1 == depth - 1):
        return bool(below)  # the whole mapping: links.north.impair={loss: 1%}
    if len(below) != depth:
        like = {1: (f"{place}.{'rate' if parts[field] == 'fabric' else 'loss'}",), 2: (f"{place}.SITE.loss",)}.get(
            depth, (place,)
        )
        raise UnknownName("field", key, like)
    fields = site_fabric.KEYS if parts[field] == "fabric" else tuple(PARAMETERS)
    if below[-1] not in fields:
        raise UnknownName("field", key, (".".join((*parts[:-1], name)) for name in fields))
    return True


def _in_section(key: str, parts: tuple[str, ...], section: object) -> list[Path]:
    first, fields = parts[0], _SECTIONS[parts[0]]
    what = first.removesuffix("s")
    if len(parts) < (3 if fields else 2) or (not fields and len(parts) > 2):
        raise UnknownName("field", key, (f"{first}.{parts[1] if len(parts) > 1 else '*'}.{name}" for name in fields))
    if fields and parts[2] not in fields:
        raise UnknownName("field", key, (f"{first}.{parts[1]}.{name}" for name in fields))
    deeper = bool(fields) and _below(key, parts, 2)
    if section is not None and not isinstance(section, Mapping):
        return []  # a mistake of the file, reported when the file is checked
    names = [name for name in section or {} if fnmatch.fnmatchcase(name, parts[1])]
    if not names:
        raise UnknownName(what, parts[1], [name for name in section or () if name.isprintable()])
    if deeper and parts[2] == "toward" and isinstance(section, Mapping):
        return _toward(parts, {name: section[name] for name in names})
    return [(first, name, *parts[2:]) for name in names]


def _toward(parts: tuple[str, ...], links: Mapping[str, Any]) -> list[Path]:
    """Return the paths for those of ``links`` that lead to the site in ``parts``, which may contain ``*``."""
    ends = {name: link.get("between") if isinstance(link, Mapping) else None for name, link in links.items()}
    sites = {
        name: [end for end in there if isinstance(end, str)] for name, there in ends.items() if isinstance(there, list)
    }
    paths: list[Path] = [
        ("links", name, "toward", site, *parts[4:])
        for name, there in sites.items()
        for site in there
        if fnmatch.fnmatchcase(site, parts[3])
    ]
    if not paths and sites:
        raise UnknownName("site", parts[3], sorted({site for there in sites.values() for site in there}))
    return paths


def _put(data: dict[str, Any], path: Path, value: object) -> None:
    """Set ``path``, creating missing parents; a scalar among them is a mistake of the file and stays."""
    here = data
    for part in path[:-1]:
        below = here.get(str(part))
        if below is None:
            below = here[str(part)] = {}
        if not isinstance(below, dict):
            return
        here = below
    here[str(path[-1])] = value
