"""Two hosts joined by Mininet's TCLinks, written as a Mininet user would; run by netem_vs_mininet.py.

Needs the Python of Debian's `mininet` package (/usr/bin/python3) and no testbed code. Reads a JSON list of links from
the first line of stdin, each ``{"delay": "200us", "bw": Mb/s, "loss": percent}`` (all optional; otherwise TCLink's
defaults), numbered from the first argument: link k has the addresses 10.76.k.1 and .2. Writes
``{"pids", "build_s"}``, keeps the network until stdin ends, then writes ``{"remove_s"}``.
"""

import json
import sys
import time

from mininet.link import TCLink
from mininet.log import setLogLevel
from mininet.net import Mininet


def main():
    wanted = json.loads(sys.stdin.readline())
    first = int(sys.argv[1])
    setLogLevel("error")
    Mininet.inited = True  # otherwise Mininet raises limits of the whole host (mininet.util.fixLimits)
    began = time.perf_counter()
    net = Mininet(controller=None, build=False)
    try:
        hosts = [net.addHost(name, ip=None) for name in ("h1", "h2")]
        for number, options in enumerate(wanted, first):
            names = {"intfName1": f"via{number}", "intfName2": f"via{number}"}
            sides = {f"params{side}": {"ip": f"10.76.{number}.{side}/24"} for side in (1, 2)}
            net.addLink(*hosts, cls=TCLink, **names, **sides, **options)
        net.build()
        print(json.dumps({"pids": [host.pid for host in hosts], "build_s": time.perf_counter() - began}), flush=True)
        sys.stdin.read()
    finally:
        ending = time.perf_counter()
        net.stop()
    print(json.dumps({"remove_s": time.perf_counter() - ending}), flush=True)


if __name__ == "__main__":
    main()
