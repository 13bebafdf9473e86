#!/usr/bin/env python3
"""Makes a wheel that needs nothing but glibc, libstdc++ and CPython.

    make_wheel.py PURE INSTALLED FOLDER

PURE is the wheel of the Python files alone, INSTALLED what `cmake --install` wrote (bin/, lib/). The wheel goes into
FOLDER; its path is the last line printed. Needs patchelf, strip, readelf and the package `wheel`.

The programs bring all shared libraries along except glibc's, by relative paths. libckptengine is loaded into other
people's Python processes, beside their own libraries. It takes libstdc++ from the system, as all manylinux wheels do.
UCX's plug-ins come along; those for RDMA take libibverbs and librdmacm from the machine, which match its drivers.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

GLIBC = re.compile(r"(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util|anl|nsl|nss_[a-z]+))\.so[.0-9]*$")
FROM_THE_SYSTEM = re.compile(r"(libstdc\+\+|libgcc_s)\.so[.0-9]*$")
LIMIT_BYTES = 40 << 20
INTERPOSE = "libckptinterpose.so"


def output_of(*command) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def needed_libraries(file: Path) -> list[Path]:
    """All that it needs, directly or not, except glibc's. Those that this machine lacks fail the build."""
    found = []
    for line in output_of("ldd", file).splitlines():
        words = line.split()
        if "not found" in line:
            sys.exit(
                f"dev: {file.name} needs the library {words[0]}, which this machine does not have; install it and run "
                "this again"
            )
        if len(words) > 2 and words[1] == "=>" and not GLIBC.search(words[0]):
            found.append(Path(words[2]))
    return found


def copy_library(source: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(source, folder / source.name))


def add_libraries(programs: list[Path], folder: Path) -> None:
    """What the programs need and, into ucx/, the plug-ins of their UCX, by the names that it asks for."""
    for library in sorted({library for program in programs for library in needed_libraries(program)}):
        copy_library(library, folder)
        if library.name.startswith("libucs.so"):
            for plugin in sorted(library.parent.glob("ucx/lib*.so.0")):
                copy_library(plugin, folder / "ucx")


def make_relative(package: Path) -> None:
    """Everything finds its libraries in lib/. DT_RPATH holds for the libraries' own needs, too."""
    for folder, path in (("bin", "$ORIGIN/../lib"), ("lib", "$ORIGIN"), ("lib/ucx", "$ORIGIN/..")):
        for file in sorted(package.joinpath(folder).glob("*")):
            if not file.is_file():
                continue
            subprocess.run(["strip", "--strip-unneeded", file], check=True)
            if file.name.startswith("libckptengine.so") or file.name == INTERPOSE:
                subprocess.run(["patchelf", "--remove-rpath", file], check=True)
                foreign = [one.name for one in needed_libraries(file) if not FROM_THE_SYSTEM.search(one.name)]
                if foreign:
                    sys.exit(
                        f"dev: {file.name} may need no library besides glibc and libstdc++, but needs "
                        f"{', '.join(foreign)}"
                    )
            else:
                subprocess.run(["patchelf", "--force-rpath", "--set-rpath", path, file], check=True)
            file.chmod(0o755)


def newest_glibc_asked_for(package: Path) -> tuple[int, ...]:
    versions = {(2, 17)}
    for file in package.rglob("*"):
        if file.is_file() and file.parent.name in ("bin", "lib", "ucx"):
            found = re.findall(r"\bGLIBC_(\d+)\.(\d+)", output_of("readelf", "--version-info", "--wide", file))
            versions |= {(int(major), int(minor)) for major, minor in found}
    return max(versions)


def platform_tag(package: Path) -> str:
    """Named after this machine's glibc: where it is older, libstdc++ may be, too."""
    here = tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))
    asked = newest_glibc_asked_for(package)
    if asked > here:
        sys.exit(
            f"dev: the files ask for glibc {asked}, and this machine has {here}; build on a machine with one glibc"
        )
    return f"py3-none-manylinux_{here[0]}_{here[1]}_{os.uname().machine}"


def main() -> None:
    pure, installed, folder = (Path(argument).resolve() for argument in sys.argv[1:4])
    stage = folder / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    with zipfile.ZipFile(pure) as archive:
        archive.extractall(stage)
    package = stage / "ckptengine"
    (package / "bin").mkdir()
    programs = [installed / "bin" / name for name in ("ckptd", "ckptctl")]
    for program in programs:
        shutil.copyfile(program, package / "bin" / program.name)
    engine = (installed / "lib" / "libckptengine.so").resolve(strict=True)
    (package / "lib").mkdir()
    shutil.copyfile(engine, package / "lib" / "libckptengine.so.0")
    shutil.copyfile(installed / "lib" / INTERPOSE, package / "lib" / INTERPOSE)
    add_libraries(programs, package / "lib")
    make_relative(package)
    tag = platform_tag(package)
    [info] = stage.glob("*.dist-info")
    text = (info / "WHEEL").read_text()
    text = re.sub(r"(?m)^Tag: .*$", f"Tag: {tag}", text)
    (info / "WHEEL").write_text(re.sub(r"(?m)^Root-Is-Purelib: .*$", "Root-Is-Purelib: false", text))
    output_of(sys.executable, "-m", "wheel", "pack", stage, "--dest-dir", folder)
    shutil.rmtree(stage)
    wheel = folder / f"{info.name.removesuffix('.dist-info')}-{tag}.whl"
    size = wheel.stat().st_size
    if size > LIMIT_BYTES:
        sys.exit(
            f"dev: {wheel} has {size >> 20} MiB, but at most {LIMIT_BYTES >> 20} MiB are allowed; see what grew in "
            "its lib/"
        )
    print(os.path.relpath(wheel))


main()
