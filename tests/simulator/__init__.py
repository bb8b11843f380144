"""Tests of the gateway simulator: it must be right before it may judge anything."""
