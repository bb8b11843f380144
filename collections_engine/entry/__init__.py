"""Thin doors: parse, call one use case, print."""
