"""Your own library under `testbed validate`: a rank program, here with an all_reduce that gathers on rank 0.

    sudo .venv/bin/testbed validate examples/validate_my_library.py --topology metro-40km --suite quick

docs/validate.md has the protocol that `main` implements. A package registers its program under a name with the entry
point `star = "validate_my_library:registered"` in the group `testbed.libraries`.
"""

import socket
import time
from collections.abc import Mapping

import numpy as np
from testbed_agents.adapters.helper import Adapter, Offer, main


class Star(Adapter):
    library, version = "star", "1.0"
    offers: Mapping[str, Offer] = {"all_reduce": Offer(("int32", "int64", "float32", "float64"), ("sum", "max"), True)}
    rebuilds = True

    def __init__(self):
        self.peers = []

    def join(self, world):
        self.leave()  # what is left of the previous attempt
        if world.rank == 0:
            with socket.create_server((world.master, world.port)) as server:
                server.settimeout(world.timeout_s)
                self.peers = [server.accept()[0] for _ in range(1, world.size)]
        deadline = time.monotonic() + world.timeout_s
        while world.rank and not self.peers:
            try:
                self.peers = [socket.create_connection((world.master, world.port), world.timeout_s)]
            except ConnectionRefusedError:  # rank 0 does not listen yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        for peer in self.peers:
            peer.settimeout(world.timeout_s)

    def leave(self):
        while self.peers:
            self.peers.pop().close()

    def receive(self, peer, into):
        left = memoryview(into.view(np.uint8))
        while left:
            if not (count := peer.recv_into(left)):
                raise ConnectionError("a rank is gone")
            left = left[count:]

    def all_reduce(self, call, given, room):
        combine = np.maximum if call.reduction == "max" else np.add
        if call.rank == 0:
            for peer in self.peers:
                self.receive(peer, room)
                combine(given, room, out=given)
        for peer in self.peers:
            peer.sendall(given.view(np.uint8))
        if call.rank > 0:
            self.receive(self.peers[0], into=room)
        return given if call.rank == 0 else room


def registered():
    from testbed.core.validation.library import PYTHON, CollectiveLibrary

    return CollectiveLibrary("star", "star over TCP", argv=(PYTHON, "-m", "validate_my_library"), modules=("numpy",))


if __name__ == "__main__":
    main(Star())
