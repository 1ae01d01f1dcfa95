"""Resolve a topology file to a :class:`Topology`: fill in defaults, find every mistake, keep each value's origin.

:func:`load_text` parses the text (``yamltext``), applies ``--set`` (``override``), parses each value by itself
(``topology_schema``), checks here what must fit together, and only then builds the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from testbed.core import yamltext
from testbed.core.physics import fiber, optics
from testbed.core.topology import link_impairments, link_protection, override, site_fabric
from testbed.core.topology.graph import reachable
from testbed.core.topology.link_impairments import LEAST_RATE_BPS
from testbed.core.topology.link_protection import ProtectionText
from testbed.core.topology.model import (
    DEFAULT_CONGESTION,
    Duct,
    Link,
    Site,
    Topology,
    topology_from_dict,
    topology_to_dict,
)
from testbed.core.topology.names import LONGEST, check_name
from testbed.core.topology.site_fabric import FabricText
from testbed.core.topology.topology_limits import BRIDGE_PORTS, MOST_DUCTS, MOST_LINKS, MOST_SITES
from testbed.core.topology.topology_schema import Buffer, LinkText, Mistakes, SiteText, TopologyText, Written, read
from testbed.core.units import Unreadable, format_length, format_rate
from testbed.core.user_text import shown, unknown
from testbed.errors import FileMistakes, Finding

__all__ = [
    "DEFAULT_BUFFER",
    "DEFAULT_SCALE",
    "load_text",
    "topology_from_dict",
    "topology_to_dict",
]

DEFAULT_SCALE: Final = 1000.0
DEFAULT_BUFFER: Final = Buffer(time_s=0.010)
DEFAULT_MTU: Final = 1500
DEFAULT_PROTECTION: Final = ProtectionText("route")

_EXAMPLE: Final = (
    "write at least sites: {east: {nodes: 2}, west: {nodes: 2}}, links: {north: {between: [east, west], km: 40}}"
)


def load_text(text: bytes, label: str, overrides: Mapping[str, object] | None = None) -> Topology:
    """Return the topology in ``text``; ``label`` is the file name in messages and its stem the topology's name.

    ``overrides`` maps dotted keys (``links.north.km``, ``links.*.fiber``) to values, as ``--set`` does.

    Raises:
        FileMistakes: with every mistake found.
        UnknownName: a key of ``overrides`` does not exist in this file.
        UserError: a value of ``overrides`` is not YAML.
    """
    document = yamltext.read(text, label)
    if document.data is None:
        raise FileMistakes([Finding(label, 0, "the file is empty", _EXAMPLE)])
    written = override.apply(document, overrides or {})
    mistakes = Mistakes(written)
    content = read(written, mistakes)
    _check_sizes(content, mistakes)
    _check_names(content, mistakes)
    if (default := content.defaults.link.protection) is not None and default.via:
        fix = "write protection with each link that has a second path"
        mistakes.note(("defaults", "link", "protection"), "the default link cannot have a second path", fix)
    link_impairments.check_default(content.defaults.link, content.sites, mistakes)
    for name, link in content.links.items():
        _check_link(name, link, content, mistakes)
    for name, site in content.sites.items():
        _check_fabric(name, site, content, mistakes)
    _check_connected(content, mistakes)
    mistakes.raise_if_any()
    return _build(content, written, label)


def _check_sizes(content: TopologyText, mistakes: Mistakes) -> None:
    if not content.sites and not {(), ("sites",)} & mistakes.bad:
        mistakes.note(("sites",), "no sites", _EXAMPLE)
    sections = {
        "sites": (content.sites, MOST_SITES),
        "links": (content.links, MOST_LINKS),
        "ducts": (content.ducts, MOST_DUCTS),
    }
    large = {kind: most for kind, (section, most) in sections.items() if len(section) > most}
    for kind, most in large.items():
        mistakes.note((kind,), f"too many {kind}: {len(sections[kind][0])}", f"use at most {most}")
    if large:
        mistakes.raise_if_any()  # suggesting the closest of so many names could take minutes
    nodes = sum(_nodes(site, content) for site in content.sites.values())
    if nodes + len(content.sites) > BRIDGE_PORTS:
        problem = f"too many nodes: {nodes} in total, and {len(content.sites)} gateways"
        mistakes.note(("sites",), problem, f"use at most {BRIDGE_PORTS} nodes and gateways together")


def _nodes(site: SiteText, content: TopologyText) -> int:
    return site.nodes or content.defaults.site.nodes or 1


def _fabric_text(site: SiteText, content: TopologyText) -> FabricText | None:
    return site.fabric or content.defaults.site.fabric


def _fabric(site: SiteText, content: TopologyText) -> tuple[float, float]:
    """Return the rate of a node's port in the lab, in bit/s (0: without a limit), and the oversubscription."""
    fabric = _fabric_text(site, content)
    return (fabric.rate / (content.scale or DEFAULT_SCALE), fabric.oversubscription) if fabric else (0.0, 1.0)


