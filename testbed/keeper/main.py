"""The process of a lab's keeper, one per lab, from its beginning to its end."""

from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path

from testbed.errors import TestbedError
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.keeper.keeper import Keeper
from testbed.keeper.service import Service
from testbed.keeper.verbs import Verbs

SWITCH_S = 0.0005
"""How long a thread may go on where another waits for its turn: a fault that is due waits for whoever answers
a question. Python's own 5 ms is as long as a scheduled fault may be late."""


def main(arguments: list[str]) -> int:
    """``python -m testbed.keeper.main FOLDER [--agents] [--containers]``; says "ready" once it listens."""
    folder = LabFolder(Path(arguments[0]))
    process.allow_many_files()
    sys.setswitchinterval(SWITCH_S)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if not folder.path.is_dir():
        return 3  # taken down while we were starting: nothing of it may come back
    try:
        keeper = Keeper(folder, agents="--agents" in arguments, containers="--containers" in arguments)
    except TimeoutError:
        print(f"the lab {folder.name} has a keeper already", flush=True)
        return 3
    except TestbedError as error:
        print(error, flush=True)
        return error.exit_code
    signal.signal(signal.SIGTERM, lambda *_: keeper.terminate())
    service = Service(folder.socket, Verbs(keeper).answer, keeper.closed)
    keeper.serve()
    service.close()
    gc.freeze()  # whoever takes the lab down waits for our end: nothing is left to be collected
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
