"""The 320 feature columns of a packet (design 1.2): the one place that knows what stands in which column.

`Atomizer` computes them packet by packet and `BatchedByteStream` for many streams at once; the float32 values must be
equal bit for bit. Whatever depends on more than the payload is therefore computed by functions here that work
on any leading shape `[...]` and add in a fixed order.
"""

import math
import string

import numpy as np

N_FEATURES = 320
SKETCH = slice(304, 320)
N_SKETCH = 16
PHASE = slice(298, 300)
PREVIOUS_LENGTH = 300
COSINE = 301

LIVE_COLUMNS = (298, 299, 300, 301, *range(304, 320))
"""The 20 columns that, in byte tick, depend on more than the byte itself: phase, previous length, cosine, sketch."""
N_LIVE = len(LIVE_COLUMNS)

BOUNDARY_CODES = {
    "whitespace": 1,
    "punctuation": 2,
    "newline": 3,
    "class_transition": 4,
    "max_span": 5,
    "eos": 6,
    "generated": 7,
}

SPACES = frozenset(b"\t\n\r ")
NEWLINES = frozenset(b"\n\r")
BLANKS = frozenset(b"\t ")
DIGITS = frozenset(string.digits.encode())
LETTERS = frozenset(string.ascii_letters.encode())
PUNCTUATION = frozenset(string.punctuation.encode())
CONTROLS = frozenset(range(32))
CONTINUATIONS = frozenset(range(0x80, 0xC0))


def _byte_class(byte: int) -> int:
    groups = (SPACES, DIGITS, LETTERS, CONTROLS, PUNCTUATION, CONTINUATIONS)
    return next((index for index, group in enumerate(groups) if byte in group), len(groups))


_CLASS_OF = np.array([_byte_class(byte) for byte in range(256)])
_SHARES = [
    np.array([byte in group for byte in range(256)], dtype=np.float64)
    for group in (SPACES, DIGITS, LETTERS, PUNCTUATION, CONTROLS)
]


def low_nibbles(payload: bytes) -> np.ndarray:
    """`g`: the histogram of a payload's low nibbles, divided by its length. float32[16]."""
    counts = np.bincount(np.frombuffer(payload, dtype=np.uint8) & 15, minlength=N_SKETCH)
    return (counts / len(payload)).astype(np.float32)


def next_sketch(sketch: np.ndarray, g: np.ndarray) -> np.ndarray:
    """`c <- 0.85 c + 0.15 g`. float32[..., 16]."""
    return np.float32(0.85) * sketch + np.float32(0.15) * g


def sketch_norm(sketch: np.ndarray) -> np.ndarray:
    """Norm over the last axis, added column by column. float32[..., 16] -> float32[...]."""
    total = sketch[..., 0] * sketch[..., 0]
    for column in range(1, N_SKETCH):
        total = total + sketch[..., column] * sketch[..., column]
    return np.sqrt(total)


def cosine_column(dot: np.ndarray, norm_g: np.ndarray, norm_c: np.ndarray) -> np.ndarray:
    """Column 301, `(cos(g, c) + 1) / 2`, from float32 dot and norms. Any shape -> float32 of that shape."""
    g, c = np.asarray(norm_g, dtype=np.float64), np.asarray(norm_c, dtype=np.float64)
    empty = (g <= 1e-12) | (c <= 1e-12)
    cosine = np.where(empty, 0.0, np.asarray(dot, dtype=np.float64) / np.where(empty, 1.0, g * c))
    return ((cosine + 1.0) / 2.0).astype(np.float32)


def phase_of(start: int, period: float) -> float:
    """`2 pi (start mod period) / period`, in radians."""
    return 2.0 * math.pi * (start % period) / period


def phase_columns(start: np.ndarray, period: float) -> np.ndarray:
    """Columns 298 and 299: sine and cosine of the phase. int64[...] -> float32[..., 2].

    Each distinct phase goes through `math` once: vectorised sines may differ in the last bit with the array's length.
    """
    residues, where = np.unique(np.mod(start, period), return_inverse=True)
    angles = [2.0 * math.pi * residue / period for residue in residues.tolist()]
    table = np.array([(math.sin(angle), math.cos(angle)) for angle in angles], dtype=np.float32)
    return table[where.reshape(np.shape(start))]


def level_of(payload: bytes) -> int:
    """3 if the payload holds a newline, else 2 if it holds ASCII punctuation, else 1."""
    if any(byte in NEWLINES for byte in payload):
        return 3
    return 2 if any(byte in PUNCTUATION for byte in payload) else 1


def packet_features(
    payload: bytes,
    *,
    start: int,
    boundary: str,
    level: int,
    previous_length: int,
    sketch: np.ndarray,
    max_span_bytes: int,
    phase_period: float,
) -> np.ndarray:
    """The features of one packet in its context. float32[320] (design 1.2, the table).

    Args:
        previous_length: bytes of the packet before, 0 for the first of a context.
        sketch: the context sketch before this packet, float32[16].
    """
    values = np.frombuffer(payload, dtype=np.uint8)
    length = len(payload)
    histogram = np.bincount(values, minlength=256) / length
    present = histogram[histogram > 0]
    classes = _CLASS_OF[values]
    g = low_nibbles(payload)

    x = np.zeros(N_FEATURES, dtype=np.float32)
    x[0:256] = histogram
    x[256 + (payload[0] >> 4)] = 1.0
    x[272 + (payload[-1] >> 4)] = 1.0
    x[288] = length / max_span_bytes
    for column, share in enumerate(_SHARES, start=289):
        x[column] = share[values].mean()
    x[294] = -(present * np.log2(present)).sum() / 8.0
    x[295] = (classes[1:] != classes[:-1]).mean() if length > 1 else 0.0
    x[296] = payload[0] / 255.0
    x[297] = payload[-1] / 255.0
    x[PHASE] = phase_columns(np.asarray(start), phase_period)
    x[PREVIOUS_LENGTH] = previous_length / max_span_bytes
    dot = np.float32(0.0)
    for column in range(N_SKETCH):
        dot = dot + g[column] * sketch[column]
    x[COSINE] = cosine_column(np.asarray(dot), sketch_norm(g), sketch_norm(sketch))
    x[302] = BOUNDARY_CODES[boundary] / 7.0
    x[303] = level / 3.0
    x[SKETCH] = sketch
    return x
