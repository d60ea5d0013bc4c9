"""Bits per byte of a corpus under a model."""

import math

import torch

from atomnative.data.corpus import ByteCorpus
from atomnative.data.stream import BatchedByteStream
from atomnative.model.protocol import ByteModel

WINDOW = 64


@torch.no_grad()
def bits_per_byte(model: ByteModel, corpus: ByteCorpus, batch_size: int) -> float:
    """Mean cross-entropy of the corpus's bytes, in bits, its fields carried along, without auxiliary losses.

    The corpus is read once by `B` streams in parallel, each from a fresh field; the bytes that do not fill whole
    windows are left out.

    Raises:
        ValueError: fewer bytes than one window of every stream.
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    atomizer = model.atomizer
    stream = BatchedByteStream(
        corpus, batch_size, phase_period=atomizer.phase_period, pack_mode=atomizer.pack_mode, device=device
    )
    streams = model.streams(batch_size, WINDOW)
    windows = (corpus.total // batch_size - 1) // WINDOW
    if windows < 1:
        raise ValueError(f"{corpus.total} bytes are too few for {batch_size} streams: use at most {corpus.total // 65}")
    nats = 0.0
    for _ in range(windows):
        out = streams.run_window(*stream.next_compact_window(WINDOW))
        nats += float(out["byte_loss"].double().mean())
    model.train(was_training)
    return nats / windows / math.log(2)
