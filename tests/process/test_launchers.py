"""What examples/ shows for launchers: torchrun for real, Slurm with a test double, of Kubernetes the command lines."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from ckptengine import Engine
from conftest import ROOT, build_file_of, nightly_but
from launched import RANK, Job, until
from processes import agent_pids, kill_agents, kill_process

DEADLINE_S = 100
TIMING = ["heartbeat_ms", "node_timeout_ms", "lease_ms", "node_wait_ms", "restore_timeout_ms", "claim_timeout_ms",
          "interface"]
EXAMPLES = ROOT / "examples"


class Run:
    """examples/torchrun/two_nodes.sh, and what its workers say."""

    def __init__(self, cluster, name: str, program: str, *arguments: str) -> None:
        environment = os.environ | {
            "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
            "PORT": str(free_port()),
            "PROGRAM": program,
            "CKPTENGINE_JOB": name,
            "CKPTENGINE_ARENA_DIR": str(cluster.arena),
            "CKPTENGINE_COORDINATION": str(cluster.coordination),
            "CKPTENGINE_CKPTD": str(build_file_of("ckptd")),
        }
        words = ["bash", EXAMPLES / "torchrun" / "two_nodes.sh", "--library", build_file_of("libckptengine.so")]
        self.process = subprocess.Popen([*words, *arguments], env=environment, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        start_new_session=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line)

    def find(self, pattern: str) -> list[str]:
        return re.findall(pattern, "".join(list(self.lines)), re.MULTILINE)

    def await_line(self, pattern: str) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while not (found := self.find(pattern)):
            assert time.monotonic() < deadline and self.process.poll() is None, "".join(self.lines)
            time.sleep(0.02)
        return found[0]

    def end(self) -> None:
        assert self.process.wait(DEADLINE_S) == 0, "".join(self.lines)
        self._reader.join(DEADLINE_S)

    def close(self) -> None:
        """torchrun ends its workers when it is asked to end, and only then."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(DEADLINE_S)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as at:
        return at.getsockname()[1]


@pytest.fixture
def torchrun(cluster):
    """Runs under torchrun, of a job each; nothing of them is left at the end."""
    runs = []

    def start(*arguments: str) -> Run:
        runs.append(Run(cluster, f"{cluster.job}-{len(runs)}", *arguments))
        return runs[-1]

    yield start
    for number, run in enumerate(runs):
        run.close()
        kill_agents(f"{cluster.job}-{number}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", nightly_but(["train.py"], ["train.py", "fsdp2.py"]))
def test_torchrun_restarts_from_memory(torchrun, program):
    run = torchrun(program, "--iterations", "60", "--width", "64")
    run.await_line(r"^rank 1: iteration 30$")
    victim = run.await_line(r"^rank 1: begins iteration 0 anew, process (\d+)$")
    kill_process(int(victim))
    run.end()
    begins = run.find(r"^rank (\d): begins iteration (\d+) from local memory")
    told = "".join(run.lines)
    assert sorted(rank for rank, _ in begins) == ["0", "1"] and len({first for _, first in begins}) == 1, told
    assert int(begins[0][1]) > 0, told


@pytest.mark.nightly  # test_ckptrun.py restarts one rank of several
def test_one_torchrun_for_each_rank_restarts_only_the_rank_that_died(tmp_path):
    job, port = Job(tmp_path), free_port()
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "static",
             "--master-addr", "localhost", "--master-port", str(port)]
    launchers = [subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *words, "--node-rank", str(rank),
                                   RANK, tmp_path], env=job.environment, stderr=subprocess.DEVNULL)
                 for rank in range(2)]
    try:
        before = job.pids(2)
        kill_process(before[0])  # its torchrun hosts the store
        anew = until(lambda: len(job.started(0)) == 2 and job.started(0)[1])
        assert anew["TORCHELASTIC_RESTART_COUNT"] == "1" and anew["MASTER_PORT"] == str(port)
        job.do("end")
        assert [launcher.wait(DEADLINE_S) for launcher in launchers] == [0, 0]
        assert job.pids(2) == before and len(job.started(1)) == 1
    finally:
        for launcher in launchers:
            launcher.terminate()
            launcher.wait(DEADLINE_S)


# ---- Kubernetes ----


def documents(name: str) -> list[dict]:
    """Of a YAML file, as Debian's interpreter reads it, which has a package for that."""
    program = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))"
    words = ["/usr/bin/python3", "-c", program, EXAMPLES / "kubernetes" / name]
    return json.loads(subprocess.run(words, check=True, capture_output=True, timeout=60).stdout)


def pod_of(document: dict) -> dict:
    return document["spec"]["template"]["spec"]


