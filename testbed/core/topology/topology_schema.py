"""The topology as written: its keys, the values each takes, and every mistake of a file reported at once.

Every field of the models is optional, so that the valid parts of a file are checked further even if others are
wrong: :func:`check` drops invalid values and records their paths. ``resolve.py`` checks which fields are mandatory and
how values fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from testbed.core.physics.fiber import FIBERS
from testbed.core.physics.optics import OPTICS
from testbed.core.physics.parameters import PARAMETERS, parse
from testbed.core.topology import link_protection, site_fabric
from testbed.core.topology.link_protection import ProtectionText
from testbed.core.topology.model import CONGESTION_CONTROLS
from testbed.core.topology.site_fabric import FabricText
from testbed.core.topology.topology_limits import MOST_NODES_PER_SITE
from testbed.core.units import (
    Unreadable,
    parse_choice,
    parse_delay_s,
    parse_length_m,
    parse_number,
    parse_probability,
    parse_rate_bps,
    parse_size_bytes,
)
from testbed.core.user_text import expected, out_of_range, shown, unknown
from testbed.core.yamltext import MOST_FINDINGS, Document, Path
from testbed.errors import FileMistakes, Finding

__all__ = [
    "Buffer",
    "DefaultsText",
    "LinkDefaults",
    "LinkText",
    "Mistakes",
    "SiteText",
    "TopologyText",
    "Written",
    "check",
    "read",
    "whole",
]


Model = TypeVar("Model", bound=BaseModel)
LinkPart = TypeVar("LinkPart", bound="LinkDefaults")


def whole(low: int, high: int) -> Callable[[object], int]:
    """Return a validator for a whole number, ``low`` to ``high``, both included."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Unreadable(*expected("a whole number", value, f"write {low} to {high}"))
        if not low <= value <= high:
            raise Unreadable(*out_of_range(value, str(low), str(high)))
        return value

    return parse


def _one_of(choices: Iterable[str]) -> Callable[[object], str]:
    names = tuple(choices)

    def parse(value: object) -> str:
        return parse_choice(value, names)

    return parse


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > 64 or not value.isprintable():
        raise Unreadable(*expected("a name", value, "write at most 64 printable characters"))
    return value


def _pair(value: object) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(site, str) for site in value):
        raise Unreadable(*expected("a pair of sites", value, "write two sites in brackets, as in [east, west]"))
    return value[0], value[1]


def _names(value: object) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed or not all(isinstance(duct, str) for duct in listed):
        fix = "write ducts in brackets in their order, as in [river-bridge, motorway]"
        raise Unreadable(*expected("a list of ducts", value, fix))
    return tuple(listed)


@dataclass(frozen=True)
class Buffer:
    """Queue capacity beyond rate x delay: a time at the link's rate, or a size; one of the two is None."""

    time_s: float | None = None
    size_bytes: int | None = None

    def bytes_at(self, rate_bps: float) -> int:
        if self.size_bytes is not None:
            return self.size_bytes
        return round((self.time_s or 0.0) * rate_bps / 8)


def _buffer(value: object) -> Buffer:
    if isinstance(value, str) and value.strip().endswith("B"):
        return Buffer(size_bytes=parse_size_bytes(value))
    if value == 0 and not isinstance(value, bool):
        return Buffer(size_bytes=0)
    if not isinstance(value, str) or value.strip()[-1:] != "s":
        raise Unreadable(*expected("a time or a size", value, "write a buffer such as 10 ms or 1 MB"))
    return Buffer(time_s=parse_delay_s(value, most_s=10.0))


def _optics_latency(value: object) -> float:
    return parse_delay_s(value, natural="us", most_s=1.0)


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise Unreadable(*expected("true or false", value, "write calibrate: false, or leave the key out"))
    return value


