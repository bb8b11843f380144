"""A child of the tests never outlives them, not even one that was stopped (SIGSTOP)."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def fork() -> int:
    """Fork; the kernel kills the child when the one that forked it ends, however it ends."""
    pid = os.fork()
    if pid == 0 and _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        os._exit(70)
    return pid
