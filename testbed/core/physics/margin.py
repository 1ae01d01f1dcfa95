"""Optical margin to frame loss: a fiber is error-free until, within a decibel, it is unusable.

The model is IEEE 802.3 client optics at 100 Gb/s per lane: PAM4 with RS(544,514) over 10-bit symbols (802.3-2022,
clause 119), which corrects 15 symbols per codeword. The margin is the received power above that at which the bit error
ratio before correction is 2.4e-4, the limit of the optical clauses (124.1.1); there the standard requires a frame loss
ratio of at most 1.7e-12.

Our assumptions: bit errors are independent, and the noise is Gaussian and the receiver's own, so that 1 dB less light
costs 2 dB of signal-to-noise ratio; one curve represents all optics. Coherent modems use other codes at other error
ratios, with a fall-off as steep.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["LEAST_MARGIN_DB", "LIMIT_BER", "frame_loss", "margin_db"]

LIMIT_BER: Final = 2.4e-4
"""Bit error ratio before correction at a margin of 0."""

LEAST_MARGIN_DB: Final = -2.0
"""Below this margin no frame arrives."""

_MOST_MARGIN_DB: Final = 1.0
_SYMBOLS, _DATA_SYMBOLS, _MENDED, _SYMBOL_BITS = 544, 514, 15, 10
_INTERLEAVED: Final = 2
"""Number of interleaved codewords: a frame needs all of them."""

_TRANSCODED: Final = 257 / 256
_FRAME_BYTES: Final = 1538
"""A full Ethernet frame with preamble and gap."""


def frame_loss(margin: float, frame_bytes: int = _FRAME_BYTES) -> float:
    """Return the probability that a frame is lost at ``margin`` dB (negative: too little light).

    A frame is lost with any of its codewords.

    >>> f"{frame_loss(0, 84):.1e}", f"{frame_loss(-0.5):.1e}"
    ('1.7e-12', '1.6e-04')
    """
    snr = _LIMIT_SNR * 10 ** (2 * margin / 10)
    symbol = -math.expm1(_SYMBOL_BITS * math.log1p(-_bit_error(snr)))
    bits = frame_bytes * 8 * _TRANSCODED
    touched = _INTERLEAVED * (1 + bits / (_INTERLEAVED * _DATA_SYMBOLS * _SYMBOL_BITS))
    failed = _more_than(_MENDED, _SYMBOLS, symbol)
    return 1.0 if failed >= 1.0 else -math.expm1(touched * math.log1p(-failed))


def margin_db(loss: float, frame_bytes: int = _FRAME_BYTES) -> float:
    """Return the margin at which :func:`frame_loss` is ``loss`` (1e-30 to 1), by bisection."""
    low, high = LEAST_MARGIN_DB, _MOST_MARGIN_DB
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if frame_loss(middle, frame_bytes) > loss else (low, middle)
    return high


def _bit_error(snr: float) -> float:
    """Return the bit error ratio of Gray-coded PAM4 at a signal-to-noise ratio (Proakis, Digital Communications)."""
    return 3 / 8 * math.erfc(math.sqrt(snr / 10))


def _more_than(most: int, trials: int, p: float) -> float:
    """Return the probability of more than ``most`` successes, summed term by term to keep precision down to 1e-300."""
    total = 0.0
    for count in range(most + 1, trials + 1):
        combinations = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
        term = math.exp(combinations + count * math.log(p) + (trials - count) * math.log1p(-p))
        total += term
        if count > trials * p and term < 1e-17 * total:
            break
    return min(1.0, total)


def _limit_snr() -> float:
    low, high = 1.0, 1e4
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _bit_error(middle) > LIMIT_BER else (low, middle)
    return high


_LIMIT_SNR: Final = _limit_snr()