def _scale(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and not 0 < value < float("inf"):
        raise Unreadable(*expected("a finite number above 0", value, "write 1000 to run 800G as 800 Mb/s"))
    return parse_number(value, low=1e-3, high=1e9)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class SiteText(_Part):
    nodes: Annotated[int | None, BeforeValidator(whole(1, MOST_NODES_PER_SITE))] = None
    power: Annotated[str | None, BeforeValidator(_text)] = None
    fabric: Annotated[FabricText | None, BeforeValidator(site_fabric.parse)] = None


class LinkDefaults(_Part):
    """The keys of ``defaults: {link: …}``: all of a link but its sites and its route.

    ``impair`` maps keys of PARAMETERS to values in SI units, for both directions; ``toward`` maps the site that a
    direction leads to to the same. :func:`check` leaves both as written, :func:`read` parses them.
    """

    fiber: Annotated[str | None, BeforeValidator(_one_of(FIBERS))] = None
    optics: Annotated[str | None, BeforeValidator(_one_of(OPTICS))] = None
    waves: Annotated[int | None, BeforeValidator(whole(1, 1000))] = None
    rate: Annotated[float | None, BeforeValidator(parse_rate_bps)] = None
    loss: Annotated[float | None, BeforeValidator(parse_probability)] = None
    buffer: Annotated[Buffer | None, BeforeValidator(_buffer)] = None
    optics_latency: Annotated[float | None, BeforeValidator(_optics_latency)] = None
    huts: Annotated[int | None, BeforeValidator(whole(0, 1000))] = None
    mtu: Annotated[int | None, BeforeValidator(whole(1280, 9216))] = None
    calibrate: Annotated[bool | None, BeforeValidator(_switch)] = None
    protection: Annotated[ProtectionText | None, BeforeValidator(link_protection.parse)] = None
    impair: Any = None
    toward: Any = None


class LinkText(LinkDefaults):
    between: Annotated[tuple[str, str] | None, BeforeValidator(_pair)] = None
    km: Annotated[float | None, BeforeValidator(parse_length_m)] = None
    via: Annotated[tuple[str, ...] | None, BeforeValidator(_names)] = None


class _Top(_Part):
    name: Annotated[str | None, BeforeValidator(_text)] = None
    scale: Annotated[float | None, BeforeValidator(_scale)] = None
    seed: Annotated[int | None, BeforeValidator(whole(0, 2**63 - 1))] = None
    routing: Annotated[str | None, BeforeValidator(_one_of(("shortest", "multipath")))] = None
    congestion: Annotated[str | None, BeforeValidator(_one_of(CONGESTION_CONTROLS))] = None
    defaults: Any = None
    sites: Any = None
    ducts: Any = None
    links: Any = None


class _Defaults(_Part):
    link: Any = None
    site: Any = None


@dataclass(frozen=True)
class DefaultsText:
    link: LinkDefaults = field(default_factory=LinkDefaults)
    site: SiteText = field(default_factory=SiteText)


@dataclass(frozen=True)
class TopologyText:
    """The content of a file, each value parsed: lengths in m, times in s, rates in bit/s; None if not written."""

    name: str | None
    scale: float | None
    seed: int | None
    routing: str | None
    congestion: str | None
    defaults: DefaultsText
    sites: Mapping[str, SiteText]
    ducts: Mapping[str, float | None]
    links: Mapping[str, LinkText]


@dataclass(frozen=True)
class Written:
    """A document after ``--set``: ``sets`` maps each path set there to its key as typed."""

    document: Document
    sets: Mapping[Path, str] = field(default_factory=dict)

    def place(self, path: Path) -> tuple[str, int]:
        """Return file and line of ``path``; for a value from the command line ``--set KEY`` and 0."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.sets:
                return f"--set {self.sets[path[:length]]}", 0
        return self.document.file, self.document.line(path)

    def has(self, path: Path) -> bool:
        return path in self.sets or path in self.document.lines

    def origin(self, path: Path) -> str:
        """Return ``file:line`` or ``--set``."""
        file, line = self.place(path)
        return f"{file}:{line}" if line else "--set" if file.startswith("--set ") else file


@dataclass
class Mistakes:
    """Collected findings, those of the YAML text first; ``bad`` holds the paths of dropped values."""

    written: Written
    findings: list[Finding] = field(default_factory=list)
    bad: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.findings.extend(self.written.document.findings)

    def note(self, path: Path, message: str, fix: str = "") -> None:
        file, line = self.written.place(path)
        self.findings.append(Finding(file, line, message, fix))
        self.bad.add(path)
        if len(self.findings) >= MOST_FINDINGS:
            self.raise_if_any()  # more would help no reader, and a hostile file could cause tens of thousands

    def raise_if_any(self) -> None:
        if self.findings:
            raise FileMistakes(self.findings)


def check(model: type[Model], raw: object, path: Path, what: str, mistakes: Mistakes) -> Model:
    """Validate ``raw`` as a ``model``; invalid fields are dropped and become findings. ``what``: such as "a link"."""
    keys = [field.alias or name for name, field in model.model_fields.items()]
    if raw is None:
        raw = {}
    if not isinstance(raw, Mapping):
        message, fix = expected("a mapping", raw, f"write {{key: value}} with keys of {', '.join(keys)}")
        mistakes.note(path, f"{what}: {message}", fix)
        raw = {}
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        good = dict(raw)
        for problem in error.errors(include_url=False):
            key = str(problem["loc"][0])
            good.pop(key, None)
            reason = problem.get("ctx", {}).get("error")
            if problem["type"] == "extra_forbidden":
                message, fix = unknown("key", key, keys)
                mistakes.note((*path, key), f"{what}: {message}", fix)
            elif isinstance(reason, Unreadable):
                mistakes.note((*path, key), f"{key} of {what}: {reason.message}", reason.fix)
            else:
                mistakes.note((*path, key), f"{key} of {what}: invalid value {shown(raw.get(key))}")
        return model.model_validate(good)


def _section(raw: object, path: Path, example: str, mistakes: Mistakes) -> Mapping[str, Any]:
    """Return ``raw`` if it is a mapping from names to values; anything else becomes a finding."""
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        message, fix = expected("a mapping of names to values", raw, f"write {example}")
        mistakes.note(path, f"{path[-1]}: {message}", fix)
        return {}
    return raw


def read(written: Written, mistakes: Mistakes) -> TopologyText:
    """Parse ``written`` to a :class:`TopologyText`; findings go to ``mistakes``, invalid values are left out."""
    top = check(_Top, written.document.data, (), "a topology", mistakes)
    defaults = check(_Defaults, top.defaults, ("defaults",), "defaults", mistakes)
    sites = _section(top.sites, ("sites",), "sites: {east: {nodes: 2}, west: {nodes: 2}}", mistakes)
    ducts = _section(top.ducts, ("ducts",), "ducts: {river-bridge: 3 km}", mistakes)
    links = _section(top.links, ("links",), "links: {north: {between: [east, west], km: 40}}", mistakes)
    return TopologyText(
        name=top.name,
        scale=top.scale,
        seed=top.seed,
        routing=top.routing,
        congestion=top.congestion,
        defaults=DefaultsText(
            link=_link(LinkDefaults, defaults.link, ("defaults", "link"), "the default link", mistakes),
            site=check(SiteText, defaults.site, ("defaults", "site"), "the default site", mistakes),
        ),
        sites={
            name: check(SiteText, raw, ("sites", name), f"site {shown(name)}", mistakes) for name, raw in sites.items()
        },
        ducts={name: _duct(name, raw, mistakes) for name, raw in ducts.items()},
        links={
            name: _link(LinkText, raw, ("links", name), f"link {shown(name)}", mistakes) for name, raw in links.items()
        },
    )


def _link(model: type[LinkPart], raw: object, path: Path, what: str, mistakes: Mistakes) -> LinkPart:
    part = check(model, raw, path, what, mistakes)
    impair = _impairment(part.impair, (*path, "impair"), f"impair of {what}", mistakes)
    towards = _section(part.toward, (*path, "toward"), "toward: {west: {loss: 1%, delay: 250us}}", mistakes)
    toward = {
        site: _impairment(impair_of_site, (*path, "toward", site), f"toward {shown(site)} of {what}", mistakes)
        for site, impair_of_site in towards.items()
    }
    return part.model_copy(update={"impair": impair, "toward": toward})


def _impairment(raw: object, path: Path, what: str, mistakes: Mistakes) -> dict[str, Any]:
    """Return values by key, in SI units; ``resolve.py`` checks whether they fit together on the link."""
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        message, fix = expected("a mapping", raw, "write {jitter: 20us, loss: 0.01%}")
        mistakes.note(path, f"{what}: {message}", fix)
        return {}
    values, misread = parse(raw)
    for mistake in misread:
        if mistake.key in PARAMETERS:
            message, _, fix = mistake.why.partition("; ")
            mistakes.note((*path, mistake.key), f"{mistake.key} of {what}: {message}", fix)
        else:
            message, fix = unknown("key", mistake.key, PARAMETERS)
            mistakes.note((*path, mistake.key), f"{what}: {message}", fix)
    return values


def _duct(name: str, raw: object, mistakes: Mistakes) -> float | None:
    try:
        return parse_length_m(raw)
    except Unreadable as error:
        mistakes.note(("ducts", name), f"duct {shown(name)}: {error.message}", error.fix)
        return None
