"""How well a model learns a given amount of text: held-out bits per byte.

The work is fixed so that runs can be compared: the last 5 % of the bytes are held out, the rest is read by B = 64
streams in windows of K = 32 (unless said otherwise), AdamW with a short warm-up and cosine decay, 8 MB. An LSTM or a
GRU of the same size on the same work says how hard the held-out text is.

    python benchmarks/quality.py
    python benchmarks/quality.py --model gru --hidden 150
    python benchmarks/quality.py --model atom --d-model 32 --n-modes 32
    python benchmarks/quality.py --variant no-drive
    python benchmarks/quality.py --data my.txt --megabytes 2 --rates 2e-3 4e-3 8e-3 --seeds 0 1 2 --results all.jsonl
"""

import json
import math
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch
import tyro
from torch import nn
from variants import VARIANTS

from atomnative import BatchedByteStream, ByteCorpus, load_model, resolve_shard_paths
from atomnative.data.stdlib import stdlib_paths
from atomnative.evaluation.bits_per_byte import WINDOW as HELD_OUT_WINDOW
from atomnative.evaluation.bits_per_byte import bits_per_byte
from atomnative.model.registry import ARCHITECTURES
from atomnative.training.config import TrainConfig
from atomnative.training.run import run_batched
from atomnative.training.schedule import Schedule, learning_rate_factor

STREAMS, WARMUP, HELD_OUT_STREAMS = 64, 3200, 16


@dataclass(frozen=True)
class Quality:
    """Train on all but the last 5 % of a text, and measure bits per byte on those."""

    model: Literal["stack", "atom", "lstm", "gru"] = "stack"
    """What learns."""
    variant: str = "as-designed"
    """The stack with one thing changed: a name of `variants.py`."""
    data: tuple[str, ...] = ()
    """Files; by default the standard library's source."""
    megabytes: float = 8.0
    """Millions of bytes to train on."""
    rates: tuple[float, ...] = (8e-3,)
    """Peak learning rates: a run for each, with the first seed."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; those after the first are run at the best rate."""
    depth: int = 3
    """Layers of the stack."""
    width: int = 64
    """Width of the stack."""
    d_model: int = 32
    """Channels of a field."""
    n_modes: int = 8
    """Modes of a field."""
    hidden: int = 150
    """Units of the LSTM or GRU, after a byte embedding of 64."""
    field_bptt: int = 32
    """Ticks of a window."""
    field_max_rms: float | None = None
    """The limiter's bound, by default the architecture's."""
    episode_length: int = 0
    """Ticks of an episode; 0: one without end."""
    weight_decay: float = 0.01
    """AdamW's."""
    lr_schedule: Schedule = "cosine"
    """The learning rate after the warm-up."""
    field_loss_weight: float = 0.0
    """Weight of the atom's probe."""
    results: Path | None = None
    """Append a line of JSON for each run to this file."""
    threads: int = 1
    """CPU threads."""
    verbose: bool = False
    """Show the run's own progress."""


def main(config: Quality) -> None:
    torch.set_num_threads(config.threads)
    paths = resolve_shard_paths(config.data) if config.data else stdlib_paths()
    with tempfile.TemporaryDirectory() as folder:
        train, held_out = split(ByteCorpus(paths), Path(folder))
        bits = {rate: measure(config, train, held_out, rate, config.seeds[0]) for rate in config.rates}
        best = min(bits, key=lambda rate: bits[rate])
        for seed in config.seeds[1:]:
            measure(config, train, held_out, best, seed)


def split(corpus: ByteCorpus, folder: Path) -> tuple[Path, Path]:
    """The corpus as two files: all but its last 5 %, and those."""
    content = corpus.read(0, corpus.total).tobytes()
    cut = len(content) * 95 // 100
    train, held_out = folder / "train", folder / "held_out"
    train.write_bytes(content[:cut])
    held_out.write_bytes(content[cut:])
    return train, held_out


