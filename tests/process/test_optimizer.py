"""kernels/optimizer.hpp against torch: the same bits, in each CPU capability that torch has on this machine. If
CKPTENGINE_TEST_GPU is "real", on this machine's GPU, too."""

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


IS_REAL = os.environ.get("CKPTENGINE_TEST_GPU") == "real"
CAPABILITIES = ["default", "avx2", "avx512"]


# A sample of the cases for each change. All of them, and the capability between the others, nightly.
PARAMETERS = [*(f"{name}-sample" for name in ("default", "avx512")), *CAPABILITIES, *(["cuda"] if IS_REAL else [])]


@pytest.fixture(scope="module", params=[
    pytest.param(name, marks=pytest.mark.nightly) if name in CAPABILITIES else name for name in PARAMETERS])
def groups(request) -> dict:
    """What optimizer_steps.py found in a process of this capability."""
    capability, _, extent = request.param.partition("-")
    is_gpu = capability == "cuda"
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
    if not is_gpu:
        environment["ATEN_CPU_CAPABILITY"] = capability
    command = [sys.executable, STEPS, LIBRARY, capability, *filter(None, [extent])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    if report["capability"].lower() != capability:
        pytest.skip(f"torch computes with {report['capability']} here")
    return report["groups"]


@pytest.mark.parametrize(
    "group",
    ["every_size", "hundred_steps", "large_tensors", "special_values", "small_values", "bfloat16_gradients"],
)
def test_repeated_step_matches_torch_bit_for_bit(groups, group):
    assert groups[group]["compared"] > 0
    assert groups[group]["differing"] == []


def test_a_step_repeated_as_another_capability_computes_it_is_noticed(groups):
    if "other_capability" not in groups:
        pytest.skip("for an SGD, a GPU rounds as a CPU does")
    found = groups["other_capability"]
    assert found["differing_runs"] == found["runs"]
