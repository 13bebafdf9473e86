"""ckptrun starts only those ranks anew that have died, and leaves nothing behind."""

from __future__ import annotations

import re
import signal
import socket

import pytest
from launched import Job, children, runs, until
from processes import kill_process


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path)
    yield job
    job.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as at:
        return at.getsockname()[1]


def test_only_the_killed_rank_restarts_in_a_spare_process(job):
    launcher = job.launch("--nproc-per-node", 3, words=["a word"])
    before = job.pids(3)
    [spare] = until(lambda: set(children(launcher.pid)) - set(before))
    kill_process(before[1])
    anew = job.await_started(1, 2)
    assert (anew["pid"], anew["preloaded"], anew["words"]) == (spare, True, ["a word"])
    assert (anew["RANK"], anew["TORCHELASTIC_RESTART_COUNT"]) == ("1", "1")
    launcher.await_text(r"^ckptrun: rank 1 was ended by SIGKILL")
    job.do("end")
    assert launcher.end() == 0, launcher.text
    assert [len(job.started(rank)) for rank in range(3)] == [1, 2, 1]
    assert sorted(set(re.findall(r"^\[\d\] rank \d is here$", launcher.text, re.MULTILINE))) == [
        f"[{rank}] rank {rank} is here" for rank in range(3)]


def test_ranks_get_the_variables_that_torchrun_sets(job):
    launcher = job.launch("--nproc-per-node", 2, "--rdzv-id", "name", "--spares", 0)
    given = job.await_started(1)
    job.do("end")
    assert launcher.end() == 0
    port = given.pop("MASTER_PORT")
    assert int(port) > 0 and port == job.await_started(0)["MASTER_PORT"]
    assert {key: value for key, value in given.items() if key.isupper()} == {
        "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "name", "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}


def test_same_failure_twice_ends_the_job_with_its_trace(job):
    launcher = job.launch("--nproc-per-node", 2)
    before = job.pids(2)
    job.do("raise-1")
    assert launcher.end() == 1
    end = launcher.text[launcher.text.index("ckptrun: the job ends: "):]
    assert "rank 1 has failed twice in the same way, without progress" in end
    assert "ckptrun: Traceback (most recent call last):" in end and "ckptrun: ValueError: no luck\n" in end
    assert "_worker.py" not in end
    assert len(job.started(1)) == 2 and not runs(before[0])


def test_all_ranks_restart_if_one_cannot_restart_alone(job):
    launcher = job.launch("--nproc-per-node", 3, "--spares", 0)
    before = job.pids(3)
    kill_process(before[2])
    job.await_started(2, 2)
    for rank in (0, 1):  # each rank that was interrupted, at the same time
        job.do(f"anew-{rank}")
    for rank, times in enumerate((2, 2, 3)):
        anew = job.await_started(rank, times)
        assert anew["TORCHELASTIC_RESTART_COUNT"] == str(times - 1)
        assert anew["MASTER_PORT"] != job.started(rank)[0]["MASTER_PORT"]  # in a new store
    launcher.await_text(r"^ckptrun: rank \d says that nothing is stored yet, so all ranks start anew")
    job.do("end")
    assert launcher.end() == 0, launcher.text
    assert [len(job.started(rank)) for rank in range(3)] == [2, 2, 3]
    assert "NothingStored: nothing is stored" in launcher.text


def test_rank_without_progress_ends_the_job(job):
    launcher = job.launch("--nproc-per-node", 2, "--max-restarts", 1, "--spares", 0)
    job.pids(2)
    job.do("anew-0")
    job.await_started(0, 2)
    job.do("anew-0")
    assert launcher.end() == 1
    assert "rank 0 has failed 2 times within 3600 s, more often than --max-restarts allows" in launcher.text


