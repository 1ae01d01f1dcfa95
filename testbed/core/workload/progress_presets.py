"""Presets: the lines that common training programs print, as their own sources write them.

=============  =====================================================================================================
nanogpt        ``train.py`` of karpathy/nanoGPT, and programs that print as it does
torchtitan     ``components/metrics.py`` of pytorch/torchtitan, with its colours or without
hf-trainer     transformers' ``Trainer``: the step from its progress bar, the loss from the dicts that it prints
lightning      Lightning's progress bars, TQDM's and Rich's: batches as steps, counted over all epochs
=============  =====================================================================================================

Each is tested on output captured from the program itself (``tests/unit/core/workload/captured``).
"""

from __future__ import annotations

from typing import Final

from testbed.core.workload.progress_source import LinePattern

__all__ = ["PRESETS"]

_NUMBER: Final = r"[-+]?(?:\d[\d,]*+\.?+\d*+|\.\d++)(?:[eE][-+]?\d++)?+|[-+]?(?:nan|inf)"
_LOSS: Final = f"(?P<train_loss>{_NUMBER})"

_NANOGPT: Final = (
    rf"\biter (?P<step>\d+): loss {_LOSS}",
    # Printed before the step of the same number is run, so it is recorded with that step.
    rf"\bstep \d+: train loss [^ ,]+, val loss (?P<val_loss>{_NUMBER})",
    r"\btokens per iteration will be: (?P<tokens_per_step>[\d,]+)",
)

_TORCHTITAN: Final = (
    rf"(?<!validate )\bstep:\s+(?P<step>\d+)\s+loss:\s+{_LOSS}",
    rf"\bvalidate step:\s+\d+\s+loss:\s+(?P<val_loss>{_NUMBER})",
    r"\bTrainer is initialized with .*\b(?P<tokens_per_step>\d+) tokens per train step,",
    r"\bglobal batch size (?P<sequences_per_step>\d+), .*\bsequence length (?P<tokens_per_sequence>\d+)",
)

# tqdm's own bar, without a description: others (loading, mapping) have one. A nested bar, as of an evaluation, ends by
# moving the cursor up again, which the line keeps.
_HF_TRAINER: Final = (
    r"^(?:\[\w+\]:)?\s*\d+%\|[^|]*+\|\s*(?P<step>\d+)/\d+ \[[^\]]*+\]\s*+$",
    # transformers 5 writes its numbers in quotes.
    rf"^[^{{}}]{{0,40}}\{{(?=[^{{}}]*'epoch':)(?:[^{{}}]*, )?'loss': '?{_LOSS}'?"
    rf"(?:[^{{}}]*'num_input_tokens_seen': '?(?P<tokens_seen>\d+))?",
    rf"^[^{{}}]{{0,40}}\{{'eval_loss': '?(?P<val_loss>{_NUMBER})",
)

_LIGHTNING_LOSS: Final = rf"(?:.*?(?<![\w/])(?:train[_/])?loss(?:_step)?(?:=|: ){_LOSS})?"
# Not batch 0: at the end of an epoch TQDM's bar is drawn with it once more, still with the number of that epoch.
_LIGHTNING: Final = (
    r"\bEpoch (?P<epoch>\d+):[^|]{0,8}\|[^|]*+\|\s*(?P<epoch_step>[1-9]\d*)/(?P<epoch_steps>\d+|\?) \["
    + _LIGHTNING_LOSS,
    r"\bEpoch (?P<epoch>\d+)/-?\d+\s+[━╸╺ ]*+\s*(?P<epoch_step>[1-9]\d*)/(?P<epoch_steps>\d+|-+) \d+:\d\d:\d\d"
    + _LIGHTNING_LOSS,
)

PRESETS: Final = {
    "nanogpt": LinePattern(_NANOGPT, preset="nanogpt"),
    "torchtitan": LinePattern(_TORCHTITAN, preset="torchtitan"),
    "hf-trainer": LinePattern(_HF_TRAINER, preset="hf-trainer"),
    # Rich draws no bar without a terminal, unless it is told that the output goes to one. Its lines must not wrap.
    "lightning": LinePattern(_LIGHTNING, preset="lightning", environment={"COLUMNS": "200", "TTY_COMPATIBLE": "1"}),
}
"""By name; ``testbed.core.workload.progress_schema`` reads a name as its preset."""
