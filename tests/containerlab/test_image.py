"""The image of the agents, built ahead of the tests that need it (tests/ahead.py) by running this test alone."""

from __future__ import annotations

import json
import subprocess

import testbed


def test_docker_has_the_image_of_this_version(containers: str) -> None:
    said = subprocess.run(["docker", "image", "inspect", containers], capture_output=True, text=True, check=True).stdout
    (image,) = json.loads(said)
    assert containers.endswith(f":{testbed.__version__}")
    assert image["Os"] == "linux"
    # Gibibytes would be CUDA's, which no rank here uses.
    assert image["Size"] < 2_000_000_000
