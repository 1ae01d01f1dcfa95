"""The certificate of a fabric: what is outside tolerance counts against the lab, what could not be measured is told."""

from __future__ import annotations

from dataclasses import replace

from testbed.core.certification.certificate import Certificate
from testbed.core.certification.certificate_text import sentences
from testbed.core.certification.fabric_certificate import FabricCertificate, FabricRate

GOOD = FabricCertificate(
    "east",
    400e6,
    800e6,
    2.0,
    (FabricRate("east-0 > east-1", 400e6, 396e6), FabricRate("core", 800e6, 801e6)),
)


def _certificate(*fabrics: FabricCertificate) -> Certificate:
    return Certificate("lab", "lab", 0.0, "fiberd", (), True, "", 0.1, fabrics=fabrics)


def _why(fabric: FabricCertificate) -> list[str]:
    return [why for why in _certificate(fabric).why if "fabric" in why]


def test_rates_within_five_percent_are_certified() -> None:
    assert (GOOD.ok, GOOD.verdict, _why(GOOD)) == (True, "ok", [])
    assert GOOD.measured(core=False) == (396e6,) and GOOD.measured(core=True) == (801e6,)
    for share, ok in ((0.951, True), (0.949, False), (1.049, True), (1.051, False)):
        found = replace(GOOD, rates=(FabricRate("east-0 > east-1", 400e6, share * 400e6),))
        assert found.ok is ok and bool(_why(found)) is not ok


def test_what_came_to_nothing_counts_and_what_was_not_measured_is_a_note() -> None:
    silent = replace(GOOD, rates=(FabricRate("east-0 > east-1", 400e6),))
    assert silent.verdict == "bad" and "no packet train arrived" in _why(silent)[0]
    assert _why(replace(GOOD, rates=())) == ["fabric of east: not measured"]
    slow = replace(GOOD, rates=(FabricRate("east-0 > east-1", 400e6, note="too long"),))
    assert slow.verdict == "inconclusive" and not _why(slow)
    assert any("too long" in note for note in _certificate(slow).notes)
    low = replace(GOOD, rates=(FabricRate("core", 800e6, 600e6),))
    assert "core: 600 Mb/s, expected 800 Mb/s within 5%" in _why(low)[0] and "larger scale" in _why(low)[0]


def test_it_is_written_and_read_and_absent_where_there_is_none() -> None:
    certificate = _certificate(GOOD)
    assert Certificate.from_dict(certificate.to_dict()).fabrics == (GOOD,)
    assert "fabrics" not in _certificate().to_dict()
    assert Certificate.from_dict({"fabrics": [{"site": "east"}]}).fabrics[0].verdict == "bad"
    assert not sentences(certificate), "nothing of links that were not measured"
