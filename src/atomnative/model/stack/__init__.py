"""The `stack` architecture: fields in layers, in two forms over one set of weights (design 5)."""
