"""Checkpoints as files: whole or not at all, plain data only, found again in a folder (design section 4)."""
