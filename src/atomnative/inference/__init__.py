"""Bytes out: sampling, text as it becomes whole, replies."""
