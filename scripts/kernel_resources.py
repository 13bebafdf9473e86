"""Checks what the kernels of capture and restore take of a GPU, without a GPU: kernel_resources.py PTXAS FILE.ptx

For each kind of GPU, ptxas tells registers, spills and local memory. The text of PTX has the loads and stores. Ends
with status 1 and a line for each thing that is worse than it was.
"""

from __future__ import annotations

import re
import subprocess
import sys

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")

# Registers that each kernel may use. With more, fewer blocks run on a multiprocessor at a time.
REGISTERS_MAX = {"ckpt_pack": 64, "ckpt_unpack": 48}
# What it must have of 128-bit accesses: without them it moves bytes one by one.
WIDE = {"ckpt_pack": ("ld", "st"), "ckpt_unpack": ("ld", "st")}


def assembled(ptxas: str, architecture: str, file: str) -> dict[str, dict[str, int]]:
    """The figures that ptxas tells of each kernel."""
    command = [ptxas, "-v", f"-arch={architecture}", "-o", "/dev/null", file]
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
        kernels[name] = {"stack": int(stack), "spills": int(stores) + int(loads), "registers": int(registers)}
    return kernels


def bodies(text: str) -> dict[str, str]:
    """The instructions of each kernel."""
    return dict(re.findall(r"\.entry (\w+)\(.*?\n\{(.*?)\n\}", text, re.DOTALL))


def worse(ptxas: str, file: str) -> list[str]:
    with open(file) as ptx:
        instructions = bodies(ptx.read())
    found = [f"{name} is not in {file}" for name in REGISTERS_MAX if name not in instructions]
    for name, body in instructions.items():
        found += [
            f"{name} has no 128-bit {what}" for what in WIDE[name] if not re.search(rf"\b{what}\.\S*v4\.[bfu]32", body)
        ]
    for architecture in ARCHITECTURES:
        for name, has in assembled(ptxas, architecture, file).items():
            print(f"{architecture} {name}: {has['registers']} registers")
            if has["stack"] or has["spills"]:
                found.append(f"{name} uses local memory on {architecture}: {has}")
            if has["registers"] > REGISTERS_MAX[name]:
                found.append(f"{name} uses {has['registers']} registers on {architecture}, not {REGISTERS_MAX[name]}")
    return found


def main() -> int:
    ptxas, file = sys.argv[1:]
    found = worse(ptxas, file)
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
