"""Which phases a test run has. CONTRIBUTING.md says why each test runs where it does.

A phase that runs tests has the name of its report, PRESET-ctest or PRESET-pytest.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import concerned
from phases import Phase, say

HERE = Path(__file__).resolve().parent
VENV_PYTHON = ".venv/bin/python"
SETUP = "command_name=test; source scripts/common.sh; source scripts/setup.sh;"
SANITIZERS = ("asan", "tsan")
FUZZ_S = 600
WHEEL_TIMEOUT_S = 1800
WHEEL_TESTS = "tests/wheel"


def phases_of(arguments: Namespace, results: Path) -> list[Phase]:
    if arguments.kind == "all":
        return everything(results)
    if arguments.kind == "preset":
        return of_preset(arguments.preset, arguments.only, results)
    changed = concerned.changed_files(arguments.since)
    if arguments.kind == "fast":
        return quick(changed, results)
    return of_change(changed, results)


def of_change(changed: list[str] | None, results: Path) -> list[Phase]:
    """All tests in release; under sanitizers, the programs that the change concerns."""
    has_mutants = concerned_by_core(changed)
    return [
        python_packages(),
        build("release", "python_tests", name="release-product"),
        build("release", "change", *(["mutants"] if has_mutants else []), needs=("release-product",),
              then=lambda: sanitizer_phases(changed, results)),
        pytest("release", "change", results, needs=("python-packages", "release-product")),
        ctest("release", results, "--scope", "change", needs=("release-build",)),
        *([mutants(changed, results)] if has_mutants else []),
    ]


def concerned_by_core(changed: list[str] | None) -> bool:
    return changed is None or any(file.startswith(concerned.CORE) for file in changed)


def sanitizer_phases(changed: list[str] | None, results: Path) -> list[Phase]:
    """One sanitizer after the other, beside the tests of release, which mostly wait."""
    phases: list[Phase] = []
    for preset in SANITIZERS:
        programs = programs_of(preset, changed)
        say(f"{preset}: the change concerns {len(programs)} test programs")
        if not programs:
            continue
        before = tuple(phase.name for phase in phases)
        phases.append(build(preset, *programs, after=before[:1], is_urgent=False))
        phases.append(ctest(preset, results, "--scope", "change", "--programs", *programs,
                            needs=(f"{preset}-build",), after=before))
    return phases


def programs_of(preset: str, changed: list[str] | None) -> list[str]:
    """The test programs of a preset that the change concerns and that are not for the nightly run alone."""
    subprocess.run(["bash", "-c", f"{SETUP} source scripts/build.sh; configure {preset}"], check=True)
    targets = concerned.read_targets(Path("build", preset, "targets.txt"))
    if changed is None:
        chosen = [name for name, target in targets.items() if concerned.is_test(target)]
    else:
        chosen = concerned.concerned_programs(targets, changed)
    each_time = each_change_builds(preset)
    return [name for name in chosen if name in each_time]


def each_change_builds(preset: str) -> set[str]:
    """Names of the programs below the target `change`."""
    listed = subprocess.run(
        ["ninja", "-C", f"build/{preset}", "-t", "query", "change"], capture_output=True, text=True, check=True
    )
    return {Path(line.strip("| \n")).name for line in listed.stdout.splitlines()}


def quick(changed: list[str] | None, results: Path) -> list[Phase]:
    """In release, the programs that the change concerns, and Python tests of the engine and of what changed."""
    def concerned_in_release() -> list[Phase]:
        programs = programs_of("release", changed)
        say(f"release: the change concerns {len(programs)} test programs")
        if not programs:
            return []
        return [build("release", *programs),
                ctest("release", results, "--scope", "change", "--programs", *programs, needs=("release-build",))]

    return [
        python_packages(),
        build("release", "python_tests", name="release-product", then=concerned_in_release),
        pytest("release", "quick", results, *changed_python_tests(changed),
               needs=("python-packages", "release-product")),
    ]


def changed_python_tests(changed: list[str] | None) -> list[str]:
    files = [file for file in changed or [] if Path(file).match("test_*.py") and Path(file).exists()]
    return ["--files", *files] if files else []


def of_preset(preset: str, only: str, results: Path) -> list[Phase]:
    """All tests of a preset but the long ones, or those whose name contains `only`."""
    chosen = ["--only", only] if only else []
    phases = [python_packages(), build(preset), ctest(preset, results, *chosen, needs=(f"{preset}-build",))]
    if preset in SANITIZERS:
        return phases
    return [*phases, pytest(preset, "all", results, *chosen, needs=("python-packages", f"{preset}-build"),
                            after=(f"{preset}-ctest",))]


def everything(results: Path) -> list[Phase]:
    """The nightly run. One phase of tests runs at a time, beside the next build."""
    return [
        python_packages("ensure_training_systems"),
        build("release", "all", "mutants"),
        pytest("release", "all", results, needs=("python-packages", "release-build")),
        ctest("release", results, "--scope", "all", needs=("release-build",), after=("release-pytest",)),
        build("asan", after=("release-build",), is_urgent=False),
        ctest("asan", results, "--scope", "all", needs=("asan-build",), after=("release-ctest",)),
        build("tsan", after=("asan-build",), is_urgent=False),
        ctest("tsan", results, "--scope", "all", needs=("tsan-build",), after=("asan-ctest",)),
        build("fuzz", "fuzzers", after=("tsan-build",), is_urgent=False),
        Phase("fuzz", [VENV_PYTHON, "scripts/run_fuzzers.py", "--build", "build/fuzz", "--seconds", str(FUZZ_S),
                       "--junit", str(results / "fuzz.xml")], needs=("python-packages", "fuzz-build"),
              after=("tsan-ctest",)),
        Phase("wheel-pytest", ["bash", "-c", f"WHEEL=$(./dev wheel | tail -n 1) exec {VENV_PYTHON} -m pytest -q "
                               f"--no-summary --rootdir . --timeout {WHEEL_TIMEOUT_S} -o junit_family=xunit1 "
                               f"--junit-xml={results}/wheel-pytest.xml {WHEEL_TESTS}"],
              needs=("python-packages",), after=("fuzz",)),
    ]


def python_packages(*more: str) -> Phase:
    """The virtual environment of the Python tests. `more` names further functions of scripts/setup.sh."""
    functions = "; ".join(["ensure_venv", "ensure_integrations", "ensure_cuda_tools", *more])
    return Phase("python-packages", ["bash", "-c", f"{SETUP} {functions}"])


def build(preset: str, *targets: str, name: str = "", **when) -> Phase:
    command = ["bash", "-c", f'{SETUP} source scripts/build.sh; build "$@"', "build", preset, *targets]
    return Phase(name or f"{preset}-build", command, **when)


def ctest(preset: str, results: Path, *choice: str, **when) -> Phase:
    # ThreadSanitizer's programs run without address randomization; scripts/build.sh says why.
    command = ["bash", "-c", f'{SETUP} source scripts/build.sh; exec $(preset_prefix {preset}) "$@"', "ctest",
               sys.executable, str(HERE / "cpp_tests.py"), "--preset", preset, "--results", str(results), *choice]
    return Phase(f"{preset}-ctest", command, **when)


def pytest(preset: str, scope: str, results: Path, *choice: str, **when) -> Phase:
    command = [VENV_PYTHON, str(HERE / "python_tests.py"), "--preset", preset, "--scope", scope, "--results",
               str(results), *choice]
    return Phase(f"{preset}-pytest", command, **when)


def mutants(changed: list[str] | None, results: Path) -> Phase:
    phase = ctest("release", results, "--scope", "mutants", "--name", "mutants", needs=("release-build",),
                  after=("release-ctest",))
    phase.name = "release-mutants"
    phase.environment = {"CKPTENGINE_TEST_CORE_CHANGES": "\n".join(changed or [])}
    return phase
