"""ckptctl over the persistent tier: what it lists, finds damaged, removes and exports."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from ckptengine.torch import encode
from processes import build_file
from test_storage_format import BUILD, NAMES, ROOT, pack, random_tensor

TIMEOUT_S = 60


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CKPTENGINE_")}
    return kept | {"PYTHONPATH": str(ROOT / "python"), "PYTHON": sys.executable} | more


def ckptctl(*words: object, **more: str) -> subprocess.CompletedProcess:
    command = [build_file(BUILD, "ckptctl"), *map(str, words)]
    options = {"capture_output": True, "text": True, "timeout": TIMEOUT_S, "stdin": subprocess.DEVNULL}
    return subprocess.run(command, check=False, env=environment(**more), **options)


def done(*words: object, **more: str) -> str:
    ran = ckptctl(*words, **more)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not complaints(ran)
    return ran.stdout


def complaints(ran: subprocess.CompletedProcess) -> list[str]:
    """Lines on standard error other than what is being done."""
    return [line for line in ran.stderr.splitlines() if not line.startswith(("reading ", "copying "))]


def refused(*words: object, **more: str) -> str:
    """The one sentence of a command that must fail."""
    ran = ckptctl(*words, **more)
    assert ran.returncode == 1, ran.stdout
    lines = complaints(ran)
    assert len(lines) == 1 and lines[0].startswith("ckptctl: "), ran.stderr
    return lines[0].removeprefix("ckptctl: ")


def tensors(seed: int) -> dict[str, torch.Tensor]:
    random = np.random.default_rng(seed)
    found = {name: random_tensor(dtype, (17, 5), random) for dtype, name in NAMES.items()}
    found["scalar"] = torch.tensor(seed)
    found["empty"] = torch.empty(0, 3, dtype=torch.bfloat16)
    found["large"] = random_tensor(torch.uint8, (300_000,), random)
    return found


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """To the bit, whatever the numbers mean."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return a.numel() == 0 or torch.equal(*(x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b)))


