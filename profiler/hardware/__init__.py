"""Hardware profiles as files, and how one is measured."""

from profiler.hardware.profile_file import hardware_names, known_hardware, read_hardware, write_hardware

__all__ = ["hardware_names", "known_hardware", "read_hardware", "write_hardware"]
