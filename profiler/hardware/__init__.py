"""Hardware profiles as files, and how one is measured."""

from profiler.hardware.profile_file import hardware_names, read_hardware, write_hardware

__all__ = ["hardware_names", "read_hardware", "write_hardware"]
