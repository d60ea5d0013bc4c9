"""What a user can do wrong: one line that names culprit and remedy, exit code 2, and a disk left as it was."""

import hashlib
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from atomnative.checkpoint.file import read_checkpoint
from atomnative.cli.main import main
from tests.commands import TINY, TINY_STACK, refused

NEWEST = "atom_native_step_40_batched.pt"
OLDER = "atom_native_step_20_batched.pt"
TRAIN = ("train", "--data", "text.txt", "--output-dir", "out", *TINY, "-B", "3", "--total-ticks", "20", "--no-samples")
SINGLE = ("train-single", "--data", "text.txt", "--output-dir", "out", *TINY, "--steps", "5")
STACK = ("train", "--data", "text.txt", "--output-dir", "out", *TINY_STACK, "-B", "3", "--total-ticks", "20")
STACK_SINGLE = ("train-single", "--data", "text.txt", "--output-dir", "out", *TINY_STACK, "--steps", "5")
RESUME = ("train", "--data", "text.txt", "--output-dir", "out", "--total-ticks", "60", "--no-samples")
CHAT = ("chat", "--prompt", "hi", "--max-packets", "3")

Words = tuple[str, ...]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a text and the run folder `run`, of two checkpoints, trained on it."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.chdir(folder)
        Path("text.txt").write_bytes(b"Some words, and a few more.\n" * 8)
        main([*TRAIN, "--output-dir", "run", "--total-ticks", "40", "--ckpt-every", "20"])
    return folder


@pytest.fixture
def here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a command: a copy of the trained one, with files that no run can use."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").touch()
    Path("one.txt").write_bytes(b"a")
    Path("folder").mkdir()
    return tmp_path


def on_disk(folder: Path) -> dict[str, str]:
    """Everything in a folder, files by their content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


Refused = Callable[..., str]


@pytest.fixture
def refused_here(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must be refused, in this process: exit code 2, and one line on stderr, which it returns."""

    def run(*arguments: str | Path) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([*map(str, arguments)])
        err = capsys.readouterr().err
        assert stopped.value.code == 2
        assert err.startswith("atomnative: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1, err
        return err

    return run


def tells(line: str, words: Words) -> None:
    """The line has all these words, whether it names a flag or the setting behind it."""
    plain = line.replace("_", "-")
    missing = [word for word in words if word.replace("_", "-") not in plain]
    assert not missing, f"{missing} not in: {line}"


# -- a process of its own ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*TRAIN, "-B", "0"), ("--batch-size", "at least 1", "0")),
        (("train", "--data-glob", "no/such/*.txt"), ("no/such/*.txt", "check the pattern")),
        ((*CHAT, "--checkpoint", "text.txt"), ("text.txt", "no checkpoint", "use another")),
        (("dance",), ("dance", "train", "chat")),
    ],
    ids=["a number", "a pattern", "a checkpoint", "a command"],
)
def test_a_mistake_is_one_line_and_exit_code_2_without_home_or_terminal(
    here: Path, arguments: tuple[str, ...], words: Words
) -> None:
    line = refused(*arguments, cwd=here)
    assert "Traceback" not in line
    tells(line, words)


# -- commands that cannot be done -------------------------------------------------------------------------------------

