"""The contract's numbers by name (design, opening): never edited to make a test pass."""

LOGITS = 1e-5
LOSSES = 1e-5
GRADIENTS_RELATIVE = 1e-4
"""Of each tensor's largest entry."""
PARAMETERS = 1e-5
FIELD = 1e-5
MEMORY = 1e-5
DOUBLE = 1e-10
"""For all of these in float64, where rounding cannot hide a wrong formula."""
