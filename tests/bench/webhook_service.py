"""`collections serve` with one more route, `/empty`, which answers an empty 200: the yardstick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from collections_engine.entry.cli import app
from collections_engine.entry.web import app as web
from collections_engine.entry.web import server


class Empty:
    """Reads the body, as the real door does, and answers."""

    def on_post(self, req: Any, resp: Any) -> None:
        """200 without a body."""
        req.bounded_stream.read()
        resp.status = 200


def build(service: web.Service) -> Any:
    """The application with the yardstick's route."""
    made = web.build(service)
    made.add_route("/empty", Empty())
    return made


if __name__ == "__main__":
    vars(server)["build"] = build
    sys.exit(app.run(["serve", "--port", "0", *sys.argv[1:]]))