def assert_same(found: dict, expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert same(found[name], tensor), name


def write_checkpoint(storage: Path, iteration: int, shards: dict[str, dict[str, torch.Tensor]]) -> Path:
    """"model/3" is shard model, captured in three parts."""
    storage.mkdir(exist_ok=True)
    scratch = storage.parent / f"{storage.name}-scratch"
    scratch.mkdir(exist_ok=True)
    lines = []
    for i, (shard, state) in enumerate(shards.items()):
        layout, data = pack(state)
        (scratch / str(i)).write_bytes(data)
        lines += [f"{shard} {layout}", str(scratch / str(i))]
    (scratch / "spec").write_text("\n".join(lines) + "\n")
    program = BUILD / "bin" / "persist_sample"
    subprocess.run([program, storage, scratch / "spec", str(iteration)], check=True, timeout=TIMEOUT_S)
    shutil.rmtree(scratch)
    return storage / "job" / f"step-{iteration:08d}"


def checkpoint_state(iteration: int) -> dict[str, dict[str, torch.Tensor]]:
    return {"rank0": tensors(2 * iteration), "rank1": tensors(2 * iteration + 1)}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = tmp_path_factory.mktemp("tools") / "storage"
    for iteration in (100, 200, 300):
        write_checkpoint(storage, iteration, checkpoint_state(iteration))
    return storage


@pytest.fixture
def storage(master: Path, tmp_path: Path) -> Path:
    """A location with three checkpoints of job "job", of the test's own."""
    return Path(shutil.copytree(master, tmp_path / "storage"))


def checkpoint_folder(storage: Path, iteration: int) -> Path:
    return storage / "job" / f"step-{iteration:08d}"


def flip_bit(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 8
    path.write_bytes(data)


def truncate(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 1)


# ---- ls and inspect ----


def test_ls_shows_jobs_and_the_checkpoints_of_one(storage: Path) -> None:
    shutil.copytree(storage / "job", storage / "no.job.of.ours" / "x")
    found = json.loads(done("ls", "--json", "--storage", storage))
    assert [(job["job"], job["checkpoints"], job["newest_usable"]) for job in found["jobs"]] == [("job", 3, 300)]
    checkpoints = json.loads(done("ls", "--json", f"storage={storage}", "job=job"))["checkpoints"]
    assert [(entry["iteration"], entry["usable"]) for entry in checkpoints] == [(300, True), (200, True), (100, True)]
    size = sum(tensor.nbytes for state in checkpoint_state(100).values() for tensor in state.values())
    written_s = (checkpoint_folder(storage, 100) / "manifest.json").stat().st_mtime
    assert checkpoints[2] == {
        "iteration": 100,
        "incarnation": 1,
        "world_size": 2,
        "shards": 2,
        "bytes": size,
        "usable": True,
        "withheld": False,
        "problem": "",
        "written_by": "node-a",
        "written_s": int(written_s),
    }
    assert "usable" in done("ls", CKPTENGINE_STORAGE=str(storage), CKPTENGINE_JOB="job")
    config = storage.parent / "config.json"
    config.write_text(json.dumps({"storage": str(storage), "job": "job"}))
    assert "usable" in done("ls", f"config={config}")


def test_ls_reports_problems_of_a_checkpoint(storage: Path) -> None:
    (checkpoint_folder(storage, 300) / "manifest.json").unlink()
    truncate(checkpoint_folder(storage, 200) / "rank1.1.safetensors")
    checkpoints = json.loads(done("ls", "--json", "--storage", storage, "--job", "job"))["checkpoints"]
    problems = {entry["iteration"]: entry["problem"] for entry in checkpoints}
    assert "has no manifest.json" in problems[300]
    assert "rank1.1.safetensors is" in problems[200] and "bytes long and should be" in problems[200]
    assert problems[100] == ""


def keep_from_us(path: Path) -> None:
    """What is there cannot be read by anybody, root included: a link to itself."""
    path.rename(path.with_name("aside"))
    path.symlink_to(path.name)


def test_withheld_checkpoint_is_not_called_damaged(storage: Path, tmp_path: Path) -> None:
    manifest = checkpoint_folder(storage, 300) / "manifest.json"
    keep_from_us(manifest)
    where = ("--storage", storage, "--job", "job")
    checkpoints = json.loads(done("ls", "--json", *where))["checkpoints"]
    states = {entry["iteration"]: (entry["usable"], entry["withheld"]) for entry in checkpoints}
    assert states == {300: (False, True), 200: (True, False), 100: (True, False)}
    sentence = f"withheld: cannot stat {manifest}: Too many levels of symbolic links; it may be complete"
    assert sentence in done("ls", *where)
    ran = ckptctl("verify", *where)
    assert ran.returncode == 1 and f"checkpoint 300: {sentence}" in ran.stdout and "checkpoint 200: whole" in ran.stdout
    assert json.loads(ckptctl("verify", "300", "--json", *where).stdout)["checkpoints"][0]["withheld"]
    assert "may be complete" in refused("rm", "300", "--yes", *where)
    assert sentence in refused("inspect", "300", *where)
    here = ("--arena-dir", f"/dev/shm/{tmp_path.name}-none", "--coordination", tmp_path)
    doctor = ckptctl("doctor", *where, *here).stdout
    assert sentence in doctor and "see that this node can read it" in doctor and "rm removes" not in doctor
    exported = done("export", "latest", "--raw", tmp_path / "raw", *where)
    assert "exported checkpoint 200" in exported and f"passed over checkpoint 300: {sentence}" in exported
    assert "passed over" not in done("export", "100", "--raw", tmp_path / "raw", *where)
    done("rm", "300", "--yes", "--force", *where)
    assert checkpoints_left(storage) == [100, 200]


def test_inspect_shows_shards_and_tensors(storage: Path) -> None:
    where = ("--json", "--storage", storage, "--job", "job")
    entry = json.loads(done("inspect", "latest", *where))
    assert entry["iteration"] == 300 and [shard["shard"] for shard in entry["shards"]] == ["rank0", "rank1"]
    found = json.loads(done("inspect", "100", "--shard", "rank1", *where))["tensors"]
    layout = json.loads(pack(checkpoint_state(100)["rank1"])[0])
    assert [tensor["name"] for tensor in found] == list(layout)
    for tensor in found:
        begin, end = layout[tensor["name"]]["data_offsets"]
        assert (tensor["offset_bytes"], tensor["size_bytes"]) == (begin, end - begin)
        assert tensor["shape"] == layout[tensor["name"]]["shape"]
        assert tensor["dtype"] == layout[tensor["name"]]["dtype"]


def test_latest_skips_unusable_checkpoints(storage: Path) -> None:
    (checkpoint_folder(storage, 300) / "rank0.1.leaves").unlink()
    entry = json.loads(done("inspect", "latest", "--json", "--storage", storage, "--job", "job"))
    assert entry["iteration"] == 200
    assert "rank0.1.leaves is missing" in refused("inspect", "300", "--storage", storage, "--job", "job")


# ---- verify ----


def test_verify_accepts_complete_checkpoints(storage: Path) -> None:
    found = json.loads(done("verify", "--json", "--storage", storage, "--job", "job"))
    whole = [(entry["iteration"], entry["whole"]) for entry in found["checkpoints"]]
    assert whole == [(300, True), (200, True), (100, True)]
    assert done("verify", "200", "--storage", storage, "--job", "job").startswith("checkpoint 200: whole")


@pytest.mark.parametrize(
    ("file", "at"),
    [
        ("rank0.1.safetensors", 20),
        ("rank0.1.safetensors", 4096),
        ("rank1.1.safetensors", -1),
        ("rank1.1.leaves", 3),
        ("manifest.json", 90),
    ],
)
def test_verify_finds_a_flipped_bit(storage: Path, file: str, at: int) -> None:
    flip_bit(checkpoint_folder(storage, 200) / file, at)
    ran = ckptctl("verify", "--storage", storage, "--job", "job")
    assert ran.returncode == 1
    lines = {line.partition(":")[0]: line for line in ran.stdout.splitlines()}
    for whole in ("checkpoint 300", "checkpoint 100"):
        assert lines[whole].startswith(f"{whole}: whole")
    assert file in lines["checkpoint 200"] and "damaged" in lines["checkpoint 200"]


def test_verify_names_every_shard_that_is_damaged(storage: Path) -> None:
    for shard in ("rank0", "rank1"):
        flip_bit(checkpoint_folder(storage, 200) / f"{shard}.1.safetensors", 70_000)
    ran = ckptctl("verify", "200", "--json", "--storage", storage, "--job", "job")
    problems = json.loads(ran.stdout)["checkpoints"][0]["problems"]
    assert ran.returncode == 1 and len(problems) == 2
    assert "rank0.1.safetensors is damaged between bytes 69632 and 135168" in problems[0]
    assert "rank1.1.safetensors" in problems[1]


@pytest.mark.parametrize("file", ["rank0.1.safetensors", "rank0.1.leaves", "manifest.json"])
def test_verify_finds_truncated_files(storage: Path, file: str) -> None:
    truncate(checkpoint_folder(storage, 300) / file)
    ran = ckptctl("verify", "300", "--storage", storage, "--job", "job")
    assert ran.returncode == 1 and file in ran.stdout and len(ran.stdout.splitlines()) == 1


def test_verify_skips_a_checkpoint_that_is_being_written(storage: Path) -> None:
    (checkpoint_folder(storage, 300) / "manifest.json").unlink()
    assert "checkpoint 300: not finished" in done("verify", "--storage", storage, "--job", "job")
    assert ckptctl("verify", "300", "--storage", storage, "--job", "job").returncode == 1
    (checkpoint_folder(storage, 100) / "manifest.json").unlink()
    ran = ckptctl("verify", "--storage", storage, "--job", "job")
    assert ran.returncode == 1 and "step-00000100 has no manifest.json" in ran.stdout


# ---- rm ----


def checkpoints_left(storage: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (storage / "job").iterdir())


def test_rm_removes_the_named_checkpoints(storage: Path) -> None:
    assert done("rm", "100", "200", "--yes", "--storage", storage, "--job", "job").count("removed") == 2
    assert checkpoints_left(storage) == [300]


def test_rm_asks_for_confirmation(storage: Path) -> None:
    assert "--yes" in refused("rm", "100", "--storage", storage, "--job", "job")
    assert checkpoints_left(storage) == [100, 200, 300]


def all_shown(terminal: int) -> bytes:
    """What a terminal that nobody has open any more was given, the echo of what was typed included."""
    shown = b""
    with contextlib.suppress(OSError):  # EIO: there is no more
        while more := os.read(terminal, 4096):
            shown += more
    return shown


@pytest.mark.parametrize(("answer", "left"), [("n", [100, 200, 300]), ("", [100, 200, 300]), ("y", [200, 300])])
def test_rm_asks_on_a_terminal(storage: Path, answer: str, left: list[int]) -> None:
    mine, terminal = pty.openpty()
    command = [build_file(BUILD, "ckptctl"), "rm", "100", "--storage", str(storage), "--job", "job"]
    child = subprocess.Popen(
        command, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE, text=True, env=environment()
    )
    os.write(mine, f"{answer}\n".encode())
    child.communicate(timeout=TIMEOUT_S)
    os.close(terminal)
    assert b"remove checkpoint 100 of job job" in all_shown(mine)
    os.close(mine)
    assert checkpoints_left(storage) == left
    assert child.returncode == (0 if answer == "y" else 1)


def test_rm_keeps_the_checkpoint_that_a_restore_would_use(storage: Path) -> None:
    assert "newest usable" in refused("rm", "100", "300", "--yes", "--storage", storage, "--job", "job")
    assert "newest usable" in refused("rm", "latest", "--yes", "--storage", storage, "--job", "job")
    assert checkpoints_left(storage) == [100, 200, 300]
    done("rm", "300", "--yes", "--force", "--storage", storage, "--job", "job")
    assert checkpoints_left(storage) == [100, 200]


def test_rm_keeps_a_checkpoint_that_may_be_in_progress(storage: Path) -> None:
    (checkpoint_folder(storage, 300) / "manifest.json").unlink()
    assert "may be writing it now" in refused("rm", "300", "--yes", "--storage", storage, "--job", "job")
    (checkpoint_folder(storage, 100) / "manifest.json").unlink()
    done("rm", "100", "--yes", "--storage", storage, "--job", "job")
    assert checkpoints_left(storage) == [200, 300]


def test_rm_removes_nothing_if_one_argument_is_wrong(storage: Path) -> None:
    assert "no checkpoint 150" in refused("rm", "100", "150", "--yes", "--storage", storage, "--job", "job")
    assert checkpoints_left(storage) == [100, 200, 300]


# ---- export ----


def test_a_file_holds_all_shards(storage: Path, tmp_path: Path) -> None:
    done("export", "200", "--to", tmp_path / "all.pt", "--storage", storage, "--job", "job")
    found = torch.load(tmp_path / "all.pt")
    assert found.keys() == {"rank0", "rank1"}
    for shard, state in checkpoint_state(200).items():
        assert_same(found[shard], state)


@pytest.mark.nightly  # as test_strides_and_python_state_come_back does
def test_a_file_holds_the_one_shard_that_is_named(storage: Path, tmp_path: Path) -> None:
    done("export", "latest", "--shard", "rank1", "--to", tmp_path / "one.pt", "--storage", storage, "--job", "job")
    assert_same(torch.load(tmp_path / "one.pt"), checkpoint_state(300)["rank1"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.pt", "storage"]


def test_dcp_loads_the_export(storage: Path, tmp_path: Path) -> None:
    done("export", "100", "--dcp", tmp_path / "dcp", "--storage", storage, "--job", "job")
    expected = checkpoint_state(100)
    found = {
        shard: {name: torch.full_like(tensor, 1) for name, tensor in state.items()}
        for shard, state in expected.items()
    }
    dcp.load(found, checkpoint_id=tmp_path / "dcp", no_dist=True)
    for shard, state in expected.items():
        assert_same(found[shard], state)


def test_export_restores_strides_and_python_state(tmp_path: Path) -> None:
    weight = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)  # lies in memory as dimensions 1, 2, 0
    other = {"epoch": 3, "rng": np.arange(5, dtype=np.uint32), "last": deque([1, 2]), "lr": torch.tensor(0.5)}
    blob = torch.frombuffer(bytearray(encode(other) + bytes(100)), dtype=torch.uint8)
    storage = tmp_path / "storage"
    stored = {"weight@1,2,0": weight.permute(1, 2, 0), "python_state": blob}
    write_checkpoint(storage, 7, {"rank0": stored})
    done("export", "7", "--shard", "rank0", "--to", tmp_path / "out.pt", "--storage", storage, "--job", "job")
    found = torch.load(tmp_path / "out.pt")
    assert torch.equal(found["weight"], weight) and found["weight"].stride() == weight.stride()
    state = found["python_state"]
    assert state["epoch"] == 3 and state["last"] == [1, 2] and state["lr"] == 0.5
    assert state["rng"].tolist() == [0, 1, 2, 3, 4]


def test_nothing_damaged_is_exported(storage: Path, tmp_path: Path) -> None:
    flip_bit(checkpoint_folder(storage, 300) / "rank0.1.safetensors", 70_000)
    where = ("--storage", storage, "--job", "job")
    for target in (("--to", tmp_path / "out.pt"), ("--dcp", tmp_path / "out"), ("--raw", tmp_path / "raw")):
        assert "rank0.1.safetensors is damaged" in refused("export", "300", *target, *where)
        assert not target[1].exists() or not any(target[1].glob("*/*"))
    done("export", "300", "--shard", "rank1", "--to", tmp_path / "out.pt", *where)


@pytest.mark.nightly
def test_what_is_damaged_is_exported_on_demand_unless_it_cannot_be_read(storage: Path, tmp_path: Path) -> None:
    flip_bit(checkpoint_folder(storage, 300) / "rank0.1.safetensors", 70_000)
    where = ("--storage", storage, "--job", "job")
    done("export", "300", "--no-verify", "--dcp", tmp_path / "out", *where)
    flip_bit(checkpoint_folder(storage, 300) / "rank0.1.safetensors", 9)
    ran = ckptctl("export", "300", "--no-verify", "--to", tmp_path / "other.pt", *where)
    assert ran.returncode == 1 and "is damaged" in ran.stderr and "Traceback" not in ran.stderr


def test_a_raw_export_is_a_storage(storage: Path, tmp_path: Path) -> None:
    done("export", "200", "--raw", tmp_path / "raw", "--storage", storage, "--job", "job")
    assert checkpoints_left(tmp_path / "raw") == [200]
    assert done("verify", "--storage", tmp_path / "raw", "--job", "job").startswith("checkpoint 200: whole")
    assert "already" in refused("export", "200", "--raw", tmp_path / "raw", "--storage", storage, "--job", "job")


def test_export_says_what_is_missing(storage: Path, tmp_path: Path) -> None:
    where = ("--storage", storage, "--job", "job")
    to = ("--to", tmp_path / "out.pt")
    assert "--dcp" in refused("export", "200", *where)
    assert "already" in refused("export", "200", "--to", storage, *where)
    assert "does not exist" in refused("export", "200", "--to", tmp_path / "no" / "out.pt", *where)
    assert "its shards are: rank0, rank1" in refused("export", "200", "--shard", "rank7", *to, *where)
    assert "/no/python" in refused("export", "200", *to, *where, "--python", "/no/python")
    assert "ckptengine" in refused("export", "200", *to, *where, PYTHONPATH="")
    without_torch = tmp_path / "python"
    without_torch.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    without_torch.chmod(0o755)
    assert "no torch" in refused("export", "200", *to, *where, "--python", without_torch)
    assert not (tmp_path / "out.pt").exists()


def test_a_shard_of_several_parts_is_one(tmp_path: Path) -> None:
    storage, state = tmp_path / "storage", tensors(1)
    folder = write_checkpoint(storage, 5, {"model/3": state, "rank0": tensors(2)})
    where = ("--storage", storage, "--job", "job")
    shards = json.loads(done("inspect", "5", "--json", *where))["shards"]
    assert [len(shard["pieces"]) for shard in shards] == [3, 1] and shards[0]["file"] == "model.1.safetensors"
    layout = json.loads(done("inspect", "5", "--shard", "model", "--json", *where))["tensors"]
    assert {tensor["name"] for tensor in layout} == state.keys()
    assert "checkpoint 5: whole" in done("verify", *where)
    done("export", "5", "--shard", "model", "--to", tmp_path / "out.pt", *where)
    assert_same(torch.load(tmp_path / "out.pt"), state)
    done("export", "5", "--raw", tmp_path / "raw", *where)
    assert "checkpoint 5: whole" in done("verify", "--storage", tmp_path / "raw", "--job", "job")
    flip_bit(folder / "model.1.safetensors", -1)
    ran = ckptctl("verify", *where)
    assert ran.returncode == 1 and "model.1.safetensors is damaged" in ran.stdout


# ---- wrong words, and all that a location can be ----


@pytest.mark.parametrize("command", [["inspect", "100"], ["verify"], ["rm", "100", "--yes"], ["ls"]])
def test_wrong_arguments_give_one_sentence(storage: Path, command: list[str]) -> None:
    name = command[0]
    assert "--storage" in refused(*command, "--job", "job")
    assert "absolute path" in refused(*command, "--storage", "relative", "--job", "job")
    nowhere = storage / "nowhere"
    for job in ([], ["job=job"]):
        missing = f"cannot use the storage {nowhere}: it does not exist; create it, or mount it"
        assert refused(*command, "--storage", nowhere, *job) == missing
    assert not nowhere.exists()
    assert "the jobs in" in refused(*command, "--storage", storage, "--job", "gob")
    assert "colour" in refused(*command, "--storage", storage, "colour=red")
    if name != "ls":
        assert "no job is named" in refused(*command, "--storage", storage)
        assert "names no checkpoint" in refused(name, "12x", "--storage", storage, "--job", "job")
        assert "no checkpoint 12;" in refused(name, "12", "--storage", storage, "--job", "job")


def test_doctor_tests_the_storage(storage: Path, tmp_path: Path) -> None:
    (checkpoint_folder(storage, 300) / "manifest.json").unlink()
    here = ("--arena-dir", f"/dev/shm/{tmp_path.name}-none", "--coordination", tmp_path)
    found = json.loads(done("doctor", "--json", "--storage", storage, *here))["findings"]
    about = {}
    for finding in found:
        about.setdefault(finding["subject"], []).append(finding["text"])
    assert "can be written" in about["storage"][0] and "/s" in about["storage"][0]
    assert "page cache" in about and "free" in about["room"][0]
    assert "the newest usable one of iteration 200" in about["stored job job"][0]
    assert "has no manifest.json" in about["stored job job"][1]
    assert sorted(path.name for path in storage.iterdir()) == ["job"]
    nowhere = ckptctl("doctor", "--storage", storage / "nowhere", *here)
    assert nowhere.returncode == 1 and "BAD" in nowhere.stdout and "create it, or mount it" in nowhere.stdout
    assert not (storage / "nowhere").exists()


def test_all_storage_commands_work_over_nfs(storage: Path, tmp_path: Path) -> None:
    script = ROOT / "scripts" / "nfs_server.sh"
    folder = tmp_path / "nfs"
    location = subprocess.check_output(["bash", script, "start", folder], text=True, timeout=TIMEOUT_S).strip()
    try:
        shutil.copytree(storage / "job", folder / "export" / "job")
        where = ("--storage", location, "--job", "job")
        checkpoints = json.loads(done("ls", "--json", *where))["checkpoints"]
        written_s = (folder / "export" / "job" / "step-00000300" / "manifest.json").stat().st_mtime
        assert [entry["iteration"] for entry in checkpoints] == [300, 200, 100]
        assert checkpoints[0]["written_s"] == int(written_s)
        assert done("verify", "100", *where).startswith("checkpoint 100: whole")
        done("export", "200", "--to", tmp_path / "out.pt", *where)
        assert_same(torch.load(tmp_path / "out.pt")["rank1"], checkpoint_state(200)["rank1"])
        here = ("--arena-dir", f"/dev/shm/{tmp_path.name}-none", "--coordination", tmp_path)
        assert f"{location.partition('?')[0]} can be written" in done("doctor", *where, *here)
        done("rm", "100", "--yes", *where)
        assert checkpoints_left(folder / "export") == [200, 300]
        flip_bit(folder / "export" / "job" / "step-00000200" / "rank0.1.safetensors", 5000)
        assert "damaged" in ckptctl("verify", "200", *where).stdout
        assert sorted(path.name for path in tmp_path.iterdir()) == ["nfs", "out.pt", "storage"]
    finally:
        subprocess.run(["bash", script, "stop", folder], check=True, timeout=TIMEOUT_S)
    for command in (["ls"], ["verify"], ["rm", "200", "--yes"]):
        assert "the server does not answer" in refused(*command, *where, "storage_timeout_ms=2000")
