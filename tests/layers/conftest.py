"""The stage of the crash tests, and a stage on which actors move step by step."""

from tests.crash.conftest import gateway_process, scene, workers
from tests.orders.conftest import set_up

__all__ = ["gateway_process", "scene", "set_up", "workers"]
