"""The whole product on a kernel with netem: User-Mode Linux runs docker, containerlab and tests/netem_vm/containers.

It takes minutes on one CPU: conftest.py begins it as soon as there is an image, and this file, the last of its folder,
waits for what became of it.
"""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.netns


def test_docker_containerlab_and_netem_together(whole_on_netem: object, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = whole_on_netem.result()  # type: ignore[attr-defined]
    with capsys.disabled():
        print(" " + "; ".join(re.findall(r"^\d.* s: .*$", said, re.MULTILINE)), end=" ")
    assert status == 0, said
    assert "1 passed" in said and "skipped" not in said, said
