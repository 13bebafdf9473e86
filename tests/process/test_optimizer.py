"""kernels/optimizer.hpp against torch: the same bits, in each CPU capability that torch has on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUILD

STEPS = Path(__file__).with_name("optimizer_steps.py")
LIBRARY = BUILD / "tests" / "liboptimizer_for_tests.so"


@pytest.fixture(scope="module", params=["default", "avx2", "avx512"])
def groups(request) -> dict:
    """What optimizer_steps.py found in a process of this capability."""
    environment = os.environ | {"ATEN_CPU_CAPABILITY": request.param, "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, STEPS, LIBRARY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    if report["capability"] != request.param.upper():
        pytest.skip(f"torch computes with {report['capability']} here")
    return report["groups"]


@pytest.mark.parametrize(
    "group",
    ["every_size", "hundred_steps", "large_tensors", "special_values", "small_values", "bfloat16_gradients"],
)
def test_a_repeated_step_has_the_bits_of_torch(groups, group):
    assert groups[group]["compared"] > 0
    assert groups[group]["differing"] == []


def test_a_step_repeated_as_another_capability_computes_it_is_noticed(groups):
    found = groups["other_capability"]
    assert found["differing_runs"] == found["runs"]
