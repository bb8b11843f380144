"""PostgreSQL: one module per aggregate; functions take a connection and begin nothing."""
