"""Checks what the GPU kernels take of a GPU, without a GPU: kernel_resources.py PTXAS FILE.ptx...

For each kind of GPU, ptxas compiles the kernels, and says how many registers and how much local memory they use. The
disassembly then shows how many 128-bit loads a thread has in flight: so many follow each other within a loop, before a
branch or the first use of what they load. Ends with status 1 and a line for each thing that is worse than it was, or
that could not be checked.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


@dataclass(frozen=True)
class Limits:
    registers: int  # at most. With more, fewer blocks run on a multiprocessor at a time
    loads: int  # at least so many 128-bit loads of a thread are in flight together


# XOR is encode<1, plain>. The second word says whether the first row is all ones.
LIMITS = {
    "ckpt_pack": Limits(64, 4),
    "ckpt_unpack": Limits(48, 4),
    "ckpt_encode_plain": Limits(184, 4),
    "ckpt_encode_any": Limits(248, 4),
    "encode<1, plain>": Limits(64, 4),
    "encode<2, plain>": Limits(96, 4),
    "encode<3, plain>": Limits(128, 4),
    "encode<4, plain>": Limits(168, 4),
    "encode<1, any>": Limits(96, 4),
    "encode<2, any>": Limits(128, 4),
    "encode<3, any>": Limits(168, 4),
    "encode<4, any>": Limits(224, 4),
}


def readable(name: str) -> str:
    """The name of a kernel, as LIMITS has it."""
    encode = re.search(r"6encode.*?OutputsILi(\d)ELb([01])E", name)
    return f"encode<{encode[1]}, {('any', 'plain')[int(encode[2])]}>" if encode else name


def find_nvdisasm(ptxas: str) -> str:
    """NVIDIA's disassembler: that of the toolkit, or the one that scripts/requirements_cuda.txt installs."""
    installed = ROOT.glob(".venv/lib/python3*/site-packages/nvidia/cu*/bin/nvdisasm")
    for found in (shutil.which("nvdisasm"), Path(ptxas).resolve().with_name("nvdisasm"), *installed):
        if found and Path(found).exists():
            return str(found)
    raise SystemExit(
        "there is no nvdisasm on the PATH, beside ptxas, or in .venv, so the kernels cannot be checked: "
        "run '.venv/bin/pip install -r scripts/requirements_cuda.txt'"
    )


def assembled(ptxas: str, architecture: str, file: str, cubin: Path) -> dict[str, dict[str, int]]:
    """Compiles the kernels, and returns the figures that ptxas tells of each."""
    command = [ptxas, "-v", f"-arch={architecture}", "-o", cubin, file]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0 and "is not defined for option" in done.stderr + done.stdout:
        return {}  # an older ptxas
    if done.returncode != 0:
        raise SystemExit(f"ptxas refuses {file} for {architecture}:\n{done.stderr}{done.stdout}")
    kernels: dict[str, dict[str, int]] = {}
    for part in re.split(r"Compiling entry function ", done.stderr + done.stdout)[1:]:
        figures = re.search(
            r"'(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
            r".*?Used (\d+) registers",
            part,
            re.DOTALL,
        )
        if figures is None:
            raise SystemExit(f"this script does not understand this output of ptxas:\n{part}")
        name, stack, stores, loads, registers = figures.groups()
        kernels[readable(name)] = {"stack": int(stack), "spills": int(stores) + int(loads), "registers": int(registers)}
    return kernels


def disassembled(nvdisasm: str, cubin: Path) -> dict[str, list[str]]:
    """The instructions and labels of each kernel."""
    text = subprocess.run([nvdisasm, "-c", cubin], check=True, capture_output=True, text=True).stdout
    kernels: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if section := re.match(r"\.text\.(\w+):", line):
            lines = kernels.setdefault(readable(section[1]), [])
        elif label := re.match(r"(\.L_x_\d+):", line):
            lines.append(label[1])
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            lines.append(instruction[1])
    return kernels


def loads_in_flight(lines: list[str]) -> int:
    """The largest number of 128-bit loads in a row that are within a loop."""
    at = {line: i for i, line in enumerate(lines) if line.startswith(".L")}
    branches = [(i, target[1]) for i, line in enumerate(lines) if (target := re.search(r"\bBRA\b.*(\.L_x_\d+)", line))]
    loops = [(at[target], i) for i, target in branches if target in at and at[target] < i]
    most = 0
    loaded: list[int] = []  # the registers that the row's loads write
    for i, line in enumerate(lines):
        load = re.search(r"\bLDG\S*\.128\b.*? R(\d+), ", line)
        used = {int(register) for register in re.findall(r"\bR(\d+)\b", line[load.end() :] if load else line)}
        if line.startswith(".L") or re.search(r"\b(BRA|EXIT|RET|CALL)\b", line) or used & set(loaded):
            loaded = []
        elif load and any(first < i < last for first, last in loops):
            loaded += range(int(load[1]), int(load[1]) + 4)
        most = max(most, len(loaded) // 4)
    return most


def worse(architecture: str, name: str, figures: dict[str, int], lines: list[str]) -> list[str]:
    limits, loads = LIMITS[name], loads_in_flight(lines)
    print(f"{architecture} {name}: {figures['registers']} registers, {loads} loads in flight")
    found = []
    if figures["stack"] or figures["spills"] or any(re.search(r"\b(LDL|STL)\b", line) for line in lines):
        found.append(f"{name} uses local memory on {architecture}: {figures}")
    if figures["registers"] > limits.registers:
        found.append(f"{name} uses {figures['registers']} registers on {architecture}, not {limits.registers}")
    if loads < limits.loads:
        found.append(f"{name} has {loads} 128-bit loads in flight on {architecture}, not {limits.loads}")
    if not any(re.search(r"\bSTG\S*\.128\b", line) for line in lines):
        found.append(f"{name} has no 128-bit store on {architecture}")
    return found


def checked(ptxas: str, files: list[str]) -> list[str]:
    nvdisasm = find_nvdisasm(ptxas)
    found, seen = [], set()
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernels.cubin"
        for file in files:
            for architecture in ARCHITECTURES:
                kernels = assembled(ptxas, architecture, file, cubin)
                instructions = disassembled(nvdisasm, cubin) if kernels else {}
                for name, figures in kernels.items():
                    found += worse(architecture, name, figures, instructions[name])
                    seen.add(name)
    return found + [f"{name} is in none of the files" for name in LIMITS.keys() - seen]


def main() -> int:
    ptxas, *files = sys.argv[1:]
    found = checked(ptxas, files)
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
