"""Open a page in a browser; of a command that runs for a client of another host, in that client's."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from testbed.errors import StorageError, UserError

__all__ = ["open_page"]


def open_page(page: Path) -> None:
    """Raises UserError if there is no browser, StorageError if the page cannot be copied for the client."""
    import webbrowser

    from testbed.core.remote.leash_frames import PAGE_COPY

    if copy := os.environ.get(PAGE_COPY):
        try:
            shutil.copyfile(page, copy)
        except OSError as error:
            raise StorageError(f"cannot copy {page} for the client: {error.strerror}") from error
        return
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) or not webbrowser.open(
        page.resolve().as_uri()
    ):
        raise UserError(f"no browser is available on this host; copy {page} (a single file) to a machine that has one")
    sys.stdout.flush()
