"""A stub of the library of NVIDIA's driver, called by the real nvidia-ml-py."""