def test_a_rank_that_fails_too_often_ends_the_job(job):
    launcher = job.launch("--nproc-per-node", 2, "--max-restarts", 1)
    kill_process(job.pids(2)[0])
    kill_process(job.await_started(0, 2)["pid"])
    assert launcher.end() == 1
    assert "rank 0 has failed 2 times within 3600 s, more often than --max-restarts allows" in launcher.text
    assert "The first failure: rank 0 was ended by SIGKILL" in launcher.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_launcher_ends_its_ranks_and_leaves_nothing(job, number):
    launcher = job.launch("--nproc-per-node", 2)
    until(lambda: len(children(launcher.pid)) == 3)
    pids = job.pids(2)
    job.do("child-0")
    child = int(until(lambda: (job.folder / "children-0").exists() and (job.folder / "children-0").read_text()))
    everything = {*children(launcher.pid), child}
    kill_process(launcher.pid, number)
    assert launcher.end() == 128 + number
    assert set(pids) < everything and not [pid for pid in everything if runs(pid)]
    assert f"{number.name} was sent to the launcher" in launcher.text


def test_ranks_that_do_not_end_are_killed_immediately_on_a_second_signal(job):
    launcher = job.launch("--nproc-per-node", 1, "--shutdown-timeout", 600, words=["stubborn"])
    [pid] = job.pids(1)
    kill_process(launcher.pid, signal.SIGTERM)
    until(lambda: "SIGTERM" in (job.folder / "signals-0").read_text() if (job.folder / "signals-0").exists() else False)
    assert runs(pid) and launcher.process.poll() is None
    kill_process(launcher.pid, signal.SIGTERM)
    assert launcher.end() == 128 + signal.SIGTERM and not runs(pid)


def test_other_signals_are_passed_on(job):
    launcher = job.launch("--nproc-per-node", 2)
    job.pids(2)
    kill_process(launcher.pid, signal.SIGUSR1)
    for rank in range(2):
        signals = job.folder / f"signals-{rank}"
        until(lambda: signals.exists() and signals.read_text() == "SIGUSR1\n")  # noqa: B023
    job.do("end")
    assert launcher.end() == 0


def test_all_processes_end_with_a_killed_launcher(job):
    launcher = job.launch("--nproc-per-node", 2, words=["stubborn"])
    pids = job.pids(2)
    until(lambda: len(children(launcher.pid)) == 3)
    everything = children(launcher.pid)
    kill_process(launcher.pid)
    assert set(pids) < set(everything)
    until(lambda: not [pid for pid in everything if runs(pid)])


def test_a_program_that_is_not_python_runs_without_spares(job):
    program = job.folder / "program"
    program.write_text("#!/bin/sh\necho \"rank $RANK of $WORLD_SIZE\"\ntest $TORCHELASTIC_RESTART_COUNT = 1\n")
    program.chmod(0o755)
    launcher = job.launch("--nproc-per-node", 2, "--no-python", script=program)
    assert launcher.end() == 0, launcher.text
    assert sorted(re.findall(r"^\[\d\] rank .*", launcher.text, re.MULTILINE)) == [
        "[0] rank 0 of 2"] * 2 + ["[1] rank 1 of 2"] * 2


# ---- several nodes ----


