"""Breaks the core on purpose and expects somebody to notice.

Each *.patch beside this file breaks one rule of src/core. Its head says which, and who must notice:

    Expect: I4                          the simulator reports a violation of this invariant
    Expect: test PROGRAM FILTER         a test of this GoogleTest program fails, of those that the filter names

Only the patched file is compiled again, then linked with the rest as built.

If CKPTENGINE_TEST_CORE_CHANGES lists files (paths in the source tree, one per line), only the mutants run that a
change of these files concerns: their patch changed, or the source that they break, or who must notice.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

COMPILE_TIMEOUT_S = 600
RUN_TIMEOUT_S = 300
SIMULATOR = "ckpt_sim"
VIOLATION = re.compile(r"^seed (\d+) at \d+ ms: (\S+): (.*)$", re.MULTILINE)
FAILED_TEST = re.compile(r"^\[  FAILED  \] (\S+?),? ", re.MULTILINE)
BEGUN_TEST = re.compile(r"^\[ RUN      \] (\S+)$", re.MULTILINE)


@dataclass
class Mutant:
    name: str
    patch: Path
    rule: str
    gate: str  # an invariant of the simulator, or "test"
    program: str
    filter: str  # of a test program
    source: str


@dataclass
class Verdict:
    caught: bool
    text: str


def read_mutant(patch):
    text = patch.read_text()
    rule = re.search(r"^Rule: (.*)$", text, re.MULTILINE)
    expected = re.search(r"^Expect: (?:(I(?:[1-9]|1[0-3]))|(test) (\S+) (\S+))$", text, re.MULTILINE)
    sources = re.findall(r"^\+\+\+ b/(src/core/\S+\.cpp)$", text, re.MULTILINE)
    if not rule or not expected or len(sources) != 1:
        sys.exit(
            f"{patch}: needs 'Rule:', 'Expect: I1..I13' or 'Expect: test PROGRAM FILTER', "
            "and a patch of one source of src/core"
        )
    invariant, test, program, tests = expected.groups()
    return Mutant(patch.stem, patch, rule[1], invariant or test, program or SIMULATOR, tests or "", sources[0])


def is_concerned(mutant, changed, source_tree):
    """Whether a change of these files can let the mutant pass unnoticed, or keep its patch from applying."""
    if {f"tests/mutants/{mutant.patch.name}", mutant.source} & changed:
        return True
    if mutant.gate != "test":
        return any(file.startswith("src/sim/") for file in changed)
    suite = mutant.filter.split(".")[0]
    tests = [source_tree / file for file in changed if file.startswith("tests/core/")]
    return any(suite in test.read_text() for test in tests if test.is_file())


def compile_command(commands, source):
    for entry in commands:
        if Path(entry["file"]).resolve() == source.resolve():
            return shlex.split(entry["command"])
    sys.exit(f"compile_commands.json does not name {source}")


def build(mutant, arguments, commands):
    """Returns the program that must notice, with the mutant in it, or a text that says why there is none."""
    work = arguments.work / mutant.name
    shutil.rmtree(work, ignore_errors=True)
    (work / "src").mkdir(parents=True)
    shutil.copytree(arguments.source / "src/core", work / "src/core")
    patched = subprocess.run(
        ["patch", "--batch", "--no-backup-if-mismatch", "--fuzz=0", "-p1", "-i", str(mutant.patch)],
        cwd=work, capture_output=True, text=True, check=False,
    )
    if patched.returncode != 0:
        return f"the patch no longer applies: {patched.stdout.strip()}"
    command = compile_command(commands, arguments.source / mutant.source)
    flags = [word for word in command if re.match(r"-(O|g|f|m|D|std=)", word)]
    if mutant.gate == "test":
        flags.append("-O1")  # one run of a few tests is shorter than a better compilation
    compiler = next(word for word in command if re.search(r"(\+\+|g\+\+-\d+|clang\+\+-\d+)$", word))
    includes = [f"-I{work}/src", f"-I{arguments.source}", f"-I{arguments.source}/src"]
    program = work / mutant.program
    linked = [*arguments.programs[mutant.program], *map(str, arguments.libraries)]
    linker = ["-fuse-ld=mold"] if shutil.which("mold") else []
    compiled = subprocess.run(
        [compiler, *flags, *includes, str(work / mutant.source), *linked, *linker, "-pthread", "-o", str(program)],
        capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False,
    )
    if compiled.returncode != 0:
        return f"it does not compile: {compiled.stderr.strip()[:500]}"
    return program


def judge(mutant, arguments, commands):
    program = build(mutant, arguments, commands)
    if isinstance(program, str):
        return Verdict(False, program)
    if mutant.gate == "test":
        return judge_tests(mutant, program)
    command = [str(program), "--seeds", str(arguments.seeds), "--violations", "10", "--jobs", "1"]
    return judge_run(mutant, command, arguments.seeds)


def judge_tests(mutant, program):
    try:
        run = subprocess.run(
            [program, f"--gtest_filter={mutant.filter}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_TIMEOUT_S, check=False,
        )
    except subprocess.TimeoutExpired:
        return Verdict(False, f"{mutant.program} took too long")
    failed = FAILED_TEST.search(run.stdout)
    if failed:
        return Verdict(True, f"{failed[1]} fails")
    begun = BEGUN_TEST.findall(run.stdout)
    if run.returncode < 0 and begun:
        return Verdict(True, f"{begun[-1]} ends with signal {-run.returncode}")
    if run.returncode != 0:
        return Verdict(False, f"{mutant.program} itself failed: {run.stdout[-500:].strip()}")
    return Verdict(False, f"no test of {mutant.program} {mutant.filter} failed: {mutant.rule}")


def judge_run(mutant, command, seeds):
    """Ends the run with the first violation that is expected: they are printed as they are found."""
    lines = []
    others = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        deadline = threading.Timer(RUN_TIMEOUT_S, run.kill)
        deadline.start()
        try:
            for line in run.stdout:
                lines.append(line)
                violation = VIOLATION.match(line)
                if violation and violation[2] == mutant.gate:
                    return Verdict(True, f"seed {violation[1]}: {violation[3]}")
                if violation:
                    others.add(violation[2])
        finally:
            deadline.cancel()
            run.kill()
    if not lines or not lines[-1].startswith("sim: seeds="):
        return Verdict(False, f"the simulator itself failed, or took too long: {''.join(lines[-3:]).strip()}")
    tripped = ", ".join(sorted(others)) or "nothing"
    return Verdict(False, f"{mutant.gate} did not trip in {seeds} seeds ({tripped} did): {mutant.rule}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="root of the source tree")
    parser.add_argument("--commands", type=Path, required=True, help="compile_commands.json of the build")
    parser.add_argument("--program", nargs="+", action="append", required=True, metavar=("NAME", "OBJECT"),
                        help="one that may notice, and its objects")
    parser.add_argument("--libraries", type=Path, nargs="+", required=True, help="of all programs, in link order")
    parser.add_argument("--work", type=Path, required=True, help="folder for the mutants")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds the simulator has")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="only mutants whose name contains this")
    arguments = parser.parse_args()
    arguments.programs = {name: objects for name, *objects in arguments.program}

    patches = sorted(Path(__file__).parent.glob("*.patch"))
    mutants = [read_mutant(patch) for patch in patches if arguments.only in patch.stem]
    changed = set(os.environ.get("CKPTENGINE_TEST_CORE_CHANGES", "").split())
    if changed:
        all_of_them = len(mutants)
        mutants = [mutant for mutant in mutants if is_concerned(mutant, changed, arguments.source)]
        print(f"{len(mutants)} of {all_of_them} mutants are concerned by what changed")
    unknown = {mutant.program for mutant in mutants} - arguments.programs.keys()
    if unknown:
        sys.exit(f"no objects were given of {', '.join(sorted(unknown))}: tests/mutants/CMakeLists.txt lists programs")
    commands = json.loads(arguments.commands.read_text())
    escaped = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        verdicts = pool.map(lambda each: judge(each, arguments, commands), mutants)
        for mutant, verdict in zip(mutants, verdicts, strict=True):
            word = "caught " if verdict.caught else "ESCAPED"
            print(f"{word} {mutant.gate} {mutant.name}: {verdict.text}", flush=True)
            escaped += not verdict.caught
    print(f"mutants: caught={len(mutants) - escaped} escaped={escaped}")
    return 1 if escaped or not (mutants or changed) else 0


if __name__ == "__main__":
    sys.exit(main())
