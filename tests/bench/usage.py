"""What the system says that a process takes up."""

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def resident(pid: int | str = "self") -> float:
    """Return the resident memory of a process in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has taken so far, all its threads together; the system counts in 10 ms."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS
