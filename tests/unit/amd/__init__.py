"""A stub of ROCm's AMD SMI library, called by the real amdsmi."""
