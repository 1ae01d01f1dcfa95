"""Labs and jobs of one ``chaos run``, shared by its activities, which are called one by one in one process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from chaoslib.exceptions import ActivityFailed

from testbed.errors import TestbedError, UserError
from testbed.lab import api
from testbed.lab.jobs.job import Job
from testbed.lab.lab import Lab

__all__ = ["Configuration", "job_of", "lab_of", "remember", "translated"]

Configuration = Mapping[str, Any] | None
"""The experiment's ``configuration``; ``testbed_lab`` names the lab."""

_log = logging.getLogger("chaostoolkit")
"""The toolkit's own logger: its lines appear in the output and the log of `chaos run`."""

_labs: dict[str, Lab] = {}
_jobs: dict[str, Job] = {}


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Translate a TestbedError into the toolkit's ActivityFailed; any other exception is a bug of the testbed."""
    try:
        yield
    except TestbedError as error:
        raise ActivityFailed(str(error)) from error


def lab_of(lab: str | None, configuration: Configuration, *, changes: bool = True) -> Lab:
    """Return the lab of an activity, the same object for all activities of a run. Raises UserError.

    ``changes``: the activity changes the lab, so one that is not named must be the only one, and brought up by the same
    user. That another login session brought it up is logged.
    """
    name = lab or (configuration or {}).get("testbed_lab") or None
    attached = api.attach(name, changes=changes, command=_naming)
    if changes and attached.name not in _labs and (whose := api.strangers(attached.name)):
        _log.warning(whose)
    return _labs.setdefault(attached.name, attached)


def _naming(lab: str) -> str:
    return f'"configuration": {{"testbed_lab": "{lab}"}}'


def remember(lab: Lab, job: Job | None = None) -> None:
    """Remember a lab, or a job in it, that an activity has started."""
    _labs[lab.name] = lab
    if job is not None:
        _jobs[lab.name] = job


def forget(name: str) -> None:
    _labs.pop(name, None)
    _jobs.pop(name, None)


def job_of(lab: Lab) -> Job:
    """Return the job that :func:`testbed.chaos.actions.train` has started. Raises UserError."""
    if lab.name not in _jobs:
        raise UserError(f"no job was started in lab {lab.name}; add the action testbed.chaos.actions.train before")
    return _jobs[lab.name]
