"""Which test programs ./dev test runs under sanitizers for a change."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "testing"))

import concerned

TARGETS = """\
ckpt_base|src/base|check.cpp;frame_socket.cpp|
ckpt_net|src/net|wire.cpp;tcp_link.cpp|ckpt_base
ckpt_agent|src/agent|agent.cpp;pieces/segments.cpp;../gpu_replication/gpu_source.cpp|ckpt_net
base_test|tests/base|check_test.cpp|ckpt_base
net_wire_test|tests/net|wire_test.cpp|ckpt_net
net_link_test|tests/net|link_test.cpp|ckpt_net
agent_test|tests/agent|agent_test.cpp|ckpt_agent
c_api_test|tests/client|c_api_test.cpp|ckptengine
replay_wire|fuzz|fuzz_wire.cpp|PkgConfig::XXHASH;ckpt_net
"""


@pytest.fixture
def targets(tmp_path):
    (tmp_path / "targets.txt").write_text(TARGETS)
    return concerned.read_targets(tmp_path / "targets.txt")


@pytest.mark.parametrize(
    "changed, programs",
    [
        ("src/net/wire.cpp", ["net_link_test", "net_wire_test", "replay_wire"]),
        ("src/net/wire.hpp", ["net_link_test", "net_wire_test", "replay_wire"]),
        ("src/agent/pieces/segments.cpp", ["agent_test"]),
        ("src/gpu_replication/gpu_source.cpp", ["agent_test"]),
        ("tests/net/wire_test.cpp", ["net_wire_test"]),
        ("tests/net/support.hpp", ["net_link_test", "net_wire_test"]),
        ("fuzz/fuzz_wire.cpp", ["replay_wire"]),
        ("src/client/c_api.cpp", ["c_api_test"]),
        ("include/ckptengine/ckptengine.h", ["c_api_test"]),
        ("docs/protocol.md", []),
        ("src/net/CMakeLists.txt", []),
    ],
)
def test_a_change_concerns_the_programs_that_have_the_source_or_name_its_module(targets, changed, programs):
    assert concerned.concerned_programs(targets, [changed]) == programs


def test_each_program_is_named_once_however_many_files_concern_it(targets):
    changed = ["src/net/wire.cpp", "src/net/tcp_link.cpp", "tests/net/wire_test.cpp"]
    assert concerned.concerned_programs(targets, changed) == ["net_link_test", "net_wire_test", "replay_wire"]
