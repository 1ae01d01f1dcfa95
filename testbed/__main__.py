"""``python -m testbed``: the command line, where no script ``testbed`` was installed."""

from __future__ import annotations

from testbed.cli.entry import main

if __name__ == "__main__":
    main()
