"""Running the command as a user would: another process, no HOME, no terminal."""

import os
import subprocess
import sys
from pathlib import Path

TINY = (
    *("--d-model", "6", "--n-modes", "5", "--field-bptt", "7", "--n-atoms-max", "32", "--atom-flush-every", "16"),
    *("--threads", "1"),
)
"""Flags of an atom that trains in no time, its sizes all different."""
TINY_STACK = (
    *("--depth", "2", "--width", "10", "--d-model", "6", "--n-modes", "5", "--field-bptt", "7", "--threads", "1"),
)
"""The same for a stack."""


def atomnative(
    *arguments: str | Path, cwd: Path | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run `python -m atomnative ARGUMENTS` to its end."""
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=bare_environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "atomnative", *map(str, arguments)]


def bare_environment() -> dict[str, str]:
    """The environment without HOME, and what torch needs of it."""
    return {"PATH": os.environ["PATH"]}


def refused(*arguments: str | Path, cwd: Path | None = None) -> str:
    """Run a command that must be refused: exit code 2, one line on stderr, which is returned."""
    done = atomnative(*arguments, cwd=cwd)
    assert done.returncode == 2, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("atomnative: ")
    return lines[0]
