"""A third account of a tick, written from the design in float64 with loops; it imports nothing of atomnative."""

import math

import numpy as np

Array = np.ndarray


def gelu(x: Array) -> Array:
    return np.array([0.5 * v * (1.0 + math.erf(v / math.sqrt(2.0))) for v in x])


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(x))


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def rk4_tick(alpha: Array, r: Array, sigma: float, eta: float, c: float, max_rms: float | None) -> Array:
    """Design 2.3: one RK4 step, smoothing, limiter. alpha [n, d], r [d]."""
    n, d = alpha.shape
    phases = [2.0 * math.pi * m / n for m in range(n)]
    u = np.array([[r[j] * math.cos(phases[m] + 0.5 * r[j] * j) for j in range(d)] for m in range(n)])

    def ring(a: Array) -> Array:
        return np.array([a[m - 1] + a[(m + 1) % n] - 2.0 * a[m] for m in range(n)])

    def slope(a: Array) -> Array:
        grown = np.array([math.sin(phases[m]) * a[m] for m in range(n)])
        return sigma * ring(a) + grown + (eta - 1.0) * a + c * u

    dt = 0.1
    k1 = slope(alpha)
    k2 = slope(alpha + dt / 2 * k1)
    k3 = slope(alpha + dt / 2 * k2)
    k4 = slope(alpha + dt * k3)
    moved = alpha + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    smoothed = moved + 0.1 * sigma * ring(moved)
    if max_rms is None:
        return smoothed
    rms = math.sqrt(np.mean(smoothed**2) + 1e-6)
    return smoothed * min(1.0, max_rms / (rms + 1e-6))


def bump(f: float, p: float, s: float, n: int) -> Array:
    """Design 2.2: how much of `r` each mode receives. [n]"""
    centre = n * f / (1.0 + f)
    width = 1.0 + 0.25 / (1.0 + math.exp(-f))
    g = []
    for m in range(n):
        apart = abs(m - centre) % n
        delta = min(apart, n - apart)
        g.append(s * math.exp(-((delta / width) ** 2)) * (0.5 + 0.5 * math.cos(2 * math.pi * m / n - p)))
    return np.array(g)


class Reference:
    """One stream. Weights by the names of a checkpoint's sections, as float64 arrays."""

    def __init__(
        self,
        weights: dict[str, Array],
        d: int,
        n: int,
        *,
        leak: Array,
        max_rms: float | None,
        threshold: float,
        probe_weight: float,
    ) -> None:
        self.w, self.d, self.n = weights, d, n
        self.leak, self.max_rms, self.threshold, self.probe_weight = leak, max_rms, threshold, probe_weight
        self.reset()

    def reset(self) -> None:
        self.alpha = np.zeros((self.n, self.d))
        self.persistence = np.zeros(self.d)
        self.flush()

    def flush(self) -> None:
        self.energies: list[Array] = []
        self.bytes: list[int] = []
        self.history: list[Array] = []

    def linear(self, name: str, x: Array) -> Array:
        out = self.w[f"{name}.weight"] @ x
        return out + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else out

    def tick(self, x: Array, byte: int, target: int) -> tuple[Array, float]:
        """Logits [256] and loss of one byte; x [320]."""
        w, d, n = self.w, self.d, self.n
        out = self.linear("compiler.fc2", gelu(self.linear("compiler.fc1", x))).reshape(5, d)
        r = out[0] / np.linalg.norm(out[0])
        phi, omega, energy, kappa = out[1], softplus(out[2]) + 1e-3, sigmoid(out[3]), softplus(out[4])

        g = bump(abs(omega.mean()), phi.mean(), (energy * kappa).mean(), n)
        entered = (1.0 - self.leak)[:, None] * self.alpha + np.outer(g, r)
        sigma, eta, c = (float(w[f"core.dynamics.{k}"]) for k in ("phase_sync", "energy_decay", "coupling_scale"))
        self.alpha = rk4_tick(entered, r, sigma, eta, c, self.max_rms)

        self.energies.append(energy)
        self.bytes.append(byte)
        mean_energy = sum(self.energies) / len(self.energies)
        if len(self.history) > 5:
            looked_at = np.array(self.history[-10:])
            stability = np.exp(-looked_at.std(0) / np.maximum(np.abs(looked_at.mean(0)), 1e-6)) * mean_energy
            chosen = mean_energy * stability > self.threshold
            moved = 0.995 * self.persistence + 0.005 * self.alpha.mean(0)
            self.persistence = np.where(chosen, moved, self.persistence)
        self.history = [*self.history, mean_energy][-20:]

        a = w["surface.J"] @ self.alpha.reshape(-1)
        a = a / max(math.sqrt(np.mean(a**2)), 1e-8)
        hidden = gelu(self.linear("surface.alpha_byte_proj.fc1", a))
        gate = math.log1p(math.exp(float(w["surface.obl_gate"]))) + 0.5
        logits = gate * self.linear("surface.alpha_byte_proj.fc2", hidden) + 0.3 * w["surface.F"] @ a
        logits = logits + self.last_atom(phi)

        loss = math.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[target]
        z = np.concatenate([self.alpha.mean(0), np.sqrt(self.alpha.var(0) + 1e-8), self.persistence, r])
        z = (z - z.mean()) / np.sqrt(z.var() + 1e-5)
        return logits, loss + self.probe_weight * (1.0 - cosine(self.linear("field_probe", z), x))

    def last_atom(self, phi: Array) -> Array:
        table = self.w["surface.last_atom.embedding.weight"]
        last, before = self.bytes[-1], self.bytes[-2] if len(self.bytes) > 1 else self.bytes[-1]
        hidden = np.maximum(self.linear("surface.last_atom.expand", np.concatenate([table[last], table[before]])), 0.0)
        smallest_kept = np.sort(hidden)[-(len(hidden) // 4)]
        hidden = np.where(hidden >= smallest_kept, hidden, 0.0)
        turns = np.concatenate([np.cos(phi), np.sin(phi)])
        mixed = self.linear("surface.last_atom.contract", hidden) + self.linear("surface.last_atom.phase", turns)
        return self.linear("surface.last_atom.head", gelu(mixed))
