"""What a machine needs for one MoE layer of one step: expert products and the all-to-all around them.

A profile is data (:class:`HardwareProfile`); what a layout makes of it is worked out by :mod:`placement.score`.
"""

from placement.hardware.all_to_all import AllToAll, Sends
from placement.hardware.expert_times import ARITHMETIC, ExpertTimes
from placement.hardware.profile import HardwareProfile, Phase

__all__ = ["ARITHMETIC", "AllToAll", "ExpertTimes", "HardwareProfile", "Phase", "Sends"]