CANNOT_BE_DONE: dict[str, tuple[tuple[str, ...], Words]] = {
    # data
    "no data at all": (("train", "--output-dir", "out", *TINY), ("no data", "--data", "--data-glob")),
    "a pattern without a match": (("train", "--output-dir", "out", "--data-glob", "*.nope"), ("*.nope", "--data-glob")),
    "a pattern that matches folders only": (("train", "--output-dir", "out", "--data-glob", "fold*"), ("fold*",)),
    "a missing file": ((*TRAIN, "--data", "missing.txt"), ("missing.txt", "does not exist", "check the path")),
    "a missing file among good ones": ((*TRAIN, "--data", "text.txt", "missing.txt"), ("missing.txt",)),
    "an empty shard": ((*TRAIN, "--data", "text.txt", "empty.txt"), ("empty.txt", "is empty", "leave it out")),
    "a folder as a file": ((*TRAIN, "--data", "folder"), ("folder", "--data-glob")),
    "a corpus of one byte": ((*TRAIN, "--data", "one.txt"), ("one.txt", "1 byte", "at least 2")),
    "a shard for both trainers": ((*SINGLE, "--data", "empty.txt"), ("empty.txt", "is empty")),
    # sizes
    "no streams": ((*TRAIN, "-B", "0"), ("--batch-size", "at least 1", "not 0")),
    "less than no streams": ((*TRAIN, "-B", "-3"), ("--batch-size", "at least 1", "not -3")),
    "no channels": ((*TRAIN, "--d-model", "0"), ("d-model", "at least 1", "not 0")),
    "less than no modes": ((*TRAIN, "--n-modes", "-1"), ("n-modes", "at least 1", "not -1")),
    "no atoms": ((*TRAIN, "--n-atoms-max", "0"), ("n-atoms-max", "at least 1", "not 0")),
    "no ticks": ((*TRAIN, "--total-ticks", "0"), ("--total-ticks", "at least 1", "not 0")),
    "no ticks of this start": ((*TRAIN, "--run-ticks", "0"), ("--run-ticks", "at least 1", "not 0")),
    "no steps": ((*SINGLE, "--steps", "0"), ("--steps", "at least 1", "not 0")),
    "a negative interval": ((*TRAIN, "--ckpt-every", "-1"), ("--ckpt-every", "at least 0", "not -1")),
    "a negative episode": ((*TRAIN, "--episode-length", "-5"), ("--episode-length", "not -5")),
    "no threads": ((*TRAIN, "--threads", "0"), ("--threads", "at least 1", "not 0")),
    "no lines of progress": ((*TRAIN, "--log-every", "0"), ("--log-every", "at least 1", "not 0")),
    "a negative warm-up": ((*TRAIN, "--warmup-ticks", "-1"), ("--warmup-ticks", "not -1")),
    "chunks too small": ((*SINGLE, "--chunk-bytes", "1"), ("chunk-bytes", "at least 4", "not 1")),
    # settings
    "atoms never flushed": ((*TRAIN, "--atom-flush-every", "0"), ("atom-flush-every", "at least 1", "not 0")),
    "atoms flushed too late": ((*TRAIN, "--atom-flush-every", "33"), ("atom-flush-every", "n-atoms-max", "32", "33")),
    "a negative window": ((*TRAIN, "--field-bptt", "-1"), ("field-bptt", "negative", "-1")),
    "a learnable leak without gradients": (
        (*TRAIN, "--field-bptt", "0", "--field-leak-learnable"),
        ("field-leak-learnable", "field-bptt", "at least 1"),
    ),
    "a leak of all and more": ((*TRAIN, "--field-leak", "1.5"), ("field-leak", "[0, 1)", "1.5")),
    "a leak that is no number": ((*TRAIN, "--field-leak", "nan"), ("field-leak", "[0, 1)", "nan")),
    "a dropout above 1": ((*TRAIN, "--last-atom-dropout", "2"), ("last-atom-dropout", "[0, 1]", "2.0")),
    "a limit of 0": ((*TRAIN, "--field-max-rms", "0"), ("field-max-rms", "positive", "0.0")),
    "a negative weight": ((*TRAIN, "--field-loss-weight", "-1"), ("field-loss-weight", "at least 0", "-1.0")),
    "a rate of 0": ((*TRAIN, "--learning-rate", "0"), ("--learning-rate", "positive", "0.0")),
    "a rate that is no number": ((*TRAIN, "--learning-rate", "nan"), ("--learning-rate", "positive", "nan")),
    "an endless rate": ((*TRAIN, "--surface-learning-rate", "inf"), ("--surface-learning-rate", "positive", "inf")),
    "a negative decay": ((*TRAIN, "--weight-decay", "-1"), ("--weight-decay", "at least 0", "-1.0")),
    "a seed that does not fit": ((*TRAIN, "--seed", "9" * 30), ("--seed", "9" * 30)),
    "a checkpoint name with a folder": ((*SINGLE, "--checkpoint-name", "a/b.pt"), ("--checkpoint-name", "a/b.pt")),
    "a checkpoint name of another kind": ((*SINGLE, "--checkpoint-name", "b.txt"), ("--checkpoint-name", ".pt")),
    # architectures
    "no layers": ((*STACK, "--depth", "0"), ("depth", "at least 1", "not 0")),
    "no width": ((*STACK, "--width", "0"), ("width", "at least 1", "not 0")),
    "a stack that cannot learn": ((*STACK, "--field-bptt", "0"), ("field-bptt", "at least 1", "not 0")),
    "a stack of spans": ((*STACK_SINGLE, "--max-span-bytes", "8"), ("--max-span-bytes", "atom", "--arch atom")),
    "a leak for a stack": ((*STACK, "--arch", "stack", "--field-leak", "0.1"), ("--field-leak", "--arch atom")),
    "layers for an atom": ((*TRAIN, "--arch", "atom", "--depth", "2"), ("--depth", "atom", "--arch stack")),
    # options that no form computes yet
    "spans": ((*SINGLE, "--max-span-bytes", "8"), ("not available yet", "span")),
    "spans without the last byte": (
        (*SINGLE, "--max-span-bytes", "8", "--no-last-atom-readout"),
        ("not available yet", "span"),
    ),
    "merging": ((*SINGLE, "--enable-merge"), ("not available yet", "enable-merge")),
    "payloads": ((*SINGLE, "--payload-copy"), ("not available yet", "payload-copy")),
    "efference": ((*SINGLE, "--efference-every", "2"), ("not available yet", "efference-every")),
    "the soft readout": ((*SINGLE, "--no-field-obligatory-hard"), ("not available yet", "field-obligatory-hard")),
    # devices
    "a device that is none": ((*TRAIN, "--device", "nonsense"), ("--device", "nonsense", "cpu")),
    "a device that computes nothing": ((*TRAIN, "--device", "meta"), ("--device", "meta", "cpu")),
    # output folders
    "an output folder below a file": ((*TRAIN, "--output-dir", "text.txt/run"), ("text.txt/run", "--output-dir")),
    "a file as output folder": ((*TRAIN, "--output-dir", "text.txt"), ("text.txt", "--output-dir")),
    # checkpoints that are not there
    "a missing checkpoint to resume": ((*RESUME, "--resume", "gone.pt"), ("gone.pt", "does not exist", "check")),
    "a folder without checkpoints to resume": ((*RESUME, "--resume", "folder"), ("no checkpoint in folder", ".pt")),
    # runs that do not fit their checkpoint
    "another shape": ((*RESUME, "--resume", f"run/{NEWEST}", "--d-model", "7"), (NEWEST, "d-model", "6", "7")),
    "another architecture": ((*RESUME, "--output-dir", "run", "--arch", "stack"), (NEWEST, "atom", "stack")),
    "another number of streams": ((*RESUME, "--output-dir", "run", "-B", "5"), ("3 streams", "5", "use batch size 3")),
    # commands
    "an unknown command": (("dance",), ("dance", "train", "train-single", "chat")),
    "a command in capitals": (("Train",), ("Train", "train", "train-single", "chat")),
    # chat
    "neither prompt nor talk": (("chat", "--checkpoint", "run"), ("--prompt", "--interactive")),
    "prompt and talk": ((*CHAT, "--checkpoint", "run", "--interactive"), ("--prompt", "--interactive")),
    "chat with a missing checkpoint": ((*CHAT, "--checkpoint", "gone"), ("gone", "does not exist", "check the path")),
    "chat with an empty folder": ((*CHAT, "--checkpoint", "folder"), ("no checkpoint in folder", "run folder")),
    "chat without threads": ((*CHAT, "--checkpoint", "run", "--threads", "0"), ("--threads", "at least 1", "not 0")),
    "chat on a device that is none": ((*CHAT, "--checkpoint", "run", "--device", "nonsense"), ("nonsense", "cpu")),
    "a negative temperature": ((*CHAT, "--checkpoint", "run", "--temperature", "-1"), ("temperature", "-1.0")),
    "a probability of 0": ((*CHAT, "--checkpoint", "run", "--top-p", "0"), ("top-p", "(0, 1]", "0.0")),
    "a reply of negative length": ((*CHAT, "--checkpoint", "run", "--max-packets", "-1"), ("max-packets", "-1")),
    "a chat seed that does not fit": ((*CHAT, "--checkpoint", "run", "--seed", "9" * 30), ("seed", "9" * 30)),
}
"""What is wrong -> the command, and words that its line must have: the culprit, and what to do."""

