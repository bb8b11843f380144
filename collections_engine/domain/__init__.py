"""Decisions and values: standard library only, no clock, no randomness, no I/O, no logging."""
