"""Runs the fuzzers of a build folder, one after the other. Ends with "fuzz: targets=N crashes=N"."""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

INPUT_MAX_BYTES = 32 << 10
INPUT_TIMEOUT_S = 10  # of one input
KEEP_TIMEOUT_S = 1800
CORPUS = Path(__file__).resolve().parent.parent / "fuzz/corpus"
KEPT_MAX_BYTES = 2 << 10  # of an input that the repository keeps
MARGIN_S = 60  # for starting and reading the corpus
SHOWN = 4000  # characters of a crash


def find_targets(build, only):
    files = sorted((build / "fuzz").iterdir()) if (build / "fuzz").is_dir() else []
    programs = [file for file in files if file.is_file() and "." not in file.name and os.access(file, os.X_OK)]
    return [program for program in programs if not only or program.name == only]


def run(program, build, seconds):
    """What the program said when it crashed; nothing if it did not."""
    corpus, crashes = build / "corpus" / program.name, build / "crashes" / program.name
    corpus.mkdir(parents=True, exist_ok=True)
    crashes.mkdir(parents=True, exist_ok=True)
    write_inputs(kept_inputs(program.name), corpus)
    log = build / "corpus" / f"{program.name}.log"
    limits = [f"-max_total_time={seconds}", f"-timeout={INPUT_TIMEOUT_S}", f"-max_len={INPUT_MAX_BYTES}"]
    fuzz = [program, *limits, f"-artifact_prefix={crashes}/", corpus, crashes]
    with open(log, "w") as output:
        try:
            subprocess.run([program, "--seeds", corpus], check=True, stdout=output, stderr=output, timeout=MARGIN_S)
            status = subprocess.run(
                fuzz,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=seconds + INPUT_TIMEOUT_S + MARGIN_S,
                env=os.environ | {"UBSAN_OPTIONS": "print_stacktrace=1"},
            ).returncode
        except subprocess.SubprocessError as error:
            return f"{error}\n{log.read_text(errors='replace')[-SHOWN:]}"
    if status == 0:
        return None
    text = log.read_text(errors="replace")
    first = re.search(r"^.*(ERROR: |runtime error: |terminate called)", text, re.MULTILINE)
    return text[first.start() if first else -SHOWN :][:SHOWN]


def kept_inputs(name):
    """What the repository keeps for a target: a line of hexadecimal digits for each input."""
    file = CORPUS / f"{name}.hex"
    return [bytes.fromhex(line) for line in file.read_text().splitlines()] if file.exists() else []


def write_inputs(inputs, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for data in inputs:
        (folder / f"kept-{hashlib.sha1(data).hexdigest()}").write_bytes(data)


def keep(program, build):
    """Adds to what the repository keeps those of the shorter inputs that reach code which nothing there reaches."""
    kept = build / "kept" / program.name
    shutil.rmtree(kept, ignore_errors=True)
    write_inputs(kept_inputs(program.name), kept)
    merge = [program, "-merge=1", "-use_counters=0", f"-max_len={KEPT_MAX_BYTES}"]
    with open(build / "corpus" / f"{program.name}.log", "a") as log:
        subprocess.run(
            [*merge, kept, build / "corpus" / program.name],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=KEEP_TIMEOUT_S,
        )
    lines = sorted({file.read_bytes().hex() for file in kept.iterdir()} - {""}, key=lambda line: (len(line), line))
    CORPUS.mkdir(parents=True, exist_ok=True)
    (CORPUS / f"{program.name}.hex").write_text("".join(f"{line}\n" for line in lines))


def write_report(path, crashes):
    suite = xml.Element("testsuite", name="fuzz")
    for name, crash in crashes.items():
        case = xml.SubElement(suite, "testcase", name=name)
        if crash:
            printable = re.sub(r"[^\x20-\x7e\n\t]", "?", crash)
            xml.SubElement(case, "failure", message="crashed").text = printable
    xml.ElementTree(suite).write(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=60, help="time for all fuzzers together")
    parser.add_argument("--only", default="", help="run only this fuzzer")
    parser.add_argument("--keep", action="store_true", help=f"add inputs that reach new code to {CORPUS}")
    parser.add_argument("--junit", type=Path, help="where to write the outcomes as JUnit XML")
    arguments = parser.parse_args()
    targets = find_targets(arguments.build, arguments.only)
    if not targets:
        names = " ".join(program.name for program in find_targets(arguments.build, ""))
        sys.exit(f"dev: there is no fuzzer '{arguments.only}'; the fuzzers are: {names}")
    crashes = {}
    for program in targets:
        seconds = max(1, arguments.seconds // len(targets))
        print(f"==> fuzz: {program.name}, {seconds} s", file=sys.stderr, flush=True)
        crashes[program.name] = run(program, arguments.build, seconds)
        if crashes[program.name]:
            print(crashes[program.name], file=sys.stderr)
        elif arguments.keep:
            keep(program, arguments.build)
    if arguments.junit:
        write_report(arguments.junit, crashes)
    crashed = sum(1 for crash in crashes.values() if crash)
    print(f"fuzz: targets={len(targets)} crashes={crashed}")
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
