"""Scheduled collections that never charge twice.

The engine takes due instalments from customers' bank accounts through payment providers and keeps
every intent, permit and fact in PostgreSQL. Start reading at ``usecases/collect.py``.
"""

__version__ = "0.1.0.dev0"
