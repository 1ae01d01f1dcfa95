"""The one place where Steps are applied, undone and reconciled.

``apply`` journals the intention, creates the resources in order and sets the properties. ``undo`` removes what an owner
applied, in reverse order. ``replace`` moves an owner from one plan to its next. ``reconcile`` sets every key to the
value that the properties in force for it make together (``Property.folded``). ``settle`` does so for the keys known to
have another value. After an interruption any of them can be repeated, by another process, from the journal alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from testbed.core.plan.step import Plan, Property, Step
from testbed.errors import HostError, NameTaken, TestbedError, raise_all
from testbed.host.drivers.driver import Handler
from testbed.keeper.journal import Entry, Journal

LAB = "lab"
"""Owner of the lab's own Steps."""

Notice = Callable[[str], None]


class Engine:
    """Applies Steps through handlers, one for each kind of Step.

    Not thread-safe: the keeper has one thread for it.
    """

    def __init__(self, journal: Journal, handlers: Mapping[type[Step], Handler]) -> None:
        self.journal = journal
        self._handlers = handlers
        self._unset: dict[tuple[str, ...], Property] = {}
        """Values that could not be set, by key. For properties in force the journal does not record this."""

    def apply(self, owner: str, plan: Plan, notice: Notice | None = None) -> None:
        """Apply a plan. On any error, what was begun stays in the journal: call :meth:`undo`.

        Consecutive properties are set in one call, so that simultaneous faults are simultaneous. ``notice`` gets the
        kind of each group of resources.
        """
        waiting = deque(self.journal.intend(owner, plan))
        noticed = ""
        try:
            while waiting:
                properties: list[Entry] = []
                while waiting and isinstance(waiting[0].step, Property):
                    properties.append(waiting.popleft())
                self._assign(properties)
                if not waiting:
                    break
                kind = type(waiting[0].step).__name__
                if notice is not None and kind != noticed:
                    notice(kind)
                    noticed = kind
                self._make(waiting)
        except BaseException:
            # What was never begun must not be undone: a resource of that name may belong to another owner.
            self.journal.undone(waiting)
            raise

    def apply_together(self, plans: Mapping[str, Plan]) -> None:
        """Apply the plans of several owners together: journalled in one write, all properties set first and at once.

        On any error, what was begun stays in the journal, as with :meth:`apply`.
        """
        if len(plans) == 1:
            ((owner, plan),) = plans.items()
            return self.apply(owner, plan)
        entries = self.journal.intend_all(plans)
        resources = deque(entry for entry in entries if not isinstance(entry.step, Property))
        try:
            self._assign([entry for entry in entries if isinstance(entry.step, Property)])
            while resources:
                self._make(resources)
        except BaseException:
            self.journal.undone(resources)
            raise

    def apply_unrecorded(self, owner: str, plan: Sequence[Property]) -> None:
        """Set these properties though the disk has refused them: they are folded with the others from now on."""
        self._assign(self.journal.hold(owner, plan))

    def _make(self, waiting: deque[Entry]) -> None:
        """Create the first of ``waiting`` and remove it from there, unless its name is taken: then it was not begun."""
        entry = waiting.popleft()
        try:
            entry.facts = self._handlers[type(entry.step)].make(entry.step)
        except NameTaken:
            waiting.appendleft(entry)
            raise
        if entry.facts:
            self.journal.done([entry])
        else:
            entry.done = True

    def undo(self, owner: str) -> None:
        """Undo all that ``owner`` applied, in reverse order. All of it is attempted; HostError lists the failures.

        What could not be undone stays in the journal for the next attempt.
        """
        self._undo([*self.journal.forgotten_by(owner), *self.journal.owned(owner)])

    def undo_all(self) -> None:
        """Undo everything of every owner; no value is set on a resource that is removed anyway."""
        self._undo([*self.journal.forgotten.values(), *self.journal.entries.values()])

    def replace(self, owner: str, plan: Plan) -> None:
        """Replace the plan of ``owner`` by this one: resources that it lacks are removed first, new ones are created.

        A property changes to its next value directly: no value without it applies in between.
        """
        active = self.journal.owned(owner)
        wanted, present = set(plan), {entry.step for entry in active}
        old = [entry for entry in active if entry.step not in wanted]
        new = [step for step in plan if step not in present]
        self._undo([entry for entry in old if not isinstance(entry.step, Property)])
        gone = [entry for entry in old if isinstance(entry.step, Property)]
        left = self.journal.forgotten_by(owner)  # of an earlier plan, where a value could not be set
        fresh = self.journal.exchange(owner, gone, (step for step in new if isinstance(step, Property)))
        self._assign(fresh, also=[*left, *gone])
        # Resources last: they take longer, and links that must go down together must not wait for them.
        self.apply(owner, tuple(step for step in new if not isinstance(step, Property)))

    def reconcile(self) -> None:
        """Set every key to the value in force: after a crash, or where a value could not be set."""
        active = [entry for entry in self.journal.entries.values() if isinstance(entry.step, Property)]
        self._assign(active, also=list(self.journal.forgotten.values()))

    def settle(self) -> None:
        """Set the keys that are known to be wrong: forgotten when a keeper died, or impossible to set at the time."""
        self._set([*self._unset.values(), *_properties(self.journal.forgotten.values())])

    def _assign(self, entries: Sequence[Entry], also: Sequence[Entry] = ()) -> None:
        """Set the keys of ``entries``, and of ``also``, which are no longer in force, to the values in force."""
        self._set(_properties((*entries, *also)))
        for entry in entries:
            entry.done = True

    def _set(self, touched: Sequence[Property]) -> None:
        """Set the keys of ``touched`` to the values in force. Every handler is tried, then all failures are raised.

        A forgotten property counts as undone only once its key has been set: until then the journal must list it, or
        the next process could not know after a crash that the key may have another value.
        """
        failures: list[TestbedError] = []
        settled = {step.key for step in touched}
        for handler, properties in self._by_handler(self._in_force(touched)).items():
            try:
                handler.assign(properties)
            except TestbedError as error:
                failures.append(error)
                self._unset |= {step.key: step for step in properties}
                settled -= {step.key for step in properties}
        for key in settled:
            self._unset.pop(key, None)
        forgotten = self.journal.forgotten.values()
        self.journal.undone(
            [entry for entry in forgotten if isinstance(entry.step, Property) and entry.step.key in settled]
        )
        raise_all(failures)

    def _undo(self, entries: Sequence[Entry]) -> None:
        going = {name for entry in entries for name in entry.step.holds}
        failures: list[TestbedError] = []
        gone: list[Entry] = []
        touched: list[Entry] = []
        for entry in reversed(entries):
            step = entry.step
            if going.intersection(step.within):
                gone.append(entry)
            elif isinstance(step, Property):
                touched.append(entry)
            else:
                try:
                    self._handlers[type(step)].unmake(step, entry.facts)
                    gone.append(entry)
                except TestbedError as error:
                    failures.append(error)
        self.journal.undone(gone)
        # Properties are forgotten before their keys are set, and undone after: see the journal.
        self.journal.forget(entry for entry in touched if entry.id in self.journal.entries)
        try:
            self._assign([], also=touched)
        except TestbedError as error:
            failures.append(error)
        if failures:
            raise HostError("undo failed: " + "; ".join(str(error) for error in failures)) from failures[0]

    def _in_force(self, properties: Iterable[Property]) -> list[Property]:
        """Return the property to set for each key: the fold of those in force, else the key's resting value."""
        wanted = {step.key: step for step in properties}
        if not wanted:
            return []
        folded = (
            active[-1][1].folded([step for _, step in active]) if active else wanted[key].rest
            for key, active in self.journal.properties(wanted).items()
        )
        return [step for step in folded if step is not None]

    def _by_handler(self, properties: Iterable[Property]) -> dict[Handler, list[Property]]:
        groups: dict[Handler, list[Property]] = {}
        for step in properties:
            groups.setdefault(self._handlers[type(step)], []).append(step)
        return groups


def _properties(entries: Iterable[Entry]) -> list[Property]:
    return [entry.step for entry in entries if isinstance(entry.step, Property)]
