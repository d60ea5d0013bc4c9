"""How well the product learns a given amount of text: held-out bits per byte on the standard library's source.

The work is fixed so that runs can be compared: the last 5 % of the bytes are held out, the rest is read by B = 64
streams in windows of K = 32, AdamW at a peak rate of 4e-3 after a short warm-up, cosine decay, no dropout, 8 MB. An
LSTM of 188 k parameters on the same work (`--lstm`) says how hard the held-out text is.

    python benchmarks/quality.py
    python benchmarks/quality.py --lstm
    python benchmarks/quality.py --data my.txt --megabytes 2 --seeds 0 1 2
"""

import json
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from torch import nn

from atomnative import BatchedByteStream, ByteCorpus, load_model, resolve_shard_paths
from atomnative.data.stdlib import stdlib_paths
from atomnative.evaluation.bits_per_byte import bits_per_byte
from atomnative.training.config import TrainConfig
from atomnative.training.run import run_batched
from atomnative.training.schedule import learning_rate_factor

WINDOW, STREAMS, WARMUP, RATE = 32, 64, 3200, 4e-3
HELD_OUT_STREAMS = 16


@dataclass(frozen=True)
class Quality:
    """Train on all but the last 5 % of a text, and measure bits per byte on those."""

    data: tuple[str, ...] = ()
    """Files; by default the standard library's source."""
    megabytes: float = 8.0
    """Millions of bytes to train on."""
    seeds: tuple[int, ...] = (0,)
    """A run for each."""
    d_model: int = 32
    """Channels of the field."""
    n_modes: int = 32
    """Modes of the field."""
    field_leak: float = TrainConfig.field_leak
    """Where the leaks start."""
    field_loss_weight: float = TrainConfig.field_loss_weight
    """Weight of the auxiliary probe."""
    learning_rate: float = RATE
    """Peak rate."""
    lstm: bool = False
    """The yardstick in place of the product."""
    verbose: bool = False
    """Show the run's own progress."""


def main(config: Quality) -> None:
    paths = resolve_shard_paths(config.data) if config.data else stdlib_paths()
    ticks = int(config.megabytes * 1e6 / STREAMS)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        train, held_out = split(ByteCorpus(paths), Path(folder))
        for seed in config.seeds:
            begun = time.perf_counter()
            measure = measure_lstm if config.lstm else measure_product
            bits, parameters = measure(config, train, held_out, ticks, seed, Path(folder) / f"run{seed}")
            seconds = time.perf_counter() - begun
            results.append(bits)
            name = "LSTM" if config.lstm else "atom"
            print(f"{name}  {parameters:,} parameters  seed {seed}  {bits:.4f} bits/byte held out  {seconds:.0f} s")
    print(json.dumps({"model": "lstm" if config.lstm else "atom", "bits_per_byte": results, "ticks": ticks}))


def split(corpus: ByteCorpus, folder: Path) -> tuple[Path, Path]:
    """The corpus as two files: all but its last 5 %, and those."""
    content = corpus.read(0, corpus.total).tobytes()
    cut = len(content) * 95 // 100
    train, held_out = folder / "train", folder / "held_out"
    train.write_bytes(content[:cut])
    held_out.write_bytes(content[cut:])
    return train, held_out


def measure_product(
    config: Quality, train: Path, held_out: Path, ticks: int, seed: int, folder: Path
) -> tuple[float, int]:
    """Held-out bits per byte and parameters of the product after `ticks` ticks."""
    run = TrainConfig(
        data=(str(train),),
        output_dir=folder,
        d_model=config.d_model,
        n_modes=config.n_modes,
        batch_size=STREAMS,
        field_bptt=WINDOW,
        total_ticks=ticks,
        ckpt_every=0,
        learning_rate=config.learning_rate,
        lr_schedule="cosine",
        warmup_ticks=WARMUP,
        field_leak=config.field_leak,
        field_loss_weight=config.field_loss_weight,
        seed=seed,
        samples=False,
    )
    run_batched(run, None, print if config.verbose else lambda line: None)
    model = load_model(folder)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return bits_per_byte(model, ByteCorpus([held_out]), HELD_OUT_STREAMS), parameters


class LSTM(nn.Module):
    """What a user would write instead: 188 k parameters, hidden state carried along."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        self.lstm = nn.LSTM(64, 152)
        self.head = nn.Linear(152, 256)

    def forward(
        self, current: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Bytes [K, B] to logits [K, B, 256] and the state after them."""
        out, after = self.lstm(self.embedding(current), state)
        return self.head(out), after


def measure_lstm(
    config: Quality, train: Path, held_out: Path, ticks: int, seed: int, folder: Path
) -> tuple[float, int]:
    """The same work by an LSTM; see `measure_product`."""
    torch.manual_seed(seed)
    model = LSTM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.01, fused=True)
    stream = BatchedByteStream(ByteCorpus([train]), STREAMS)
    state = None
    for tick in range(0, ticks, WINDOW):
        factor = learning_rate_factor(tick, warmup_ticks=WARMUP, total_ticks=ticks, schedule="cosine")
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * factor
        current, _, target = stream.next_compact_window(WINDOW)
        logits, state = model(current, state)
        state = (state[0].detach(), state[1].detach())
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    stream = BatchedByteStream(ByteCorpus([held_out]), HELD_OUT_STREAMS)
    windows = (stream.corpus.total // HELD_OUT_STREAMS - 1) // WINDOW
    nats, state = 0.0, None
    with torch.no_grad():
        for _ in range(windows):
            current, _, target = stream.next_compact_window(WINDOW)
            logits, state = model(current, state)
            nats += float(nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()))
    return nats / windows / math.log(2), sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    main(tyro.cli(Quality, description=__doc__))
