"""The soak: workers, people, banks and faults of all kinds at once, for a bounded time."""
