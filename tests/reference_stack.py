"""A third account of the stack, written from the design in float64 with loops; it imports nothing of atomnative."""

import math

import numpy as np

from tests.reference_rk4 import Array, bump, gelu, rk4_tick, sigmoid, softplus


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    return (x - x.mean()) / math.sqrt(x.var() + 1e-5) * weight + bias


class StackReference:
    """One stream. Weights by the names of a checkpoint's section, as float64 arrays."""

    def __init__(self, weights: dict[str, Array], depth: int, d: int, n: int, max_rms: float | None) -> None:
        self.w, self.depth, self.d, self.n, self.max_rms = weights, depth, d, n, max_rms
        self.reset()

    def reset(self) -> None:
        self.alpha = np.zeros((self.depth, self.n, self.d))
        self.before: int | None = None

    def linear(self, name: str, x: Array) -> Array:
        out = self.w[f"{name}.weight"] @ x
        return out + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else out

    def norm(self, name: str, x: Array) -> Array:
        return layer_norm(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def tick(self, x: Array, byte: int, target: int) -> tuple[Array, float]:
        """Logits [256] and loss of one byte; x [320]."""
        before = byte if self.before is None else self.before
        h = self.w["text.embedding.weight"][byte] + self.w["text.embedding_before.weight"][before]
        h = h + self.linear("text.live", x[300:320])
        for index in range(self.depth):
            h = self.layer(index, f"layers.{index}", h)
        self.before = byte
        logits = self.linear("head", self.norm("norm", h))
        return logits, math.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[target]

    def layer(self, index: int, name: str, h: Array) -> Array:
        d, n = self.d, self.n
        z = self.linear(f"{name}.W_in", self.norm(f"{name}.norm_in", h))
        content, (p, o, e, k), zeta, gamma = z[:d], z[d : d + 4], z[d + 4 : d + 4 + n], z[d + 4 + n :]
        unit = content / np.linalg.norm(content)
        f, s = float(softplus(o)) + 1e-3, float(sigmoid(e) * softplus(k))
        leak = sigmoid(self.w[f"{name}.leak_logit"] + zeta)

        g = bump(f, p, s, n)
        entered = np.array([(1.0 - leak[m]) * self.alpha[index, m] + g[m] * math.sqrt(d) * unit for m in range(n)])
        sigma, eta, c = (
            float(self.w[f"{name}.dynamics.{k}"]) for k in ("phase_sync", "energy_decay", "coupling_scale")
        )
        alpha = rk4_tick(entered, unit, sigma, eta, c * math.sqrt(d), self.max_rms)  # u is linear in r
        self.alpha[index] = alpha

        read = self.linear(f"{name}.W_read", alpha.reshape(-1))
        y = read / math.sqrt(np.mean(read**2) + 1e-6) * self.w[f"{name}.norm_read.weight"] * gamma * sigmoid(gamma)
        h = h + self.linear(f"{name}.W_out", y)
        hidden = gelu(self.linear(f"{name}.mlp.0", self.norm(f"{name}.norm_mlp", h)))
        return h + self.linear(f"{name}.mlp.2", hidden)
