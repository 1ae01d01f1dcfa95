"""Entry point of a lab's keeper process. It starts the fork server, which imports torch, before its own imports."""

from __future__ import annotations

import gc
import json
import signal
import sys
from functools import partial
from pathlib import Path

from testbed.errors import TestbedError
from testbed.host import fork_server
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.host.linux.program_user import ProgramUser

SWITCH_S = 0.0005
"""Interval of the interpreter's thread switch: a fault that is due waits so long for a thread that answers a request.
Python's default of 5 ms is all the lateness that a scheduled fault may have."""


def main(arguments: list[str]) -> int:
    """``python -m testbed.keeper.main FOLDER [--agents] [--containers] [--user=JSON]``; prints "ready" once it listens.

    ``--user``: who ranks in namespaces run as (:meth:`ProgramUser.to_dict`).
    """
    folder = LabFolder(Path(arguments[0]))
    process.allow_many_files()
    sys.setswitchinterval(SWITCH_S)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if not folder.path.is_dir():
        return 3  # the lab was taken down meanwhile: nothing of it may come back
    containers = "--containers" in arguments  # each has a fork server of its own, once it exists
    # The main thread forks, because PDEATHSIG follows the forking thread and this one lives as long as the process.
    child = fork_server.start() if "--agents" in arguments and not containers else None
    gc.disable()  # imports create no garbage
    from testbed.keeper.event_log import bound_log
    from testbed.keeper.keeper import Keeper
    from testbed.keeper.keeper_api import KeeperApi
    from testbed.keeper.protocol import decode_call
    from testbed.keeper.service import Service

    gc.freeze()
    gc.enable()
    bound_log(folder.keeper_log, folder.older_keeper_log)
    try:
        users = [ProgramUser.from_dict(json.loads(word[7:])) for word in arguments if word.startswith("--user=")]
        keeper = Keeper(folder, containers=containers, fork_server=child, user=users[0] if users else None)
    except FileNotFoundError:
        return 3  # as above, between that check and the lock
    except TimeoutError:
        print(f"lab {folder.name} already has a keeper", flush=True)
        return 3
    except TestbedError as error:
        print(error, flush=True)
        return error.exit_code
    signal.signal(signal.SIGTERM, lambda *_: keeper.terminate())
    service = Service(
        folder.socket,
        lambda call, caller: call.answer(KeeperApi(keeper, caller)),
        keeper.closed,
        partial(decode_call, KeeperApi),
    )
    keeper.serve()
    service.close()
    gc.freeze()  # `down` waits for this process to end: skip collecting garbage on exit
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