def measure(config: Quality, train: Path, held_out: Path, rate: float, seed: int) -> float:
    """Held-out bits per byte of one run, which is also said and recorded."""
    begun = time.perf_counter()
    one = measure_yardstick if config.model in ("lstm", "gru") else measure_product
    bits, parameters = one(config, train, held_out, rate, seed)
    seconds = time.perf_counter() - begun
    name = config.model if config.model != "stack" else f"stack {config.variant}"
    print(
        f"{name}  {parameters:,} parameters  rate {rate:g}  seed {seed}  "
        f"{bits:.4f} bits/byte held out  {seconds:.0f} s",
        flush=True,
    )
    if config.results is not None:
        line = {**asdict(config), "results": None, "rates": rate, "seeds": seed}
        with config.results.open("a") as file:
            file.write(json.dumps({**line, "parameters": parameters, "bits": bits, "seconds": round(seconds)}) + "\n")
    return bits


def measure_product(config: Quality, train: Path, held_out: Path, rate: float, seed: int) -> tuple[float, int]:
    """Held-out bits per byte and parameters of the product."""
    with tempfile.TemporaryDirectory() as folder:
        own: dict[str, Any] = {"depth": config.depth, "width": config.width}
        if config.model == "atom":
            own = {"field_loss_weight": config.field_loss_weight}
        run = TrainConfig(
            data=(str(train),),
            output_dir=Path(folder),
            arch="atom" if config.model == "atom" else "stack",
            **own,
            d_model=config.d_model,
            n_modes=config.n_modes,
            batch_size=STREAMS,
            field_bptt=config.field_bptt,
            total_ticks=int(config.megabytes * 1e6 / STREAMS),
            ckpt_every=0,
            learning_rate=rate,
            weight_decay=config.weight_decay,
            lr_schedule=config.lr_schedule,
            warmup_ticks=WARMUP,
            episode_length=config.episode_length,
            field_max_rms=config.field_max_rms,
            seed=seed,
            samples=False,
        )
        with patch.dict(ARCHITECTURES, {"stack": VARIANTS[config.variant]}):
            run_batched(run, None, print if config.verbose else lambda line: None)
            model = load_model(folder)
    parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return bits_per_byte(model, ByteCorpus([held_out]), HELD_OUT_STREAMS), parameters


class Yardstick(nn.Module):
    """What a user would write instead: byte embedding, one LSTM or GRU whose state is carried along, head."""

    def __init__(self, kind: Literal["lstm", "gru"], hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        self.recurrent = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](64, hidden)
        self.head = nn.Linear(hidden, 256)
        self.state: tuple[torch.Tensor, ...] | torch.Tensor | None = None

    def forward(self, current: torch.Tensor) -> torch.Tensor:
        """Bytes [K, B] to logits [K, B, 256]; the state goes on, without its graph."""
        out, state = self.recurrent(self.embedding(current), self.state)
        self.state = state.detach() if isinstance(state, torch.Tensor) else tuple(part.detach() for part in state)
        return self.head(out)


def measure_yardstick(config: Quality, train: Path, held_out: Path, rate: float, seed: int) -> tuple[float, int]:
    """The same work by an LSTM or a GRU; see `measure_product`."""
    torch.manual_seed(seed)
    assert config.model in ("lstm", "gru")
    model = Yardstick(config.model, config.hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=config.weight_decay, fused=True)
    stream = BatchedByteStream(ByteCorpus([train]), STREAMS)
    ticks = int(config.megabytes * 1e6 / STREAMS)
    for tick in range(0, ticks, config.field_bptt):
        factor = learning_rate_factor(tick, warmup_ticks=WARMUP, total_ticks=ticks, schedule=config.lr_schedule)
        for group in optimizer.param_groups:
            group["lr"] = rate * factor
        current, _, target = stream.next_compact_window(config.field_bptt)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(current).flatten(0, 1), target.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    stream = BatchedByteStream(ByteCorpus([held_out]), HELD_OUT_STREAMS)
    windows = (stream.corpus.total // HELD_OUT_STREAMS - 1) // HELD_OUT_WINDOW
    nats, model.state = 0.0, None
    with torch.no_grad():
        for _ in range(windows):
            current, _, target = stream.next_compact_window(HELD_OUT_WINDOW)
            nats += float(nn.functional.cross_entropy(model(current).flatten(0, 1), target.flatten()))
    return nats / windows / math.log(2), sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    main(tyro.cli(Quality, description=__doc__))
