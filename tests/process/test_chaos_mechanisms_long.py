"""All kinds of faults of test_chaos_mechanisms.py, several times, with the directory as coordination store. Nightly."""

from __future__ import annotations

import pytest
from chaos_runs import endure
from chaos_settings import RECOMPUTE, RESIZE, SPREAD, Settings
from conftest import BUILD
from faults import KINDS

LEAST = 40  # faults


@pytest.mark.nightly
@pytest.mark.parametrize("mode", [RECOMPUTE, RESIZE, SPREAD])
@pytest.mark.timeout(1500)
def test_no_byte_is_wrong_after_every_kind_of_fault(tmp_path, mode):
    settings = Settings(BUILD, megabytes=4, mode=mode)
    slow = ("pause_faults", "store_faults", "neighbour_faults")
    kinds = [name for name, fault in KINDS.items() if fault.fits(settings) and fault.__module__ not in slow]
    tally = endure(tmp_path, settings, 3, kinds,
                   lambda struck, _: set(struck) == set(kinds) and len(struck) >= LEAST)
    assert (tally.wrong, tally.lost, tally.silent) == (0, 0, 0)
