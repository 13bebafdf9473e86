"""The build backend of `pip install ./python`: scikit-build-core, run in the project's root.

The root holds pyproject.toml and the CMake project. An sdist of the package is made there, too.
"""

import os
from pathlib import Path

from scikit_build_core import build

ROOT = Path(__file__).resolve().parents[1]


def _in_root(hook):
    def run(*arguments, **options):
        os.chdir(ROOT)
        return hook(*arguments, **options)

    return run


get_requires_for_build_wheel = _in_root(build.get_requires_for_build_wheel)
get_requires_for_build_sdist = _in_root(build.get_requires_for_build_sdist)
get_requires_for_build_editable = _in_root(build.get_requires_for_build_editable)
prepare_metadata_for_build_wheel = _in_root(build.prepare_metadata_for_build_wheel)
prepare_metadata_for_build_editable = _in_root(build.prepare_metadata_for_build_editable)
build_wheel = _in_root(build.build_wheel)
build_sdist = _in_root(build.build_sdist)
build_editable = _in_root(build.build_editable)
