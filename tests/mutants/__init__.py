"""Mutation of the money kernel, Python and SQL: `python -m tests.mutants` (= `make mutants`)."""
