"""The commands as they were promised: their flags, their help, and what they say."""

import re
from pathlib import Path

import pytest

from atomnative.checkpoint.file import read_checkpoint
from atomnative.cli.main import main

TRAIN_FLAGS = [
    "--data",
    "--data-glob",
    "--output-dir",
    "-B",
    "--batch-size",
    "--total-ticks",
    "--run-ticks",
    "--ckpt-every",
    "--samples",
    "--no-samples",
    "--arch",
    "--depth",
    "--width",
    "--d-model",
    "--n-modes",
    "--n-atoms-max",
    "--threads",
    "--episode-length",
    "--atom-flush-every",
    "--field-bptt",
    "--field-leak",
    "--field-leak-learnable",
    "--no-field-leak-learnable",
    "--field-max-rms",
    "--field-loss-weight",
    "--last-atom-dropout",
    "--learning-rate",
    "--surface-learning-rate",
    "--weight-decay",
    "--warmup-ticks",
    "--seed",
    "--log-every",
    "--device",
    "--resume",
]
SINGLE_FLAGS = [
    "--stream",
    "--data-glob",
    "--loop-shards",
    "--no-loop-shards",
    "--chunk-bytes",
    "--output-dir",
    "--checkpoint-name",
    "--steps",
    "--arch",
    "--depth",
    "--width",
    "--d-model",
    "--n-modes",
    "--n-atoms-max",
    "--max-span-bytes",
    "--field-obligatory-hard",
    "--enable-merge",
    "--no-enable-merge",
    "--payload-copy",
    "--no-payload-copy",
    "--last-atom-readout",
    "--efference-every",
    "--allow-parallel-train",
    "--atom-flush-every",
    "--field-loss-weight",
    "--field-leak",
    "--field-bptt",
    "--field-leak-learnable",
    "--resume",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"Some words, and a few more.\n" * 8)
    (tmp_path / "b.txt").write_bytes(b"Et d'autres.\n" * 9)
    return tmp_path


@pytest.mark.parametrize(("command", "flags"), [("train", TRAIN_FLAGS), ("train-single", SINGLE_FLAGS)])
def test_the_help_of_a_trainer_lists_every_promised_flag(
    command: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    words = set(re.findall(r"(?<![\w-])-{1,2}[A-Za-z][\w-]*", capsys.readouterr().out))
    assert set(flags) <= words, sorted(set(flags) - words)


def test_the_single_trainer_takes_all_its_flags_and_counts_on_from_a_batched_checkpoint(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = [
        "--d-model",
        "6",
        "--n-modes",
        "5",
        "--n-atoms-max",
        "64",
        "--field-bptt",
        "16",
        "--field-loss-weight",
        "0.1",
    ]
    shared = [
        *shape,
        "--field-leak",
        "0.2",
        "--field-leak-learnable",
        "--atom-flush-every",
        "32",
        "--data-glob",
        "*.txt",
    ]
    main(["train", "-B", "3", "--total-ticks", "100", "--output-dir", "batched", "--no-samples", *shared])
    capsys.readouterr()
    main(
        [
            *("train-single", "--stream", "--loop-shards", "--chunk-bytes", "64", "--output-dir", "single"),
            *("--checkpoint-name", "mine.pt", "--steps", "4", "--max-span-bytes", "1", "--field-obligatory-hard"),
            *("--no-enable-merge", "--no-payload-copy", "--last-atom-readout", "--efference-every", "0"),
            *("--allow-parallel-train", "--resume", "batched/atom_native_step_100_batched.pt", *shared),
        ]
    )
    out = capsys.readouterr().out
    assert "restored optimizer state" in out
    assert "note:" not in out, "the recipe is the same"
    assert read_checkpoint("single/mine.pt")["training"]["step"] == 104


def test_the_single_trainer_stops_at_the_last_shard_when_told_not_to_loop(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--d-model", "4", "--n-modes", "3", "--steps", "100000", "--no-loop-shards", "--no-stream"]
    main(["train-single", "--data", "a.txt", "b.txt", "--output-dir", "single", *flags])
    ticks = 28 * 8 + 13 * 9 - 1
    assert f"stopped at tick {ticks} of 100,000" in capsys.readouterr().out
    assert read_checkpoint(f"single/atom_native_step_{ticks}.pt")["training"]["step"] == ticks


def test_a_resumed_run_is_as_it_was_but_for_what_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--d-model", "6", "--n-modes", "5", "--field-bptt", "7", "-B", "3", "--total-ticks", "30", "--no-samples"]
    main(["train", "--data", "a.txt", "--output-dir", "run", "--weight-decay", "0.5", *tiny])
    main(["train", "--output-dir", "run", "--total-ticks", "60", "--field-max-rms", "0.5"])
    out = capsys.readouterr().out
    assert "note: field_max_rms is 4.0 in the checkpoint, 0.5 from here on" in out
    assert "finished at tick 60" in out
    saved = read_checkpoint("run/atom_native_step_60_batched.pt")["training"]["settings"]
    assert saved["data"] == ["a.txt"]
    assert saved["weight_decay"] == 0.5
    assert saved["batch_size"] == 3
    assert saved["field_max_rms"] == 0.5


def test_a_corpus_named_anew_replaces_the_saved_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--d-model", "6", "--n-modes", "5", "-B", "3", "--total-ticks", "30", "--no-samples"]
    main(["train", "--data", "a.txt", "--output-dir", "run", *tiny])
    main(["train", "--data-glob", "a.*", "--output-dir", "run", "--total-ticks", "40"])
    assert "finished at tick 40" in capsys.readouterr().out


def test_the_standard_library_is_a_corpus_of_over_ten_megabytes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from atomnative import ByteCorpus
    from atomnative.data.stdlib import stdlib_paths

    paths = stdlib_paths()
    assert paths == sorted(paths)
    assert all(path.suffix == ".py" and not {"test", "tests"} & set(path.parts) for path in paths)
    assert ByteCorpus(paths).total > 10_000_000
    main(
        [
            "train",
            "--data",
            "stdlib",
            "--d-model",
            "4",
            "--n-modes",
            "3",
            "-B",
            "2",
            "--total-ticks",
            "8",
            "--no-samples",
        ]
    )
    assert f"corpus: {ByteCorpus(paths).total:,} bytes" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_are_answered(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    assert "atomnative" in capsys.readouterr().out
