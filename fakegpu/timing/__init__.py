"""Modelled time of one operation on a described cluster; pure, no clock.

`TimeModel.estimate` answers how long, by which algorithm and protocol, and why; `TimeModel.traffic` who sends how
many bytes to whom under that algorithm. Called by the recorder's accounting, by reports and by `fakegpu estimate`.
"""

from fakegpu.timing.group import estimate_group
from fakegpu.timing.model import Estimate, TimeModel
from fakegpu.timing.shapes import Operation, bus_factor, logical_payload_bytes

__all__ = ["Estimate", "Operation", "TimeModel", "bus_factor", "estimate_group", "logical_payload_bytes"]
