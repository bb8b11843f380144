"""Measurements: `make bench`. Not run by the test suite."""
