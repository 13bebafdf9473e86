"""Test processes are forked from a server that has imported their modules, even if an earlier test file started the
server for other modules."""

import sys
import time

import pytest
from fork_server import Processes, end_server


@pytest.fixture(autouse=True)
def no_server():
    """Earlier tests have started one, with modules that take long to import."""
    def end() -> None:
        end_server()
        Processes._imported = None

    end()
    yield
    end()


def end_with(*modules: str) -> None:
    sys.exit(0 if all(module in sys.modules for module in modules) else 1)


def exit_code(processes: Processes, *modules: str) -> int:
    process = processes.Process(target=end_with, args=modules)
    process.start()
    process.join(60)
    return process.exitcode


def test_a_server_that_lacks_a_module_is_replaced():
    first, second = Processes("wave"), Processes("wave", "mailbox")
    assert exit_code(first, "wave") == 0 and exit_code(first, "mailbox") == 1
    assert exit_code(second, "wave", "mailbox") == 0
    assert exit_code(first, "mailbox") == 0, "it has all that the first needs"


def test_a_process_that_a_test_left_behind_ends_with_its_server():
    first, second = Processes("wave"), Processes("wave", "chunk")
    left_behind = first.Process(target=time.sleep, args=(600,))
    left_behind.start()
    assert exit_code(second, "chunk") == 0
    left_behind.join(60)
    assert not left_behind.is_alive()
