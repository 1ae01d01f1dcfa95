"""The one place where Steps are applied, undone and reconciled.

``apply`` writes the intention down, makes the makings in order and then reconciles the settings. ``undo`` removes
what an owner made, backwards. ``replace`` leads from one plan of an owner to its next. ``reconcile`` gives every key
the value of the setting that has the say: of those that still stand, that of the owner who came last. ``settle`` does
it for the keys that are known not to have it. All can be called again after any interruption, by another process, from
the journal alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter

from testbed.core.plan.step import Plan, Property, Step
from testbed.errors import HostError, NameTaken, TestbedError
from testbed.host.drivers.driver import Handler
from testbed.keeper.journal import Entry, Journal

LAB = "lab"
"""Owner of the lab's own Steps."""

Notice = Callable[[str], None]


class Engine:
    """Applies Steps through hands, one for each kind of Step.

    Not safe for several threads: the keeper has one thread for it.
    """

    def __init__(self, journal: Journal, hands: Mapping[type[Step], Handler]) -> None:
        self.journal = journal
        self._handlers = hands
        self._unset: dict[tuple[str, ...], Property] = {}
        """Values that must be and could not be set, by their keys. Of those that stand the journal does not tell it."""

    def apply(self, owner: str, plan: Plan, notice: Notice | None = None) -> None:
        """Bring a plan into being. On any error what was begun stays in the journal: call :meth:`undo`.

        Runs of settings between makings are assigned together, so that simultaneous faults are simultaneous.
        """
        waiting = deque(self.journal.intend(owner, plan))
        said = ""
        try:
            while waiting:
                settings: list[Entry] = []
                while waiting and isinstance(waiting[0].step, Property):
                    settings.append(waiting.popleft())
                self._assign(settings)
                if not waiting:
                    break
                kind = type(waiting[0].step).__name__
                if notice is not None and kind != said:
                    notice(kind)
                    said = kind
                self._make(waiting)
        except BaseException:
            # What was never begun must not be undone: something of the same name may be there that is not ours.
            self.journal.undone(waiting)
            raise

    def apply_together(self, plans: Mapping[str, Plan]) -> None:
        """Apply the plans of several owners as one: written down in one write, their settings set at once and first.

        On any error what was begun stays in the journal, as with :meth:`apply`.
        """
        if len(plans) == 1:
            ((owner, plan),) = plans.items()
            return self.apply(owner, plan)
        entries = self.journal.intend_all(plans)
        makings = deque(it for it in entries if not isinstance(it.step, Property))
        try:
            self._assign([it for it in entries if isinstance(it.step, Property)])
            while makings:
                self._make(makings)
        except BaseException:
            self.journal.undone(makings)
            raise

    def _make(self, waiting: deque[Entry]) -> None:
        """Make the first of ``waiting`` and take it off; one whose name is taken was not begun."""
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
        """Undo all that ``owner`` applied, backwards. Everything is tried; then the first failure is raised.

        What failed to go stays in the journal for the next attempt.
        """
        self._undo([*self.journal.forgotten_by(owner), *self.journal.owned(owner)])

    def undo_all(self) -> None:
        """Undo everything, whoever owns it: nothing stands afterwards, and no value is set on what goes anyway."""
        self._undo([*self.journal.forgotten.values(), *self.journal.entries.values()])

    def replace(self, owner: str, plan: Plan) -> None:
        """Have exactly this plan stand for ``owner``: makings that it has no more are undone first, new ones are made.

        Settings go from one value to the next in one piece: at no moment do those of others come through in between.
        """
        standing = self.journal.owned(owner)
        wanted, present = set(plan), {entry.step for entry in standing}
        old = [entry for entry in standing if entry.step not in wanted]
        new = [step for step in plan if step not in present]
        self._undo([entry for entry in old if not isinstance(entry.step, Property)])
        gone = [entry for entry in old if isinstance(entry.step, Property)]
        left = self.journal.forgotten_by(owner)  # of a phase before this one, where something could not be set
        fresh = self.journal.exchange(owner, gone, (step for step in new if isinstance(step, Property)))
        self._assign(fresh, also=[*left, *gone])
        # Last: they take longer, and what is to be dark at one moment must not wait for them.
        self.apply(owner, tuple(step for step in new if not isinstance(step, Property)))

    def reconcile(self) -> None:
        """Give every key the value that it must have, as after a crash, or where one could not be set."""
        standing = [it for it in self.journal.entries.values() if isinstance(it.step, Property)]
        self._assign(standing, also=list(self.journal.forgotten.values()))

    def settle(self) -> None:
        """Set what is still to be set: what was forgotten when the keeper died, and what could not be set."""
        self._set([*self._unset.values(), *_settings(self.journal.forgotten.values())])

    def _assign(self, entries: Sequence[Entry], also: Sequence[Entry] = ()) -> None:
        """Set what has the say over the keys of ``entries``, and of ``also``, which stand no more."""
        self._set(_settings((*entries, *also)))
        for entry in entries:
            entry.done = True

    def _set(self, touched: Sequence[Property]) -> None:
        """Set what has the say over the keys of ``touched``; each hand is tried, then the first failure is raised.

        What was forgotten of a key that has its value is undone, and no sooner: until then the journal must tell of
        it, or whoever finds the journal after a crash would not know that the key may have another value.
        """
        failure: TestbedError | None = None
        settled = {it.key for it in touched}
        for hand, settings in self._by_hand(self._winners(touched)).items():
            try:
                hand.assign(settings)
            except TestbedError as error:
                failure = failure or error
                self._unset |= {it.key: it for it in settings}
                settled -= {it.key for it in settings}
        for key in settled:
            self._unset.pop(key, None)
        forgotten = self.journal.forgotten.values()
        self.journal.undone([it for it in forgotten if isinstance(it.step, Property) and it.step.key in settled])
        if failure is not None:
            raise failure

    def _undo(self, entries: Sequence[Entry]) -> None:
        going = {name for it in entries for name in it.step.holds}
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
        # Settings are forgotten before their keys are set, and undone after: see the journal.
        self.journal.forget(it for it in touched if it.id in self.journal.entries)
        try:
            self._assign([], also=touched)
        except TestbedError as error:
            failures.append(error)
        if failures:
            raise HostError("undo failed: " + "; ".join(str(error) for error in failures)) from failures[0]

    def _winners(self, settings: Iterable[Property]) -> list[Property]:
        """What is to be set for the keys of ``settings``: of what stands the latest, else what is so at rest."""
        wanted = {it.key: it for it in settings}
        if not wanted:
            return []
        winners: dict[tuple[str, ...], tuple[tuple[int, int], Property]] = {}
        for entry in self.journal.entries.values():
            if isinstance(entry.step, Property) and entry.step.key in wanted:
                mine = (self.journal.precedence(entry), entry.step)
                winners[entry.step.key] = max(winners.get(entry.step.key, mine), mine, key=itemgetter(0))
        found = (winners[key][1] if key in winners else it.rest for key, it in wanted.items())
        return [it for it in found if it is not None]

    def _by_hand(self, settings: Iterable[Property]) -> dict[Handler, list[Property]]:
        groups: dict[Handler, list[Property]] = {}
        for setting in settings:
            groups.setdefault(self._handlers[type(setting)], []).append(setting)
        return groups


def _settings(entries: Iterable[Entry]) -> list[Property]:
    return [it.step for it in entries if isinstance(it.step, Property)]
