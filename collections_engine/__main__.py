"""``python -m collections_engine`` is the same as the ``collections`` command."""

from collections_engine.entry.cli import main

if __name__ == "__main__":
    main()
