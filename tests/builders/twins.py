"""Twins in the words of ``--strategy``: ``twin("decoupled:every=10,bits=8", "west east east")``."""

from __future__ import annotations

from typing import Any

from testbed.core.training.layout import Layout, gpt_tensors
from testbed.core.training.strategies_built import twin_class
from testbed.core.workload.strategy_section import parse_words


def twin(words: str, sites: str = "west west east east", *, layers: int = 4, steps: int = 100, **fields: Any) -> Any:
    """Return the twin of a job with a rank at each of ``sites``; ``fields``: further ones of its layout."""
    name, written = parse_words(words)
    strategy = twin_class(name)
    options = {option.name: option.parse(written[option.name]) for option in strategy.options if option.name in written}
    assert options.keys() == written.keys()
    layout = {"tensors": gpt_tensors(layers), "layers": layers, "steps": steps, **fields}
    return strategy(options, Layout(tuple(sites.split()), **layout))
