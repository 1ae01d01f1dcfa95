"""Strategies of installed packages: the entry points ``testbed.strategies``, whose modules have a ``Twin``.

The agents load the class ``Agent`` of the same module themselves (``testbed_agents.strategies``).
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from testbed.core.training import strategies_built
from testbed.core.training.twin import Twin
from testbed.errors import UserError

__all__ = ["GROUP", "broken", "files_of", "loaded", "package_of", "register"]

GROUP = "testbed.strategies"


def register() -> None:
    """Add the twins of all installed packages to the strategies that are built; those that cannot be loaded stay out.

    Files, runs and reports may name them, so this comes before any of these is read. Cheap after the first call.
    """
    loaded()


def broken() -> Mapping[str, str]:
    """Return, by name, why each unusable entry point cannot be used."""
    return loaded()[1]


def package_of(name: str) -> str:
    """Return the package that a strategy comes from; empty for the testbed's own."""
    return loaded()[0].get(name, "")


def files_of(name: str) -> tuple[Path, ...]:
    """Return the files and folders by which ranks find and import a strategy; none for the testbed's own."""
    paths: list[Path] = []
    for point in importlib.metadata.entry_points(group=GROUP, name=name):
        if point.dist is not None:
            paths.append(Path(str(point.dist.locate_file(""))))  # listed for the package's metadata
        spec = importlib.util.find_spec(point.module)
        if spec is not None and spec.origin is not None:
            paths.append(Path(spec.origin))
            paths += map(Path, spec.submodule_search_locations or ())
    return tuple(path for path in paths if path.exists())


@functools.cache
def loaded() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the packages of usable strategies, and why each other one cannot be used, by name."""
    packages: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        package = point.dist.name if point.dist else "a package"
        try:
            _add(point)
            packages[point.name] = package
        except Exception as error:  # any: it is somebody else's code
            what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            wrong[point.name] = f"strategy {point.name}, registered by {package} as {point.value}: {what}"
            strategies_built.UNUSABLE[point.name] = wrong[point.name]
    return packages, wrong


def _add(point: importlib.metadata.EntryPoint) -> None:
    """Add the twin of an entry point. Raises UserError for one that does not fit, and whatever the module raises."""
    from testbed.core.workload.workload_schema import OWN_KEYS  # takes 0.1 s to import; few hosts have such packages

    module = point.load()
    twin = getattr(module, "Twin", None)
    if not (isinstance(twin, type) and issubclass(twin, Twin)):
        raise UserError("its module has no class Twin, a subclass of testbed.core.training.twin.Twin")
    if not hasattr(module, "Agent"):
        raise UserError("its module has no class Agent, a subclass of testbed_agents.strategies.Strategy")
    if getattr(twin, "name", None) != point.name:
        raise UserError(f"its Twin has the name {getattr(twin, 'name', None)!r}, not that of the entry point")
    if taken := sorted({option.name.partition(".")[0] for option in twin.options} & OWN_KEYS):
        raise UserError(f"its option {taken[0]} is a key of workload: already; give it another name")
    strategies_built.add(twin)
    _guard(twin, point)


def _guard(twin: type[Twin], point: importlib.metadata.EntryPoint) -> None:
    """Have what the package's own methods and properties raise name the package: it is no bug of the testbed."""
    for owner in twin.__mro__:
        if owner.__module__.partition(".")[0] == Twin.__module__.partition(".")[0]:
            continue
        for name, member in list(vars(owner).items()):
            if name.startswith("__") or not hasattr(Twin, name):
                continue
            if isinstance(member, property) and member.fget is not None:
                setattr(owner, name, property(_guarded(member.fget, point, name)))
            elif inspect.isfunction(member):
                setattr(owner, name, _guarded(member, point, name))


def _guarded(method: Callable[..., Any], point: importlib.metadata.EntryPoint, name: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise UserError(f"strategy {point.name}: {name} of its Twin ({point.value}) failed: {what}") from error

    return guarded
