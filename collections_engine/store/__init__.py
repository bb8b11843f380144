"""PostgreSQL: one module per aggregate; functions take a connection and issue no BEGIN or COMMIT."""