def _check_fabric(name: str, site: SiteText, content: TopologyText, mistakes: Mistakes) -> None:
    rate_bps, oversubscription = _fabric(site, content)
    least_bps = min(rate_bps, site_fabric.core_bps(_nodes(site, content), rate_bps, oversubscription))
    if rate_bps and least_bps < LEAST_RATE_BPS:
        fix = f"choose a smaller scale: a fabric needs at least {format_rate(LEAST_RATE_BPS)}"
        what = "fabric" if least_bps == rate_bps else "core of the fabric"
        path = ("sites", name, "fabric") if site.fabric else ("defaults", "site", "fabric")
        scaled = (
            f"{what} of site {shown(name)} runs at {least_bps:.3g} b/s after scale {content.scale or DEFAULT_SCALE:g}"
        )
        mistakes.note(path, scaled, fix)


def _check_names(content: TopologyText, mistakes: Mistakes) -> None:
    """Check that every name is valid for its kind and unique."""
    taken: dict[str, str] = {}
    for kind, section in (("site", content.sites), ("link", content.links), ("duct", content.ducts)):
        for name in section:
            path = (f"{kind}s", name)
            try:
                check_name(kind, name)
            except Unreadable as error:
                mistakes.note(path, error.message, error.fix)
                continue
            if name in taken:
                mistakes.note(path, f"{kind} '{name}' has the same name as {taken[name]}", "rename one of them")
            taken.setdefault(name, f"a {kind}")
    for name, site in content.sites.items():
        for made, what in [(f"{name}-gw", "gateway"), *((f"{name}-{i}", "node") for i in range(_nodes(site, content)))]:
            if made in taken:
                kind = taken[made].split()[-1]
                message = f"{kind} {shown(made)} has the same name as a {what} of site {shown(name)}"
                mistakes.note((f"{kind}s", made), message, f"rename the {kind}")
    if content.name is not None:
        try:
            check_name("topology", content.name)
        except Unreadable as error:
            mistakes.note(("name",), error.message, error.fix)


def _check_link(name: str, link: LinkText, content: TopologyText, mistakes: Mistakes) -> None:
    path = ("links", name)
    bad = {bad_path[2] for bad_path in mistakes.bad if len(bad_path) == 3 and bad_path[:2] == path}
    whole = path not in mistakes.bad
    if link.between is not None:
        for site in link.between:
            if site not in content.sites:
                message, fix = unknown("site", site, content.sites)
                mistakes.note((*path, "between"), f"link {shown(name)}: {message}", fix)
        if link.between[0] == link.between[1]:
            fix = "name two sites (the nodes of one site are connected by its fabric)"
            mistakes.note((*path, "between"), f"link {shown(name)} connects {shown(link.between[0])} to itself", fix)
    elif whole and "between" not in bad:
        mistakes.note(path, f"link {shown(name)} connects no sites", "add between: [SITE, SITE]")
    if link.km is not None and link.via is not None:
        fix = "keep km for a private duct, or via for shared ducts, whose lengths are summed"
        mistakes.note((*path, "km"), f"link {shown(name)} has both km and via", fix)
    elif link.km is None and link.via is None and whole and not bad & {"km", "via"}:
        mistakes.note(path, f"link {shown(name)} has no length", "add km: 40, or via: [DUCT, …]")
    for duct in link.via or ():
        if duct not in content.ducts:
            message, fix = unknown("duct", duct, content.ducts)
            mistakes.note((*path, "via"), f"link {shown(name)}: {message}", fix)
    if link.via is not None and len(set(link.via)) < len(link.via):
        mistakes.note((*path, "via"), f"link {shown(name)} passes through a duct twice", "name each duct once")
    length_m = _length_m(link, content)
    if length_m is not None and "optics" not in bad:
        _check_reach(name, link, length_m, content, mistakes)
    _check_second_path(name, link, content, mistakes)
    _check_rate(name, link, content, mistakes)
    whole = length_m is not None and not any(bad_path[:2] in (path, ("defaults", "link")) for bad_path in mistakes.bad)
    own = _own(link, content, length_m) if whole and length_m is not None else None
    link_impairments.check(name, link, content.defaults.link, content.scale or DEFAULT_SCALE, own, mistakes)


def _check_second_path(name: str, link: LinkText, content: TopologyText, mistakes: Mistakes) -> None:
    if link.protection is None or not link.protection.via:
        return
    path = ("links", name, "protection")
    lacking = [duct for duct in link.protection.via if duct not in content.ducts]
    for duct in lacking:
        message, fix = unknown("duct", duct, content.ducts)
        mistakes.note(path, f"second path of link {shown(name)}: {message}", fix)
    length_m = _second_length_m(link.protection, content)
    if not lacking and length_m is not None:
        _check_reach(name, link, length_m, content, mistakes, "protection")


