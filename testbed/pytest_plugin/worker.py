"""The program of each rank: call the test's function and write its result.

The nodes' Python runs a copy of this file. It need not have pytest or the testbed, so this file imports only the
standard library.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import json
import os
import pickle
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any


def main() -> int:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    call = json.loads((folder / "call.json").read_text())
    # A rank that hangs prints its stacks, whichever thread holds the GIL, and exits.
    faulthandler.dump_traceback_later(call["within_s"], exit=True)
    try:
        _set_path(call["path"], tuple(call["python"]))
        _load(call["module"], call["file"])
        function, arguments, keywords = pickle.loads((folder / "arguments.pickle").read_bytes())
        (folder / f"ready-{rank}").touch()
        result: dict[str, Any] = {"value": pickle.dumps(function(*arguments, **keywords), protocol=4)}
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            error = RuntimeError("the function called sys.exit() and returned nothing")
        if isinstance(error, ModuleNotFoundError) and error.name == "pytest":
            error.msg += "; this node's Python has no pytest: put the function into a module that does not import it"
        result = {"traceback": _written(error), "summary": _summary(error), "error": _pickled(error)}
    _write(folder / f"result-{rank}", pickle.dumps(result, protocol=4))
    return 0 if "value" in result else 1


def _set_path(theirs: list[str], python: tuple[int, int]) -> None:
    """Let the function import what the test can. If the test's Python is another version, this one's modules go first,
    because the other's would not fit."""
    ours = sys.path[1:]  # without the folder of this file
    same = sys.version_info[:2] == python
    sys.path[:] = list(dict.fromkeys([*theirs, *ours] if same else [*ours, *theirs]))


def _load(name: str, file: str | None) -> ModuleType:
    """Import the function's module by name, as pickle will; from its file if it is not importable (importlib mode)."""
    try:
        module = importlib.import_module(name)
    except PermissionError as error:
        if file is None or error.filename != file:
            raise
        why = f"{error.strerror}; ranks run as user {os.getuid()} here, who needs access to all folders above"
        raise PermissionError(error.errno, why, error.filename) from None
    except ModuleNotFoundError as error:
        if file is None or not (error.name and f"{name}.".startswith(f"{error.name}.")):
            raise
    else:
        if file is None or getattr(module, "__file__", None) in (None, file):
            return module
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _written(error: BaseException) -> str:
    """Format the traceback without the frames of this file, unless there are no others."""
    inner = error.__traceback__
    while inner is not None and inner.tb_frame.f_code.co_filename == __file__ and inner.tb_next is not None:
        inner = inner.tb_next
    return "".join(traceback.format_exception(type(error), error, inner))


def _summary(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _pickled(error: BaseException) -> bytes | None:
    """Pickle an exception; None if it cannot be pickled and restored."""
    try:
        data = pickle.dumps(error, protocol=4)
        pickle.loads(data)
    except Exception:
        return None
    return data


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    beside: Any = path.with_suffix(".part")
    beside.write_bytes(data)
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
