"""What the README says can be typed, and does what it says."""

import re
import shlex
import sys
from io import StringIO
from pathlib import Path

import pytest

from atomnative.cli.main import main
from tests.commands import TINY_STACK

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^    \.venv/bin/atomnative (.+)$", README, flags=re.MULTILINE)
TABLE_FLAGS = re.findall(r"^\| `(-.+?)` \|", README, flags=re.MULTILINE)
SHORT = {"train": (*TINY_STACK, "--total-ticks", "60", "--ckpt-every", "20", "-B", "3"), "chat": ("--max-packets", "5")}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus" / "deep").mkdir(parents=True)
    for name in ("my.txt", "more.txt", "corpus/deep/one.txt"):
        (tmp_path / name).write_bytes(b"Once upon a time there was a text.\n" * 20)
    monkeypatch.setattr(sys, "stdin", StringIO("hello\n"))
    return tmp_path


def test_the_readme_shows_how_to_train_resume_and_talk() -> None:
    assert [command.split()[0] for command in COMMANDS] == ["train", "train", "train", "chat", "chat"]


def test_its_commands_run_in_their_order(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, by_glob, again, *chats = (shlex.split(command) for command in COMMANDS)
    main([*first, *SHORT["train"], "--run-ticks", "20"])
    main(again)
    out = capsys.readouterr().out
    assert "resumed runs/mine/atom_native_step_20_batched.pt at tick 20" in out
    assert "finished at tick 60" in out
    for chat in chats:
        main([*chat, *SHORT["chat"]])
    main([*by_glob, *SHORT["train"], "--output-dir", "elsewhere"])
    assert "finished at tick 60" in capsys.readouterr().out


def test_its_flags_are_taken(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "--data", "my.txt", *[word for flags in TABLE_FLAGS for word in flags.split()], *SHORT["train"]])
    assert "finished at tick 60" in capsys.readouterr().out


def test_its_python_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "--data", "my.txt", "--output-dir", "runs/mine", *SHORT["train"]])
    (code,) = re.findall(r"```python\n(.+?)```", README, flags=re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out


def test_what_is_where_is_there() -> None:
    tree = README[README.index("## What is where") :]
    for folder in re.findall(r"^      (\w+)/ ", tree, flags=re.MULTILINE):
        assert (ROOT / "src" / "atomnative" / folder).is_dir(), folder
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link).exists(), link
