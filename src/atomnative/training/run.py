"""A run from its folder: lock it, find the checkpoint, build or restore everything, hand it to the loop."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from atomnative.checkpoint.file import naming, write_checkpoint
from atomnative.checkpoint.folder import checkpoint_name, find_checkpoint, newest_checkpoint, ticks_of
from atomnative.data.atomizer import Atomizer
from atomnative.data.corpus import ByteCorpus, resolve_shard_paths
from atomnative.data.source import LONGEST_CODE_POINT, StreamingPacketSource
from atomnative.data.stdlib import stdlib_paths
from atomnative.data.stream import BatchedByteStream
from atomnative.errors import CheckpointError, ConfigError, CorpusError, RunFolderError
from atomnative.inference.chat import sample_text
from atomnative.model.device import open_device
from atomnative.model.protocol import ByteModel
from atomnative.model.registry import ARCHITECTURES, model_from_checkpoint
from atomnative.training.config import RunConfig, SingleConfig, TrainConfig, settings
from atomnative.training.loop import Plan, Progress, train
from atomnative.training.optimizer import build_optimizer, restore_optimizer
from atomnative.training.report import ProgressLines
from atomnative.training.signals import StopRequest
from atomnative.training.windows import BatchedWindows, SingleWindows, Windows

Say = Callable[[str], None]
LOCK_NAME = ".lock"
SAMPLE_PROMPT_BYTES = 64
SAMPLE_BYTES = 160
SIZES_SHOWN = ("depth", "width", "d_model", "n_modes")


@dataclass
class Found:
    """The checkpoint that a run goes on from."""

    path: Path
    content: dict[str, Any] = field(repr=False)

    @property
    def training(self) -> dict[str, Any]:
        training = self.content["training"]
        return {} if training is None else training


def warn(text: str) -> None:
    print(f"atomnative: {text}", file=sys.stderr, flush=True)


def find_start(config: RunConfig) -> Found | None:
    """The checkpoint to go on from: the one named by `resume`, else the newest good one of the output folder."""
    if config.resume is not None:
        return Found(*find_checkpoint(config.resume, warn))
    found = newest_checkpoint(config.output_dir, warn) if config.output_dir.is_dir() else None
    return None if found is None else Found(*found)


def run_batched(config: TrainConfig, start: Found | None, say: Say) -> None:
    """Train in `B` parallel streams; raises UserError for anything the user can mend, before anything is written."""
    config.check()
    introduction: list[str] = []  # said when everything has been found to fit
    model, device, tick = _open_model(config, start, introduction.append)
    if tick >= config.total_ticks:
        say(f"nothing left to do: tick {tick:,} of {config.total_ticks:,} is reached; raise --total-ticks to go on")
        return
    corpus = ByteCorpus(_shards(config))
    stream = BatchedByteStream(corpus, config.batch_size, device=device, **_stream_options(model))
    windows = BatchedWindows(stream, model.streams(config.batch_size, config.atom_flush_every))
    introduction.append(f"corpus: {corpus.total:,} bytes in {len(corpus.paths)} files; {config.batch_size} streams")
    _Run(config, model, windows, start, tick, say, introduction).train(
        total=config.total_ticks,
        ckpt_every=config.ckpt_every,
        stop_at=config.total_ticks if config.run_ticks is None else tick + config.run_ticks,
        name=lambda ticks: checkpoint_name(ticks, batched=True),
        samples=config.samples,
    )


def run_single(config: SingleConfig, start: Found | None, say: Say) -> None:
    """Train with the single-stream form; raises UserError for what the user can mend, before anything is written."""
    config.check()
    introduction: list[str] = []
    model, _, tick = _open_model(config, start, introduction.append)
    model.check_available()
    paths = _shards(config)
    source = StreamingPacketSource(
        Atomizer(config.max_span_bytes, **_stream_options(model)),
        paths,
        chunk_bytes=config.chunk_bytes if config.stream else max(*ByteCorpus(paths).sizes, LONGEST_CODE_POINT),
        loop=config.loop_shards,
    )
    windows = SingleWindows(source, model, config.atom_flush_every)
    introduction.append(f"corpus: {source.corpus.total:,} bytes in {len(paths)} files; 1 stream")
    total = tick + config.steps
    _Run(config, model, windows, start, tick, say, introduction).train(
        total=total,
        ckpt_every=0,
        stop_at=total,
        name=lambda ticks: config.checkpoint_name or checkpoint_name(ticks, batched=False),
        samples=False,
    )


class _Run:
    """A model on its data with its optimizer, at a tick."""

    def __init__(
        self,
        config: RunConfig,
        model: ByteModel,
        windows: Windows,
        start: Found | None,
        tick: int,
        say: Say,
        introduction: list[str],
    ) -> None:
        self.config = config
        self.model = model
        self.windows = windows
        self.say = say
        self.introduction = introduction
        self.progress = Progress(tick)
        surface_rate = config.surface_learning_rate
        self.optimizer = build_optimizer(
            model,
            learning_rate=config.learning_rate,
            surface_learning_rate=config.learning_rate if surface_rate is None else surface_rate,
            weight_decay=config.weight_decay,
        )
        if start is not None:
            with naming(start.path):
                self._restore(start.training)

    def _restore(self, training: dict[str, Any]) -> None:
        if "optimizer" in training:
            restored = restore_optimizer(self.optimizer, training["optimizer"])
            self.introduction.append(
                "restored optimizer state" if restored else "optimizer state begins afresh: other parameters"
            )
        if self.windows.load_state_dict(training, self.progress.tick):
            try:
                torch.set_rng_state(training["rng"]["torch"])
            except (KeyError, TypeError, RuntimeError) as error:
                raise CheckpointError(f"the checkpoint's random state is unreadable ({error})") from error
        elif training:
            self.introduction.append(
                "weights go on, streams begin at the corpus's start: the checkpoint is of the other trainer"
            )

    def train(self, *, total: int, ckpt_every: int, stop_at: int, name: Callable[[int], str], samples: bool) -> None:
        config = self.config
        plan = Plan(
            window=max(1, self.model.field_bptt),
            total=total,
            episode_length=config.episode_length,
            ckpt_every=ckpt_every,
            warmup_ticks=config.warmup_ticks,
            schedule=config.lr_schedule,
        )
        lines = ProgressLines(
            tick=self.progress.tick,
            total=total,
            batch_size=self.windows.batch_size,
            log_every=config.log_every,
            say=self.say,
        )

        def save() -> Path:
            path = config.output_dir / name(self.progress.tick)
            write_checkpoint(path, self.model.checkpoint(self._training()))
            return path

        def on_checkpoint() -> None:
            lines.finish()
            self.say(f"checkpoint {save()}")
            if samples:
                self._show_sample()
            lines.restart_clock()

        self.model.train()
        with _run_folder(config), StopRequest() as request, contextlib.closing(self.windows):
            for line in self.introduction:
                self.say(line)
            begun_at = self.progress.tick
            try:
                train(
                    self.model,
                    self.windows,
                    self.optimizer,
                    plan,
                    self.progress,
                    stop=lambda: request.asked or self.progress.tick >= stop_at,
                    on_window=lines.window,
                    on_checkpoint=on_checkpoint,
                )
            except (CorpusError, OSError):  # a shard or the output has gone: what was learned so far need not go too
                if self.windows.ticks == self.progress.tick > begun_at:
                    with contextlib.suppress(OSError):
                        save()
                raise
            lines.finish()
            reached = self.progress.tick
            self.say(
                f"finished at tick {reached:,}" if reached >= total else f"stopped at tick {reached:,} of {total:,}"
            )

    def _training(self) -> dict[str, Any]:
        return {
            "step": self.progress.tick,
            "optimizer": self.optimizer.state_dict(),
            "rng": {"torch": torch.get_rng_state()},
            "settings": settings(self.config),
            **self.windows.state_dict(),
        }

    def _show_sample(self) -> None:
        prompt = self.windows.recent_bytes(SAMPLE_PROMPT_BYTES)
        text = sample_text(self.model, prompt, SAMPLE_BYTES, seed=self.progress.tick)
        self.say("sample:\n" + "\n".join(f"  | {line}" for line in text.split("\n")))


@contextlib.contextmanager
def _run_folder(config: RunConfig) -> Iterator[None]:
    """The output folder made, found to be writable, and locked."""
    folder = config.output_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RunFolderError(
            f"output folder {folder} cannot be written ({error.strerror}): choose another --output-dir"
        ) from error
    lock = FileLock(folder / LOCK_NAME)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not config.allow_parallel_train:
            raise RunFolderError(
                f"another trainer is at work in {folder}: wait, choose another --output-dir, or --allow-parallel-train"
            ) from None
    try:
        if lock.is_locked:
            _remove_leftovers(folder)
        yield
    finally:
        lock.release()


def _remove_leftovers(folder: Path) -> None:
    """What a kill in the middle of a write left beside the checkpoints."""
    for leftover in folder.glob(".*.pt.*.tmp"):
        with contextlib.suppress(OSError):
            os.unlink(leftover)


def _shards(config: RunConfig) -> list[Path]:
    named: list[Path] = []
    for name in config.data:
        named += stdlib_paths() if name == "stdlib" and not Path(name).exists() else [Path(name)]
    return resolve_shard_paths(named or None, config.data_glob)


def _stream_options(model: ByteModel) -> dict[str, Any]:
    return {"phase_period": model.atomizer.phase_period, "pack_mode": model.atomizer.pack_mode}


def _open_model(config: RunConfig, start: Found | None, say: Say) -> tuple[ByteModel, torch.device, int]:
    """A fresh model, or the checkpoint's with the settings asked for; its device; and the run's tick."""
    device = open_device(config.device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    saved_arch = None if start is None else start.content["config"].get("arch")
    if start is not None and config.arch not in (None, saved_arch):
        raise CheckpointError(
            f"checkpoint {start.path} has arch {saved_arch}, this run asks for {config.arch}: "
            "ask for the same, or choose another --output-dir"
        )
    arch = config.architecture()
    options = config.model_options()
    sizes = ", ".join(f"{name} {options[name]}" for name in SIZES_SHOWN if name in options)
    try:
        if start is None:
            model, tick = ARCHITECTURES[arch].from_options(options), 0
        else:
            model, tick = _resumed_model(start, arch, options, say), ticks_of(start.content)
            say(f"resumed {start.path} at tick {tick:,}")
        model = model.to(device)
    except RuntimeError as error:  # what torch raises where memory does not suffice
        raise ConfigError(f"a model of {sizes} does not fit: {error}") from error
    parameters = sum(p.numel() for p in model.parameters())
    say(f"model: {model.arch}, {sizes}, {parameters:,} parameters")
    return model, device, tick


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _resumed_model(start: Found, arch: str, options: dict[str, Any], say: Say) -> ByteModel:
    saved = start.content["config"]
    changed = {name: value for name, value in options.items() if saved.get(name) != value}
    for name in ARCHITECTURES[arch].shape:
        if name in changed and name in saved:
            raise CheckpointError(
                f"checkpoint {start.path} has {name} {saved[name]}, this run asks for {changed[name]}: "
                "ask for the same, or choose another --output-dir"
            )
    for name, value in changed.items():
        say(f"note: {name} is {saved.get(name)} in the checkpoint, {value} from here on")
    with naming(start.path):
        return model_from_checkpoint({**start.content, "config": {**saved, **options}})
