"""async-diloco: sites push their pseudo-gradients to a server when they have them, and wait only for a lag above σ.

After H steps a site sends Θ - θ to the server at the site ``home`` and trains on. The server applies it at once by
delayed Nesterov (``delayed_nesterov``) and answers with the new Θ; what the site has moved meanwhile stays
(``movement``). A site waits when so many of its pushes are unanswered that its next one could be applied more than σ
versions too late, and the server holds back pushes that would make another site's so late (``admission``).

The Θ of a version has the same pushes in all slices. A checkpoint is a meeting of all sites: each waits until all
have done the same step and all pushes are applied (Liu et al. 2024, arXiv:2401.09135).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from testbed_agents.checksums import crc32
from testbed_agents.exchange.outer_optimizers import DelayedNesterov
from testbed_agents.exchange.slices import Slice
from testbed_agents.parameter_server.admission import Admission
from testbed_agents.parameter_server.asynchronous_server import AsynchronousServer
from testbed_agents.parameter_server.messages import Header
from testbed_agents.parameter_server.movement import Movement
from testbed_agents.parameter_server.server import ParameterServer, as_floats
from testbed_agents.parameter_server.training import ParameterServerTraining
from testbed_agents.site_pace import SitePace

__all__ = ["AsyncDiloco"]


class AsyncDiloco(ParameterServerTraining):
    """Options as of the twin.

    ``every``: H. ``staleness``: σ in versions; 0: four times the number of sites. ``pace``: ``steps``, or ``time`` for
    an H per site by its speed. ``weigh``: ``equal``, or ``tokens`` for pushes weighted by their tokens. ``outer_rate``,
    ``outer_momentum``, ``outer_activation``: ε, β and c; ``outer_delay``: N, 0: the number of sites. ``home``: the site
    of the server, empty: the first.
    """

    def __init__(
        self,
        every: int = 50,
        staleness: int = 0,
        outer_rate: float = 0.7,
        outer_momentum: float = 0.5,
        outer_delay: int = 0,
        outer_activation: float = 0.0,
        pace: str = "steps",
        weigh: str = "equal",
        home: str = "",
    ) -> None:
        super().__init__(home)
        self._staleness, self._weigh = staleness, weigh
        self._rate, self._momentum, self._delay, self._activation = (
            outer_rate,
            outer_momentum,
            outer_delay,
            outer_activation,
        )
        self._pace = SitePace(every, pace == "time")
        self._answers: dict[int, tuple[int, Tensor]] = {}
        """Version and Θ by number of the push."""
        self._answered = (0, 0)
        """The last push that was answered, and the version."""
        self._final: tuple[int, Tensor] | None = None
        self._gone_on: Header | None = None
        self._version, self._since = 0, 0
        """The version that this site holds, and the step of its last push."""

    def build(self, parameters: list[nn.Parameter]) -> None:
        self.slice = Slice(parameters, self.replicas)
        self._staleness = self._staleness or 4 * len(self.sites)
        self._admission = Admission(self.sites, self._staleness)
        self._movement = Movement(self.slice.of_parameters())
        self._saved = {
            "numbers": torch.zeros(6, dtype=torch.int64),
            "outer": self._movement.outer.clone(),
        }
        self._pace.begin(self.context)

    def most_bytes(self) -> int:
        return 4 * self.slice.size

    def make_server(self, lead: bool) -> ParameterServer:
        hooks, delay = self.replicas.hooks, self._delay or len(self.sites)
        optimizer = DelayedNesterov(self._movement.outer, self._rate, self._momentum, hooks, delay, self._activation)
        server = AsynchronousServer(self.sites, lead, hooks, optimizer, self._admission, self._weigh == "tokens")
        self._saved |= server.saved
        return server

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        self._pace.step_begins()
        return super().run(inputs, targets)

    # -- a step ------------------------------------------------------------------------------------------------------

    def after_step(self, step: int) -> None:
        self._pace.measure(step, self.context)
        if step - self._since >= self._pace.every and step < self.context.steps:
            self._push(step)
        least = self._movement.taken - self._admission.window
        if self.mixed or self._answered[0] < least:
            self.wait_for(lambda: self._answered[0] >= least, "an answer")
        self.read()
        self._adopt()

    def finish(self, step: int) -> None:
        """Wait until all sites have done their last step; adopt the version that contains all of it."""
        if step > self._since:
            self._push(step, last=True)
        else:
            self.send({"kind": "end"})
        self.wait_for(lambda: self._final is not None, "the end of the other sites")
        version, outer = self._final or (0, self._movement.outer)
        (version,) = self.agree(version)
        self._rebase(version, outer, self._movement.taken)
        self.close()

    def _push(self, step: int, last: bool = False) -> None:
        delta = self._movement.take(self.slice.of_parameters())
        header = {
            "kind": "push",
            "push": self._movement.taken,
            "base": self._version,
            "first": self._since + 1,
            "step": step,
            "tokens": self.tokens,
            "last": last,
        }
        self._since, self.tokens = step, 0
        self.push(header, delta)

    def _adopt(self) -> None:
        """Adopt the newest answer that all ranks of the site have."""
        push, version = self.agree(*self._answered)
        if push > self._movement.included:
            outer = self._answers[push][1] if self.slice.holds else self._movement.outer
            self._rebase(version, outer, push)
            self._answers = {number: answer for number, answer in self._answers.items() if number > push}

    def _rebase(self, version: int, outer: Tensor, push: int) -> None:
        self._version = version
        self.slice.spread(self._movement.rebase(outer, push, self.slice.of_parameters()))
        self.context.checks.exchange(
            what="pulled",
            site=self.site,
            version=version,
            slice=self.replicas.slice,
            crc=crc32([outer]),
            push=push,
            bytes=4 * outer.numel(),
        )

    def take(self, header: Header, payload: Tensor) -> None:
        match header["kind"]:
            case "answer":
                self._answered = (int(header["push"]), int(header["version"]))
                self._answers[self._answered[0]] = (self._answered[1], as_floats(payload))
            case "settled":
                self._gone_on = {**header, "outer": as_floats(payload) if len(payload) else None}
            case "final":
                self._final = (int(header["version"]), as_floats(payload))

    # -- state -------------------------------------------------------------------------------------------------------

    def settle(self, step: int) -> None:
        pushed = self._movement.taken
        self.wait_for(lambda: self._answered[0] >= pushed, "an answer")
        self._adopt()
        if self.replicas.slice == 0:
            self.send({"kind": "settled", "version": self._version, "step": step})
        self.wait_for(lambda: self._gone_on is not None, f"the other sites at step {step}")
        gone_on, self._gone_on = self._gone_on or {}, None
        outer = gone_on.get("outer")
        version, as_before = self.agree(int(gone_on.get("version", 0)), int(outer is None))
        if not as_before:
            self._rebase(version, self._movement.outer if outer is None else outer, pushed)
        numbers = (pushed, self._version, self._since, self.tokens, *self._pace.numbers)
        self._saved["numbers"].copy_(torch.tensor(numbers))
        self._saved["outer"].copy_(self._movement.outer)

    def state(self) -> dict[str, Tensor]:
        return self._saved

    def loaded(self) -> None:
        pushed, self._version, self._since, self.tokens, *pace = self._saved["numbers"].tolist()
        self._pace.loaded(*pace)
        outer = self._saved["outer"]
        self._movement.restart(outer, outer, pushed, pushed)
        self._answered = (pushed, self._version)
        if isinstance(self.server, AsynchronousServer):
            self.server.loaded()

    def fingerprints(self) -> dict[str, Iterable[Tensor]]:
        return {**super().fingerprints(), "outer": [self._movement.outer]}

    def outer_slices(self) -> Iterable[tuple[Slice, Tensor]]:
        return [(self.slice, self._movement.outer)]

    @property
    def outer_version(self) -> int:
        return self._version
