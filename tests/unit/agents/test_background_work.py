"""A program that ends while a thread of a strategy is in torch: it ends by its own status, not by SIGABRT."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading
from datetime import timedelta
import torch.distributed as dist
from testbed_agents import background_work

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
inside = threading.Event()

def work():
    inside.set()
    try:
        store.wait(["never"], timedelta(milliseconds=500))  # in C++, without the interpreter's lock
    except RuntimeError:
        pass
    finally:
        print("done", flush=True)
        background_work.end()

background_work.begin()
threading.Thread(target=work, daemon=True).start()
inside.wait()
sys.exit(3)
"""


def test_a_programs_end_waits_for_work_beside_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "done\n")
    assert "terminate" not in done.stderr
