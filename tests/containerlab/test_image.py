"""The image of the agents. It is built beside tests of other folders; all other tests of this folder run alone."""

from __future__ import annotations

import json
from typing import Any

from builders import bare_machine
from builders.commands import captured, run_line

import testbed
from testbed.host.drivers import images

PACKAGES = """
import torch
from importlib.metadata import distributions
files = {file.locate() for package in distributions() for file in package.files or ()}
print(torch.version.cuda, sum(file.stat().st_size for file in files if file.is_file()))
"""


def test_docker_has_the_image_of_this_version(containers: str) -> None:
    image = inspected(containers)
    assert containers.endswith(f":{testbed.__version__}")
    assert image["Os"] == "linux"
    words = ["docker", "run", "--rm", "--network", "none", containers, "python", "-c", PACKAGES]
    cuda, packages = captured(words, check=True).stdout.split()
    base_and_packages = inspected(images.BASE)["Size"] + int(packages)
    assert image["Size"] < base_and_packages + 50_000_000, "the image has other content"
    # Ranks do not use CUDA's libraries: the image has them only if no index or folder has a CPU build.
    if cuda == "None":
        assert image["Size"] < 2_000_000_000
    else:
        assert bare_machine.wheels() is None


def inspected(image: str) -> dict[str, Any]:
    output = run_line("docker image inspect", image)
    (description,) = json.loads(output)
    return dict(description)
