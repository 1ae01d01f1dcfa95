"""Held-out loss of the outer parameters, between two steps: what a user would keep, on text held out of training.

Every strategy is judged on the same windows, whatever its seed. The ranks of a site share them out, since they hold the
same outer parameters; nothing is exchanged for it beside what ``Strategy.outer_parameters`` gathers inside the site.
Training draws no window from the part of the text that is held out.
"""

from __future__ import annotations

import time

import torch

from testbed_agents.data import Corpus, CorpusError, Windows
from testbed_agents.model import GPT, Shape, cross_entropy
from testbed_agents.strategies.strategy import Strategy

__all__ = ["Evaluation", "hold_out"]

HELD_OUT_SHARE = 0.05
"""Of the text, at its end."""
WINDOWS = 128
"""Evaluated each time, by the ranks of a site together: 8192 tokens of the small model take 0.1 to 0.3 s."""
_SEED = 20_251_118
_AT_ONCE = 16


def hold_out(corpus: Corpus, context: int) -> tuple[Corpus, Corpus]:
    """Return the text to train on, and the text to evaluate on. Raises CorpusError if one would be too short."""
    held = max(int(HELD_OUT_SHARE * len(corpus)), context + 1)
    if len(corpus) - held <= context:
        raise CorpusError(
            f"{corpus.name} has {len(corpus)} bytes; with a held-out part it needs at least {2 * (context + 1)}"
        )
    return Corpus(corpus.name, corpus.text[:-held]), Corpus(corpus.name, corpus.text[-held:])


class Evaluation:
    """Evaluates outer parameters of a GPT of ``shape``, in a model of its own: the job's may be wrapped, or paced.

    ``share``: index of this rank among those of its site, and their number.
    """

    def __init__(self, shape: Shape, held_out: Corpus, share: tuple[int, int]) -> None:
        index, count = share
        drawn = Windows(held_out, batch=WINDOWS, context=shape.context, seed=_SEED, rank=0).draw()
        self._inputs, self._targets = (part[index::count] for part in drawn)
        with torch.random.fork_rng(devices=[]):  # training draws what it would draw without evaluation
            self._model = GPT(shape).eval()

    def run(self, strategy: Strategy, step: int) -> dict[str, object]:
        """Return the fields of an ``evaluation`` record. A collective call of the ranks of a site.

        ``heldout_loss`` is the mean over this rank's ``windows``, in nats; absent if this rank cannot hold the whole
        model, or the loss is not finite.
        """
        began_t = time.monotonic()
        fields: dict[str, object] = {"step": step, "outer_version": strategy.outer_version}
        loss = self._loss(strategy)
        if loss is not None:
            fields |= {"heldout_loss": loss, "windows": len(self._inputs)}
        t = time.monotonic()
        return {**fields, "t": t, "took_s": t - began_t}

    def _loss(self, strategy: Strategy) -> float | None:
        model = strategy.outer_model(self._model)
        if model is None or not len(self._inputs):
            return None
        with torch.no_grad():
            parts = [
                cross_entropy(model(inputs), targets).item() * len(inputs)
                for inputs, targets in zip(
                    *(torch.split(part, _AT_ONCE) for part in (self._inputs, self._targets)), strict=True
                )
            ]
        mean = sum(parts) / len(self._inputs)
        return mean if abs(mean) < float("inf") else None  # neither infinite nor NaN