def test_kubernetes_environment_is_understood(cluster, tmp_path):
    (agents,), (_, trainers) = documents("agents.yaml"), documents("trainers.yaml")
    daemon, trainer = pod_of(agents)["containers"][0], pod_of(trainers)["containers"][0]
    assert agents["kind"] == "DaemonSet" and trainers["kind"] == "Job"
    assert pod_of(agents)["hostPID"] and pod_of(trainers)["hostPID"]
    assert daemon["securityContext"]["runAsUser"] == trainer["securityContext"]["runAsUser"]
    arenas = [next(volume for volume in pod_of(one)["volumes"] if volume["name"] == "arena")["hostPath"]["path"]
              for one in (agents, trainers)]
    given = {entry["name"]: entry.get("value", "host1") for entry in trainer["env"]
             if entry["name"].startswith("CKPTENGINE_")}
    assert arenas == [given["CKPTENGINE_ARENA_DIR"]] * 2
    # The same command lines with places of this machine.
    token = tmp_path / "token"
    here = {"job": cluster.job, "arena-dir": cluster.arena, "coordination": cluster.coordination, "token-file": token,
            "interface": "lo", "arena-bytes": "64MiB", "port": "0"}
    keys = [word.removeprefix("--").partition("=")[0] for word in daemon["args"]]
    words = [f"--{key}={here[key]}" if key in here else word
             for key, word in zip(keys, daemon["args"], strict=True)]
    words = [word.replace("$(NODE_NAME)", "host1") for word in words]
    subprocess.run([build_file_of("ckptctl"), "token", token], check=True, timeout=30)
    subprocess.run([build_file_of(*daemon["command"]), "--detach", *words], check=True, timeout=60)
    probe = daemon["readinessProbe"]["exec"]["command"]
    probe = [word.replace("--job gpt", f"--job {cluster.job}").replace(arenas[0], str(cluster.arena)) for word in probe]
    path = f"{build_file_of('ckptctl').parent}:{os.environ['PATH']}"
    subprocess.run(probe, check=True, capture_output=True, env={"PATH": path, "NODE_NAME": "host1"}, timeout=60)
    given |= {"CKPTENGINE_JOB": cluster.job, "CKPTENGINE_ARENA_DIR": str(cluster.arena)}
    options = {key.removeprefix("CKPTENGINE_").lower(): value for key, value in given.items()}
    try:
        with Engine(library=build_file_of("libckptengine.so"), rank=0, world_size=1, **options) as engine:
            engine.register("state", bytearray(8))
            assert not engine.restore().found
    finally:
        stop = [build_file_of("ckptctl"), "stop", f"job={cluster.job}", f"arena_dir={cluster.arena}"]
        subprocess.run(stop, check=True, capture_output=True, timeout=60)


# ---- Slurm ----

SLURM_NODES = ["n0", "n1", "n2"]  # two that train, and one that stands by



class Allocation:
    """examples/slurm/job.sh on three nodes, with trainers that compare what they restore."""

    def __init__(self, cluster, folder) -> None:
        self.cluster = cluster
        self.dead = folder / "dead"
        programs = folder / "bin"
        for made in (self.dead, programs):
            made.mkdir()
        for name in ("srun", "scontrol"):
            (programs / name).symlink_to(ROOT / "tests" / "process" / "fake_slurm.py")
        environment = os.environ | {
            "PATH": ":".join(map(str, (programs, build_file_of("ckptd").parent, os.environ["PATH"]))),
            "FAKE_SLURM": str(self.dead),
            "SLURM_JOB_NAME": cluster.job,
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NUM_NODES": str(len(SLURM_NODES)),
            "SLURM_JOB_NODELIST": ",".join(SLURM_NODES),
            "SHARED": str(folder / "shared"),
            "WAIT_LIMIT_S": "3",
            "CKPTENGINE_ARENA_DIR": str(cluster.arena),
            "CKPTENGINE_WORLD_SIZE": "2",
            "CKPTENGINE_SLOT_BYTES": "1MiB",
        } | {f"CKPTENGINE_{key.upper()}": str(cluster.options()[key]) for key in TIMING}
        program = build_file_of("chaos_trainer")
        trainer = f"CKPTENGINE_RANK=$SLURM_PROCID exec {program} bytes=200000 iterations=600"
        words = ["bash", EXAMPLES / "slurm" / "job.sh", "bash", "-c", trainer]
        self.process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=open(folder / "stderr", "wb"), text=True)
        self.log = folder / "stderr"
        self.told: list[dict] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            if line.startswith("{") and line.endswith("}\n"):
                self.told.append(json.loads(line))

    def all_told(self, event: str) -> list[dict]:
        return [told for told in list(self.told) if told["event"] == event]

    def await_told(self, is_so) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)

    def lose(self, node: str) -> None:
        (self.dead / node).touch()
        while pids := agent_pids(self.cluster.job, node):
            for pid in pids:
                kill_process(pid)
        shutil.rmtree(self.cluster.arena / self.cluster.job / node)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def allocation(cluster, tmp_path):
    allocation = Allocation(cluster, tmp_path)
    yield allocation
    allocation.close()


@pytest.mark.timeout(300)
def test_slurm_job_continues_on_a_standby_node(cluster, allocation):
    allocation.await_told(lambda: any(told["iteration"] > 20 for told in allocation.all_told("committed")))
    allocation.lose("n1")
    allocation.await_told(lambda: len([told for told in allocation.all_told("restored") if told["found"]]) == 2)
    assert allocation.process.wait(DEADLINE_S) == 0, allocation.log.read_text()
    restored = [told for told in allocation.all_told("restored") if told["found"]]
    assert [told["wrong"] for told in restored] == [0, 0] and restored[0]["iteration"] >= 20
    assert len(allocation.all_told("ended")) == 2
    assert not list(cluster.arena.glob("*/*/*.segment"))
