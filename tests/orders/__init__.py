"""Every order of the durable steps of those who meet at one row, on real PostgreSQL."""
