"""The ABI changes only together with its list: whoever changes it reads docs/api.md first, which says what may change,
and when the SONAME does."""

import ctypes
import difflib
import re
import subprocess

import pytest
from abi import HEADER, LIST, ROOT, listing
from ckptengine import _abi
from conftest import build_file_of

CTYPES = {
    "ckpt_option": _abi.COption,
    "ckpt_tensor": _abi.CTensor,
    "ckpt_restored": _abi.CRestored,
    "ckpt_stats_t": _abi.CStats,
    "ckpt_health_t": _abi.CHealth,
}
ENUMS = {
    "ckpt_status": (_abi.Status, "CKPT_(?:ERR_)?"),
    "ckpt_dtype": (_abi.DType, "CKPT_"),
    "ckpt_memory": (_abi.Memory, "CKPT_"),
    "ckpt_capture": (_abi.Capture, "CKPT_"),
    "ckpt_tier": (_abi.Tier, "CKPT_TIER_"),
    "ckpt_stage": (_abi.Stage, "CKPT_STAGE_"),
    "ckpt_protection": (_abi.Protection, "CKPT_"),
}


def members(kind: str, name: str) -> list[list[str]]:
    """The indented lines below one struct or enum of the list."""
    found = re.search(rf"^{kind} {name} \d+\n((?:  .*\n)+)", LIST.read_text(), re.MULTILINE)
    return [line.split() for line in found[1].splitlines()]


def test_functions_layouts_and_numbers_match_the_list():
    before, now = LIST.read_text(), listing()
    difference = "".join(difflib.unified_diff(before.splitlines(True), now.splitlines(True), "tests/abi.txt", "now"))
    assert not difference, (
        f"the ABI has changed. If docs/api.md allows it: python3 tests/process/abi.py >tests/abi.txt\n{difference}"
    )


def test_library_exports_exactly_the_listed_functions():
    command = ["nm", "--dynamic", "--defined-only", build_file_of("libckptengine.so")]
    symbols = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    exported = {line.split()[2].partition("@")[0] for line in symbols.splitlines() if line.split()[1] != "A"}
    assert exported == set(re.findall(r"^function .*?(ckpt_\w+)\(", LIST.read_text(), re.MULTILINE))


def test_python_has_the_same_layouts_and_numbers():
    for name, struct in CTYPES.items():
        mine = [[getattr(struct, field).offset, getattr(struct, field).size, field] for field, _ in struct._fields_]
        assert [[int(offset), int(size), field] for offset, size, field in members("struct", name)] == mine, name
    for name, (enum, prefix) in ENUMS.items():
        theirs = {re.sub(f"^{prefix}", "", word): int(number) for number, word in members("enum", name)}
        assert theirs == {value.name: value.value for value in enum}, name


@pytest.mark.parametrize(("change", "by"), [
    ("int32_t behind;", "int64_t behind;"),
    ("CKPT_SKIPPED = 1", "CKPT_SKIPPED = 3"),
    ("uint32_t channel, void* stream);", "uint64_t channel, void* stream);"),
    ("  double load_ms;", "  double load_ms;\n  uint64_t more;"),
    ("#define CKPT_COMM_CHANNELS 8", "#define CKPT_COMM_CHANNELS 16"),
])
def test_a_change_of_the_header_changes_the_list(tmp_path, change, by):
    text = HEADER.read_text()
    assert change in text
    header = tmp_path / "ckptengine" / "ckptengine.h"
    header.parent.mkdir()
    header.write_text(text.replace(change, by))
    assert listing(header) != LIST.read_text()


def test_soname_and_symbol_namespace_match_the_docs():
    library = build_file_of("libckptengine.so")
    dynamic = subprocess.run(["readelf", "-dW", library], check=True, capture_output=True, text=True).stdout
    soname = re.search(r"soname: \[libckptengine\.so\.(\d+)\]", dynamic)[1]
    assert f"Now it is {soname}." in (ROOT / "docs" / "api.md").read_text()
    assert f"CKPTENGINE_{soname} " in (ROOT / "src" / "client" / "exports.map").read_text()
    assert ctypes.CDLL(library).ckpt_is_error(0) == 0
