"""Where the SQL lies: inside the installed package, or at the top of a checkout."""

from importlib.resources import files
from pathlib import Path

import collections_engine


def sql_root() -> Path:
    """The folder that holds ``migrations/``, ``queries/`` and ``checks/``.

    An installed wheel carries it as package data; a checkout (or an editable install of one) keeps
    it at the top level, where it is reviewed.
    """
    packaged = Path(str(files(collections_engine))) / "sql"
    if packaged.is_dir():
        return packaged
    checkout = Path(collections_engine.__file__).resolve().parent.parent / "sql"
    if checkout.is_dir():
        return checkout
    raise FileNotFoundError(
        f"the engine's SQL is missing: neither {packaged} nor {checkout} is a folder. "
        "The installation is incomplete; install the package again."
    )