each_mistake = pytest.mark.parametrize(("arguments", "words"), list(CANNOT_BE_DONE.values()), ids=list(CANNOT_BE_DONE))


@each_mistake
def test_what_cannot_be_done_is_said_in_one_line_that_names_it(
    here: Path, refused_here: Refused, arguments: tuple[str, ...], words: Words
) -> None:
    tells(refused_here(*arguments), words)


@each_mistake
def test_what_cannot_be_done_leaves_the_disk_as_it_was(here: Path, arguments: tuple[str, ...], words: Words) -> None:
    before = on_disk(here)
    with pytest.raises(SystemExit):
        main([*arguments])
    assert on_disk(here) == before


@pytest.mark.parametrize(
    "arguments",
    [
        (*TRAIN, "--n-mode", "4"),
        (*TRAIN, "--d-model", "many"),
        (*TRAIN, "--lr-schedule", "steep"),
        (*TRAIN, "stray"),
        ("chat", "--prompt", "hi"),
    ],
    ids=["an unknown flag", "a word for a number", "an unknown choice", "a stray word", "no checkpoint named"],
)
def test_flags_that_cannot_be_parsed_are_exit_code_2_and_named(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    before = on_disk(here)
    with pytest.raises(SystemExit) as stopped:
        main([*arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    culprit = "--checkpoint" if arguments[0] == "chat" else arguments[-1]
    assert culprit in said or arguments[-2] in said
    assert said.count("\n") == 1
    assert "--help" in said
    assert "Traceback" not in said
    assert on_disk(here) == before


def test_no_command_at_all_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    assert "train-single" in capsys.readouterr().out


# -- what this machine decides ----------------------------------------------------------------------------------------


@pytest.fixture
def unreadable(here: Path) -> str:
    """A file that opens or reads with an error, also for root."""
    path = here / "secret.txt"
    path.write_bytes(b"secret")
    path.chmod(0)
    if not os.access(path, os.R_OK):
        return "secret.txt"
    path.unlink()
    if not Path("/proc/self/mem").exists():
        pytest.skip("this user can read every file")
    return "/proc/self/mem"


def test_a_file_that_cannot_be_read_is_named(here: Path, unreadable: str, refused_here: Refused) -> None:
    line = refused_here(*TRAIN, "--data", "text.txt", unreadable)
    tells(line, (unreadable, "cannot be read", "check the path and its permissions"))


def test_a_checkpoint_that_cannot_be_read_is_named(here: Path, unreadable: str, refused_here: Refused) -> None:
    tells(refused_here(*RESUME, "--resume", unreadable), (unreadable,))
    tells(refused_here(*CHAT, "--checkpoint", unreadable), (unreadable,))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that cannot be written")
@pytest.mark.parametrize("folder", ["/proc/run", "/proc/self/run", "/proc/self"])
def test_an_output_folder_that_cannot_be_written_is_named(here: Path, refused_here: Refused, folder: str) -> None:
    tells(refused_here(*TRAIN, "--output-dir", folder), (folder, "cannot be written", "--output-dir"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
@pytest.mark.parametrize("arguments", [TRAIN, (*CHAT, "--checkpoint", "run")], ids=["train", "chat"])
def test_a_device_that_is_not_there_is_named(here: Path, refused_here: Refused, arguments: tuple[str, ...]) -> None:
    tells(refused_here(*arguments, "--device", "cuda"), ("--device", "cuda", "use cpu"))


# -- checkpoints that are none ----------------------------------------------------------------------------------------


class RunsCode:
    """Makes the folder `ran` when unpickled."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, ("ran",)


def write_bad(kind: str, path: Path, good: bytes) -> None:
    """Write a file of that kind, which is no checkpoint."""
    if kind == "truncated":
        path.write_bytes(good[: len(good) // 2])
    elif kind == "corrupt":
        middle = len(good) // 2
        path.write_bytes(good[:middle] + bytes(255 - byte for byte in good[middle : middle + 64]) + good[middle + 64 :])
    elif kind == "empty":
        path.touch()
    elif kind == "a text":
        path.write_text("not a checkpoint\n")
    elif kind == "a zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("readme.txt", "hello")
    elif kind == "weights of something else":
        torch.save(torch.nn.Linear(2, 3).state_dict(), path)
    elif kind == "a list":
        torch.save([1, 2, 3], path)
    elif kind == "a pickle that runs code":
        path.write_bytes(pickle.dumps(RunsCode()))
    elif kind == "code in a checkpoint":
        torch.save({"format": 1, "config": RunsCode(), "training": None}, path)
    else:
        torch.save({**read_checkpoint(f"run/{NEWEST}"), "format": 1000}, path)


BAD_KINDS = (
    *("truncated", "corrupt", "empty", "a text", "a zip", "weights of something else", "a list"),
    *("a pickle that runs code", "code in a checkpoint", "of a later format"),
)


def test_the_pickle_of_these_tests_would_run_code(here: Path) -> None:
    pickle.loads(pickle.dumps(RunsCode()))
    assert Path("ran").is_dir()


@pytest.mark.parametrize("kind", BAD_KINDS)
@pytest.mark.parametrize(
    "arguments", [(*RESUME, "--resume"), (*CHAT, "--checkpoint")], ids=["train --resume", "chat --checkpoint"]
)
def test_a_file_that_is_no_checkpoint_is_named_and_never_run(
    here: Path, refused_here: Refused, kind: str, arguments: tuple[str, ...]
) -> None:
    write_bad(kind, Path("bad.pt"), Path("run", NEWEST).read_bytes())
    before = on_disk(here)
    line = refused_here(*arguments, "bad.pt")
    tells(line, ("bad.pt", "update atomnative" if kind == "of a later format" else "use a"))
    assert on_disk(here) == before
    assert not Path("ran").exists()


@pytest.mark.parametrize("kind", ["truncated", "a pickle that runs code"])
@pytest.mark.parametrize(
    "arguments",
    [(*RESUME, "--output-dir", "run"), (*RESUME, "--resume", "run"), (*CHAT, "--checkpoint", "run")],
    ids=["automatic resume", "train --resume", "chat --checkpoint"],
)
def test_a_run_folder_whose_only_checkpoint_is_damaged_is_refused_and_kept(
    here: Path, refused_here: Refused, kind: str, arguments: tuple[str, ...]
) -> None:
    Path("run", OLDER).unlink()
    write_bad(kind, Path("run", NEWEST), Path("run", NEWEST).read_bytes())
    before = on_disk(here)
    tells(refused_here(*arguments), ("no good checkpoint in run", NEWEST))
    assert on_disk(here) == before


Change = Callable[[dict[str, Any]], object]
WRONG_INSIDE: dict[str, Change] = {
    "no tick": lambda content: content["training"].pop("step"),
    "a tick that is no number": lambda content: content["training"].update(step="x"),
    "a tick before the start": lambda content: content["training"].update(step=-5),
    "settings that are no table": lambda content: content["training"].update(settings=3),
    "a setting of another kind": lambda content: content["training"]["settings"].update(d_model="six"),
    "a choice that is none": lambda content: content["training"]["settings"].update(lr_schedule="steep"),
    "no optimizer state inside": lambda content: content["training"].update(optimizer={}),
    "no stream state inside": lambda content: content["training"]["batched"].update(stream={}),
    "a stream state of another shape": lambda content: content["training"]["batched"]["stream"].update(
        sketch=torch.zeros(2)
    ),
    "no runtime inside": lambda content: content["training"]["batched"].update(runtime={}),
    "no random state": lambda content: content["training"].update(rng=None),
    "an empty config": lambda content: content.update(config={}),
    "an architecture of another kind": lambda content: content["config"].update(arch=["atom"]),
    "another architecture": lambda content: content["config"].update(arch="other"),
    "no core": lambda content: content.update(core=None),
    "atoms of no bytes": lambda content: content["core"].update(
        atoms=[{"payload": [300], "rho": 1, "energy": torch.zeros(6)}]
    ),
    "weights of another shape": lambda content: content["surface"].update(J=torch.zeros(1)),
}


@pytest.mark.parametrize("change", list(WRONG_INSIDE.values()), ids=list(WRONG_INSIDE))
def test_a_checkpoint_that_is_whole_but_wrong_inside_is_refused_by_its_name(
    here: Path, refused_here: Refused, change: Change
) -> None:
    content = deepcopy(read_checkpoint(f"run/{NEWEST}"))
    change(content)
    torch.save(content, "bad.pt")
    tells(refused_here(*RESUME, "--resume", "bad.pt"), ("bad.pt",))
    assert not list(Path("out").glob("*.pt"))


# -- resuming ---------------------------------------------------------------------------------------------------------


def test_resuming_on_a_changed_corpus_is_refused_naming_the_shard(here: Path, refused_here: Refused) -> None:
    with open("text.txt", "ab") as text:
        text.write(b"more")
    before = on_disk(here)
    tells(refused_here(*RESUME, "--output-dir", "run"), ("corpus changed", "text.txt", "224", "228"))
    assert on_disk(here) == before


def test_resuming_after_a_shard_has_gone_is_refused_naming_it(here: Path, refused_here: Refused) -> None:
    Path("text.txt").unlink()
    tells(refused_here("train", "--output-dir", "run", "--total-ticks", "60"), ("text.txt", "does not exist"))


def test_a_damaged_newest_checkpoint_is_named_and_the_run_goes_on_from_the_one_before(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Path("run", NEWEST).read_bytes()
    write_bad("truncated", Path("run", NEWEST), whole)
    older = Path("run", OLDER).read_bytes()
    main([*RESUME, "--output-dir", "run", "--ckpt-every", "20"])
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    tells(err, ("atomnative: skipped", f"run/{NEWEST}"))
    assert f"resumed run/{OLDER} at tick 20" in out
    assert "finished at tick 60" in out
    assert read_checkpoint("run/atom_native_step_60_batched.pt")["training"]["step"] == 60
    assert read_checkpoint(f"run/{NEWEST}")["training"]["step"] == 40
    assert Path("run", OLDER).read_bytes() == older


def test_chat_takes_the_newest_good_checkpoint_and_names_the_damaged_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bad("corrupt", Path("run", NEWEST), Path("run", NEWEST).read_bytes())
    main([*CHAT, "--checkpoint", "run"])
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    tells(err, ("skipped", NEWEST))
    assert out


# -- two trainers in one folder ---------------------------------------------------------------------------------------


@pytest.fixture
def folder_in_use(here: Path) -> Iterator[Path]:
    Path("out").mkdir()
    with FileLock(here / "out" / ".lock"):
        yield here


def test_a_second_trainer_on_a_folder_in_use_is_refused(folder_in_use: Path, refused_here: Refused) -> None:
    before = on_disk(folder_in_use)
    tells(refused_here(*TRAIN), ("another trainer", "out", "--output-dir", "--allow-parallel-train"))
    tells(refused_here(*SINGLE), ("another trainer", "out", "--output-dir", "--allow-parallel-train"))
    assert on_disk(folder_in_use) == before


def test_a_second_trainer_of_another_process_is_refused(folder_in_use: Path) -> None:
    tells(refused(*TRAIN, cwd=folder_in_use), ("another trainer", "out", "--allow-parallel-train"))


def test_a_second_trainer_is_let_in_on_request(folder_in_use: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*TRAIN, "--allow-parallel-train"])
    out, err = capsys.readouterr()
    assert "finished at tick 20" in out
    assert err == ""


def test_a_folder_is_free_again_when_its_trainer_has_ended(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*TRAIN])
    main([*TRAIN, "--total-ticks", "30"])
    assert "finished at tick 30" in capsys.readouterr().out
