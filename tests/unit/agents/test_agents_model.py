"""The agents' GPT: what it is before, during and after training."""

from __future__ import annotations

import math

import pytest
import torch
from testbed_agents.training.model import GPT, Shape, cross_entropy, fingerprint, parameter_count

SMALL = Shape(layers=2, heads=2, width=32, context=32)


def model(shape: Shape = SMALL, seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(shape)


def test_untrained_it_guesses_among_256_bytes() -> None:
    tokens = torch.randint(256, (16, 33), generator=torch.Generator().manual_seed(1))
    loss = cross_entropy(model()(tokens[:, :-1]), tokens[:, 1:])
    assert loss.item() == pytest.approx(math.log(256), rel=0.05)


def test_parameters_are_what_the_shape_says() -> None:
    layers, width, context = 4, 96, 64
    block = 4 * width  # two norms
    block += width * 3 * width + 3 * width + width * width + width  # attention
    block += width * 4 * width + 4 * width + 4 * width * width + width  # perceptron
    expected = 256 * width + context * width + layers * block + 2 * width  # the embedding once: it is tied
    assert parameter_count(GPT(Shape())) == expected
    assert 400_000 < expected < 600_000


def test_no_buffer_that_ddp_would_broadcast_at_every_step() -> None:
    assert list(model().buffers()) == []


def test_no_byte_sees_those_after_it() -> None:
    one = torch.randint(256, (1, 32), generator=torch.Generator().manual_seed(2))
    other = one.clone()
    other[0, 20:] = (other[0, 20:] + 1) % 256
    it = model()
    before, after = (it(one) - it(other))[0].abs().amax(dim=1).split([20, 12])
    assert before.max().item() < 1e-5
    assert after.min().item() > 1e-3


def test_it_learns_a_short_text_by_heart() -> None:
    text = torch.tensor(list(b"two campuses, one fiber, no loss."), dtype=torch.long)[None, :33]
    it = model()
    optimizer = torch.optim.AdamW(it.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = cross_entropy(it(text[:, :-1]), text[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_the_seed_decides_the_fingerprint() -> None:
    assert fingerprint(model(seed=3)) == fingerprint(model(seed=3))
    assert fingerprint(model(seed=3)) != fingerprint(model(seed=4))


def test_the_fingerprint_notices_one_parameter() -> None:
    it = model()
    before = fingerprint(it)
    with torch.no_grad():
        it.last_norm.bias[5] += 1e-6
    assert fingerprint(it) != before


@pytest.mark.parametrize(
    ("shape", "words"), [({"width": 10, "heads": 4}, "multiple of heads"), ({"layers": 0}, "at least 1")]
)
def test_impossible_shapes_are_refused(shape: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Shape(**shape)
