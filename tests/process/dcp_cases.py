"""Cases in which torch's own tests of distributed checkpoints use a FileSystemWriter and a FileSystemReader, stated
anew for ckptengine.dcp. For test_dcp_torch_cases.py.
"""

from __future__ import annotations

import dcp_dtensor_cases
import dcp_plain_cases
import dcp_program_cases
import dcp_sharded_cases
from dcp_case import CASES, run

__all__ = ["CASES", "dcp_dtensor_cases", "dcp_plain_cases", "dcp_program_cases", "dcp_sharded_cases", "run"]
