"""Build a testbed plan with Mininet and remove it; run by lab_vs_mininet.py.

Needs the Python of Debian's `mininet` package (/usr/bin/python3) and no testbed code. Reads a plan as JSON (a list of
Steps as written to the journal) on stdin; writes ``{"build_s": …, "remove_s": …, "nodes": …}``.

``addHost`` creates namespaces, ``addLink`` cables. With ``--whole`` the rest of the plan (bridges, addresses, routes,
sysctls) is applied in the fastest way that Mininet offers: one shell command per node with one `ip -batch`. Mininet's
own switches are not used: they need a daemon (Open vSwitch) or brctl (LinuxBridge), and the testbed itself creates
kernel bridges.
"""

import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from mininet.log import setLogLevel
from mininet.net import Mininet


def ip_line(step):
    """Return one Step as (namespace, lines for `ip -batch`)."""
    kind = step["step"]
    if kind == "Bridge":
        lines = [f"link add {step['name']} mtu {step['mtu']} type bridge stp_state 0 forward_delay 0"]
        for port in step["ports"]:
            lines.append(f"link set {port} master {step['name']}")
            if step["isolated"]:
                lines.append(f"link set {port} type bridge_slave isolated on")
        return step["namespace"], [*lines, f"link set {step['name']} up"]
    if kind == "Address":
        nodad = " nodad" if ":" in step["cidr"] else ""
        return step["namespace"], [f"addr add {step['cidr']} dev {step['interface']}{nodad}"]
    if kind == "Route":
        metric = f" metric {step['metric']}" if step["metric"] else ""
        if not step["hops"]:
            return step["namespace"], [f"route add blackhole {step['destination']}{metric}"]
        hops = [f"via {gateway} dev {interface}" for gateway, interface in step["hops"]]
        path = hops[0] if len(hops) == 1 else " ".join("nexthop " + hop for hop in hops)
        return step["namespace"], [f"route add {step['destination']}{metric} {path}"]
    if kind == "Carrier":
        return step["namespace"], [f"link set {step['interface']} {'up' if step['up'] else 'down'}"]
    return None, []


def build(net, plan, whole, folder):
    batches, sysctls = defaultdict(list), defaultdict(list)
    for step in plan:
        kind = step["step"]
        if kind == "Namespace":
            net.addHost(step["name"], ip=None)
        elif kind == "Veth":
            a, b = step["a"], step["b"]
            net.addLink(a["namespace"], b["namespace"], intfName1=a["name"], intfName2=b["name"])
            for end in (a, b):
                up = " up" if end["up"] else ""
                batches[end["namespace"]].append(f"link set {end['name']} mtu {step['mtu']}{up}")
        elif kind == "Sysctls":
            sysctls[step["namespace"]] += step["values"]
        else:
            name, lines = ip_line(step)
            batches[name] += lines
    net.build()
    if not whole:
        return
    for node in net.hosts:
        writes = [f"echo '{value}' 2>/dev/null > /proc/sys/{key}" for key, value in sysctls[node.name]]
        script = folder / node.name
        script.write_text("\n".join([*writes, "ip -force -batch - <<'END'", *batches[node.name], "END", ""]))
        output = node.cmd(f"sh {script} 2>&1")
        if output.strip():
            raise SystemExit(f"{node.name}: {output}")


def check(net):
    """Ping the first node from the last one over fabrics, gateways and the plant, which is bridged here."""
    plant = net["plant"]
    links = sorted({name[:-2] for name in plant.nameToIntf if name != "lo"})
    for link in links:
        plant.cmd(f"ip link add br-{link} type bridge; ip link set br-{link} up")
        for end in "ab":
            plant.cmd(f"ip link set {link}-{end} master br-{link}")
    nodes = [host for host in net.hosts if host.name.rpartition("-")[2].isdigit()]
    first, last = nodes[0], nodes[-1]
    for family, address in (("-4", "10.1.1.1"), ("-6", "fd5c:a1e:ac05:1::101")):
        sys.stderr.write(last.cmd(f"ping {family} -c 2 -W 2 {address}"))
    sys.stderr.write(first.cmd("ip -br addr; ip route"))


def main():
    whole = "--whole" in sys.argv
    plan = [step for step in json.load(sys.stdin) if step["step"] not in ("Fibers", "Shape")]
    setLogLevel("error")
    Mininet.inited = True  # otherwise Mininet raises limits of the whole host (mininet.util.fixLimits)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        net = Mininet(controller=None, build=False)
        try:
            build(net, plan, whole, Path(folder))
            built = time.perf_counter()
            nodes = len(net.hosts)
            if "--check" in sys.argv:
                check(net)
        finally:
            removing = time.perf_counter()
            net.stop()
        removed = time.perf_counter()
    json.dump({"build_s": built - began, "remove_s": removed - removing, "nodes": nodes}, sys.stdout)


if __name__ == "__main__":
    main()