def _second_length_m(protection: ProtectionText, content: TopologyText) -> float | None:
    lengths = [content.ducts.get(duct) for duct in protection.via]
    return None if None in lengths else sum(length for length in lengths if length is not None)


def _check_reach(
    name: str, link: LinkText, length_m: float, content: TopologyText, mistakes: Mistakes, blamed: str = ""
) -> None:
    chosen = optics.OPTICS[link.optics or content.defaults.link.optics or optics.DEFAULT_OPTICS]
    if length_m <= chosen.reach_m:
        return
    far = optics.that_reach(length_m, chosen.line_rate_bps)
    fix = f"use optics: {far[0].name} (reach {format_length(far[0].reach_m)})" if far else "shorten it"
    what = f"the second path of link {shown(name)}" if blamed else f"link {shown(name)}"
    mistakes.note(
        ("links", name, blamed or ("optics" if link.optics else "via" if link.via else "km")),
        f"{what} is {format_length(length_m)} long, beyond the reach of {chosen.name}, {format_length(chosen.reach_m)}",
        fix,
    )


def _check_rate(name: str, link: LinkText, content: TopologyText, mistakes: Mistakes) -> None:
    rate_bps = _rate_bps(link, content)
    if rate_bps < LEAST_RATE_BPS:
        fix = f"choose a smaller scale: a link needs at least {format_rate(LEAST_RATE_BPS)}"
        scaled = f"link {shown(name)} runs at {rate_bps:.3g} b/s after scale {content.scale or DEFAULT_SCALE:g}"
        mistakes.note(("links", name, "rate" if link.rate else "optics"), scaled, fix)


def _length_m(link: LinkText, content: TopologyText) -> float | None:
    """Return metres; None if unknown because of a mistake that has been noted."""
    if link.via is None:
        return link.km
    lengths = [content.ducts.get(duct) for duct in link.via]
    return None if link.km is not None or None in lengths else sum(length for length in lengths if length is not None)


def _rate_bps(link: LinkText, content: TopologyText) -> float:
    scale = content.scale or DEFAULT_SCALE
    rate = link.rate or (None if link.optics else content.defaults.link.rate)
    if rate is not None:
        return rate / scale
    default = content.defaults.link
    return optics.rate_bps(
        link.optics or default.optics or optics.DEFAULT_OPTICS, link.waves or default.waves or 1, scale
    )


def _check_connected(content: TopologyText, mistakes: Mistakes) -> None:
    """Check that every site is reachable from the first, so that all ranks can connect; needs valid links."""
    all_known = all(
        link.between is not None and set(link.between) <= set(content.sites) for link in content.links.values()
    )
    if not all_known or not content.sites or {("links",), ("sites",)} & mistakes.bad:
        return
    pairs = [link.between for link in content.links.values() if link.between is not None]
    first, *others = content.sites
    reached = reachable(first, pairs)
    for site in others:
        if not any(site in pair for pair in pairs):
            message = f"site {shown(site)} has no link"
            mistakes.note(("sites", site), message, "add a link between it and another site")
        elif site not in reached:
            beside = reachable(site, pairs)
            reached |= beside
            connected = f" and {len(beside) - 1} more connected to it" if len(beside) > 1 else ""
            message = f"no path from site {shown(first)} to site {shown(site)}{connected}"
            mistakes.note(("sites", site), message, "add a link between them")


def _name_of(label: str) -> str:
    """Turn the stem of a file name into a valid name: ``My lab.yaml`` gives ``my-lab``."""
    stem = label.rpartition("/")[2]
    stem = re.sub(r"\.(ya?ml)$", "", stem, flags=re.IGNORECASE)
    fit = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:LONGEST].strip("-")
    try:
        check_name("topology", fit)
    except Unreadable:
        return f"topology-{fit}"[:LONGEST].strip("-")
    return fit


def _build(content: TopologyText, written: Written, label: str) -> Topology:
    """Build the topology from fully checked content."""
    scale = content.scale or DEFAULT_SCALE
    sites = tuple(
        Site(name, _nodes(site, content), site.power or content.defaults.site.power or name, *_fabric(site, content))
        for name, site in content.sites.items()
    )
    links = tuple(_link(name, link, content) for name, link in content.links.items())
    shared = tuple(Duct(name, length) for name, length in content.ducts.items() if length is not None)
    private = tuple(Duct(link.name, link.length_m) for link in links if content.links[link.name].via is None)
    return Topology(
        name=content.name or _name_of(label),
        scale=scale,
        sites=sites,
        links=links,
        ducts=shared + private,
        routing=content.routing or "shortest",
        seed=content.seed or 0,
        source=label,
        origins=dict(_origins(content, written)),
        congestion=content.congestion or DEFAULT_CONGESTION,
    )


