"""Runs: windows, optimizer, checkpoints, stop and resume (design section 4)."""
