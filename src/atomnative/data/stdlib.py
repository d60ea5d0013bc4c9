"""A corpus that every machine has: the source text of the running interpreter's standard library."""

import os
import sysconfig
from pathlib import Path

LEFT_OUT = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})


def stdlib_paths() -> list[Path]:
    """The standard library's `.py` files, tests and empty files left out, sorted by path."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[Path] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        found += [Path(folder, name) for name in files if name.endswith(".py")]
    return sorted(path for path in found if path.stat().st_size > 0)