def _own(link: LinkText, content: TopologyText, length_m: float) -> link_impairments.Own:
    """Return the link without ``impair``."""
    default = content.defaults.link
    kind, latency_s, huts = _path(link, content)
    return link_impairments.Own(
        delay_s=fiber.propagation_s(length_m, kind, huts) + latency_s,
        rate_bps=_rate_bps(link, content),
        loss=link.loss if link.loss is not None else default.loss or 0.0,
        buffer=link.buffer or default.buffer or DEFAULT_BUFFER,
        mtu=link.mtu or default.mtu or DEFAULT_MTU,
    )


def _path(link: LinkText, content: TopologyText) -> tuple[str, float, int]:
    """Return (fiber type, latency of the optics in seconds, number of amplifier huts)."""
    default = content.defaults.link
    return (
        link.fiber or default.fiber or fiber.DEFAULT_FIBER,
        link.optics_latency if link.optics_latency is not None else default.optics_latency or 0.0,
        link.huts if link.huts is not None else default.huts or 0,
    )


def _link(name: str, link: LinkText, content: TopologyText) -> Link:
    default, scale = content.defaults.link, content.scale or DEFAULT_SCALE
    length_m, between = _length_m(link, content), link.between
    assert length_m is not None and between is not None
    kind, latency_s, huts = _path(link, content)
    own = _own(link, content, length_m)
    both = link_impairments.resolved(own, link_impairments.layers(name, link, default, scale))
    # In the order of Link.directions: toward the second site first.
    over = [link_impairments.layers(name, link, default, scale, site) for site in reversed(between)]
    protection = link.protection or default.protection or DEFAULT_PROTECTION
    return Link(
        name=name,
        between=between,
        via=link.via or (name,),
        length_m=length_m,
        fiber=kind,
        optics=link.optics or default.optics or optics.DEFAULT_OPTICS,
        waves=link.waves or default.waves or 1,
        delay_s=both.delay_s,
        rate_bps=both.rate_bps,
        queue_bytes=both.queue_bytes,
        loss=both.loss,
        mtu=link.mtu or default.mtu or DEFAULT_MTU,
        protection=protection.type,
        buffer_bytes=own.buffer.bytes_at(both.rate_bps),
        optics_latency_s=latency_s,
        huts=huts,
        impairments=tuple(link_impairments.resolved(own, layers) for layers in over) if any(over) else (),
        second_path=link_protection.second_path(protection, _second_length_m(protection, content) or 0.0),
        calibrate=next((setting for setting in (link.calibrate, default.calibrate) if setting is not None), True),
    )


def _origins(content: TopologyText, written: Written) -> Iterator[tuple[str, str]]:
    """Yield (dotted field, source of its value) for every field that a file can set."""

    def origin(*paths: tuple[str, ...]) -> str:
        return next((written.origin(path) for path in paths if written.has(path)), "default")

    for key in ("name", "scale", "seed", "routing"):
        yield key, origin((key,))
    if content.congestion is not None:
        yield "congestion", origin(("congestion",))
    for name in content.sites:
        for key in SiteText.model_fields:
            if key == "fabric" and _fabric_text(content.sites[name], content) is None:
                continue
            yield f"sites.{name}.{key}", origin(("sites", name, key), ("defaults", "site", key))
    for name in content.ducts:
        yield f"ducts.{name}", origin(("ducts", name))
    for name, link in content.links.items():
        for key in LinkText.model_fields:
            if key in ("impair", "toward") or (key in ("km", "via") and getattr(link, key) is None):
                continue
            path, default = ("links", name, key), ("defaults", "link", key)
            # The optics of a link take precedence over a default rate.
            hidden = key == "rate" and link.optics is not None and link.rate is None
            over = [
                (*place, key)
                for place, values in link_impairments.layers(name, link, content.defaults.link)
                if key in values
            ]
            paths = (path,) if hidden else (path, default)
            yield f"links.{name}.{key}", written.origin(over[-1]) if over else origin(*paths)
        yield from _impair_origins(name, link, content, written)


def _impair_origins(name: str, link: LinkText, content: TopologyText, written: Written) -> Iterator[tuple[str, str]]:
    """Yield the same for written impairments (``links.north.impair.loss``, ``….toward.west.loss``): the winning one."""
    for toward in (None, *(link.between or ())):
        where = f"links.{name}." + ("impair" if toward is None else f"toward.{toward}")
        for place, values in link_impairments.layers(name, link, content.defaults.link, toward=toward):
            if toward is None or toward == place[-1]:
                yield from ((f"{where}.{key}", written.origin((*place, key))) for key in values)
