"""The field model: a tick-by-tick reference and a batched form over one set of weights (design sections 2 and 3)."""
