"""A process that ckptrun starts. It ends with its launcher, even if the launcher is killed.

    _worker.py LAUNCHER PRELOAD KIND WORDS...

LAUNCHER is the launcher's process number, PRELOAD a list of modules to import before anything else (`-`: none). A
worker then waits for one line on standard input, the rank's environment as JSON, and runs WORDS. KIND says what they
are: `script`, `module` or `program`. With KIND `store` it serves torch's store at an open socket instead.

It is a file of its own, run by its path, so that it imports nothing of the package before the training script does.
"""

import ctypes
import importlib
import io
import json
import os
import runpy
import signal
import sys
import types

PR_SET_PDEATHSIG = 1


def end_with(launcher: int) -> None:
    """Makes the kernel kill this process when its launcher ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:  # the launcher has ended already
        os._exit(1)


def preload(names: str) -> None:
    for name in names.split(","):
        try:
            importlib.import_module(name)
        except ImportError as error:
            if error.name != name:  # the module is there, and something is wrong with it
                print(f"ckptrun: a spare process cannot import {name}: {error}", file=sys.stderr)


def take_environment() -> None:
    """Waits for the environment of the rank that this process becomes. Ends the process if the launcher sends none and
    ends."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 65536)
        if not data:
            os._exit(0)
        line += data
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.environ.update(json.loads(line))


def show_without_worker(kind, error, trace) -> None:
    """For sys.excepthook: prints the traceback of a training script without the frames of this file."""
    shown = trace
    while shown is not None and shown.tb_frame.f_code.co_filename == __file__:
        shown = shown.tb_next
    shown = shown or trace
    sys.__excepthook__(kind, error.with_traceback(shown), shown)


def run_script(path: str, arguments: list[str]) -> None:
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    sys.argv[:] = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__, main.__builtins__ = path, __builtins__
    exec(code, main.__dict__)


def run_module(name: str, arguments: list[str]) -> None:
    sys.argv[:] = [name, *arguments]
    sys.path[0] = os.getcwd()
    sys.modules["__main__"] = types.ModuleType("__main__")
    runpy._run_module_as_main(name)  # as `python -m` does


def serve_store(listener: str, host: str, port: str) -> None:
    from torch.distributed import TCPStore

    store = TCPStore(host, int(port), is_master=True, wait_for_workers=False, master_listen_fd=int(listener))
    while store is not None:
        signal.pause()


def main() -> None:
    launcher, modules, kind, *words = sys.argv[1:]
    end_with(int(launcher))
    if kind == "store":
        serve_store(*words)
    if modules != "-":
        preload(modules)
    take_environment()
    if kind == "program":
        os.execvp(words[0], words)
    sys.excepthook = show_without_worker
    (run_module if kind == "module" else run_script)(words[0], words[1:])


if __name__ == "__main__":
    main()
