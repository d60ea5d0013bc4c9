"""The `atom` architecture: one field and its readouts, in two forms over one set of weights (design 2 and 3)."""
