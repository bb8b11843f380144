"""The tests: on a real PostgreSQL and, where money moves, judged from the gateway's own books."""
