"""Train across two fibers, cut one in the middle, heal it, and report the cost.

    sudo .venv/bin/python examples/cut_and_heal.py

Needs root: it creates network namespaces, and removes them whatever happens. Takes under two minutes on two cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import testbed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of training; the fiber is down from 40 %% to 50 %%")
    parser.add_argument("--name", help="of the lab, if the topology's name is taken")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the report")
    arguments = parser.parse_args()
    steps = arguments.steps

    topology = testbed.load("metro-40km", set={"links.north.km": 80})

    with testbed.up(topology, name=arguments.name) as lab:  # measured, or FidelityError
        print(lab.certificate)
        job = lab.train(steps=steps)  # or lab.launch(["python", "x.py"])
        job.wait_for(step=steps * 4 // 10, timeout=60)
        with lab.cut("north") as cut:  # healed on exit, always
            job.wait_for(step=steps // 2, timeout=60)
        job.wait(timeout=120)
        report = lab.report()

    assert cut.ended is not None and report.recovery_s is not None  # the cut was healed, and the report has a fault
    print(f"north was down for {cut.ended - cut.began:.2f} s")
    print(f"goodput {report.goodput:.3f}, longest gap between commits {report.recovery_s * 1e3:.0f} ms")
    report.save(arguments.out)
    print(f"report: {arguments.out / 'index.html'}")


if __name__ == "__main__":
    main()