def nodes(port: int, count: int = 2) -> list:
    return ["--nnodes", count, "--nproc-per-node", 2, "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "nodes"]


def test_ranks_of_a_lost_node_restart_under_its_replacement(job):
    port = free_port()
    first = job.launch(*nodes(port), "--node-rank", 0)
    second = job.launch(*nodes(port), "--node-rank", 1)
    before = job.pids(4)
    assert [job.started(rank)[0]["GROUP_RANK"] for rank in range(4)] == ["0", "0", "1", "1"]
    assert {job.started(rank)[0]["MASTER_PORT"] for rank in range(4)} == {job.started(0)[0]["MASTER_PORT"]}
    kill_process(second.pid)
    first.await_text(r"^ckptrun: node 1 is lost: its launcher .* (has ended|is gone)")
    third = job.launch(*nodes(port), "--node-rank", 1)
    for rank in (2, 3):
        assert job.await_started(rank, 2)["TORCHELASTIC_RESTART_COUNT"] == "1"
    job.do("end")
    assert (first.end(), third.end()) == (0, 0), job.told()
    assert [len(job.started(rank)) for rank in range(4)] == [1, 1, 2, 2]
    assert before[:2] == job.pids(2)


def test_standby_launcher_replaces_a_stopped_one_which_ends_its_ranks_later(job):
    port = free_port()
    brief = ["--node-timeout", 3]
    first = job.launch(*nodes(port), *brief, "--node-rank", 0)
    second = job.launch(*nodes(port), *brief, "--node-rank", 1)
    third = job.launch(*nodes(port), *brief, "--standby")
    before = job.pids(4)
    first.await_text("stands by$")
    spares = until(lambda: len(children(third.pid)) == 2 and children(third.pid))  # one for each rank of a node
    kill_process(second.pid, signal.SIGSTOP)
    first.await_text(r"^ckptrun: node 1 is lost: its launcher .* has been silent for 3 s")
    anew = [job.await_started(rank, 2) for rank in (2, 3)]
    assert {each["GROUP_RANK"] for each in anew} == {"1"}
    assert {each["pid"] for each in anew} == set(spares) and all(each["preloaded"] for each in anew)
    kill_process(second.pid, signal.SIGCONT)
    assert second.end() == 1, second.text
    assert "it was silent for 3 s, so its node counts as lost" in second.text
    assert not [pid for pid in before[2:] if runs(pid)]
    job.do("end")
    assert (first.end(), third.end()) == (0, 0), job.told()


def test_ranks_of_all_nodes_end_when_the_launcher_of_node_0_is_lost(job):
    port = free_port()
    first = job.launch(*nodes(port), "--node-rank", 0)
    second = job.launch(*nodes(port), "--node-rank", 1)
    before = job.pids(4)
    kill_process(first.pid)
    assert second.end() == 1
    assert "It hosted torch's store, so the ranks of this node end" in second.text
    until(lambda: not [pid for pid in before if runs(pid)])


def test_lost_node_without_a_replacement_ends_the_job(job):
    port = free_port()
    first = job.launch(*nodes(port), "--node-rank", 0, "--replace-timeout", 0.2)
    second = job.launch(*nodes(port), "--node-rank", 1)
    job.pids(4)
    kill_process(second.pid)
    assert first.end() == 1
    assert "no other has taken its place within 0.2 s. Start one on a healthy machine with --node-rank 1" in first.text


def test_failure_on_one_node_ends_the_job_on_all_with_the_same_message(job):
    port = free_port()
    launchers = [job.launch(*nodes(port), "--node-rank", number, "--max-restarts", 0) for number in range(2)]
    job.pids(4)
    job.do("raise-3")
    for launcher in launchers:
        assert launcher.end() == 1
        assert "the job ends: rank 3 ended with status 1" in launcher.text
        assert "ckptrun: ValueError: no luck" in launcher.text


def test_conflicting_launchers_are_refused(job):
    port = free_port()
    job.launch(*nodes(port), "--node-rank", 0)
    job.launch(*nodes(port), "--node-rank", 1)
    job.pids(4)
    twin = job.launch(*nodes(port), "--node-rank", 1)
    assert twin.end() == 1 and "node 1 has a launcher already" in twin.text
    wrong = job.launch(*nodes(port, count=3), "--node-rank", 2)
    assert wrong.end() == 1 and "--nnodes 3 --nproc-per-node 2, and node 0 --nnodes 2 --nproc-per-node 2" in wrong.text
    other = job.launch(*nodes(port)[:-1], "other", "--node-rank", 1)
    assert other.end() == 1 and "belongs to another job" in other.text
    assert all(len(job.started(rank)) == 1 for rank in range(4))
