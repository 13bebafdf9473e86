"""Unauthenticated peers at the ports of real agents: they are refused, cost little, and the job goes on committing."""

from __future__ import annotations

import ctypes
import hmac
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from ckptengine import Stage
from conftest import BUILD, nightly_but, refused, together
from processes import build_file

DEADLINE_S = 30
HALF_OPEN = 1500


class Pair:
    """A job of two ranks that keep copies for each other."""

    def __init__(self, cluster, **options) -> None:
        self.cluster, self.options = cluster, options
        self.iteration = -1
        self.start()

    def start(self) -> list[int]:
        """An incarnation; at which iteration each rank is then."""
        self.engines = together(*(lambda rank=rank: self.cluster.engine(rank, 2, **self.options) for rank in (0, 1)))
        self.states = [bytearray(100_000) for _ in self.engines]
        for engine, state in zip(self.engines, self.states, strict=True):
            engine.register("state", state)
        return [start.iteration for start in together(*(engine.restore for engine in self.engines))]

    def commit(self, wait_s: int = DEADLINE_S) -> None:
        self.iteration += 1
        for rank, state in enumerate(self.states):
            state[:] = self.content(rank)

        def one(engine):
            ticket = engine.snapshot(self.iteration)
            assert ticket.taken, ticket.message
            assert engine.before_update()
            assert ticket.wait(Stage.COMMITTED, wait_s * 1000), ticket.message

        together(*(lambda engine=engine: one(engine) for engine in self.engines))

    def commit_at_last(self) -> None:
        """Commits, after agents may have ended: what they were at then may never be committed, the next one is."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return self.commit(DEADLINE_S // 6)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise

    def content(self, rank: int) -> bytes:
        return random.Random(f"{rank} {self.iteration}").randbytes(100_000)

    def commit_while(self, *unauthenticated_peers) -> int:
        """Commits until all that the unauthenticated peers do is done; how often."""
        threads = [threading.Thread(target=unauthenticated_peer) for unauthenticated_peer in unauthenticated_peers]
        for thread in threads:
            thread.start()
        commits = 0
        while commits < 3 or any(thread.is_alive() for thread in threads):
            self.commit()
            commits += 1
        return commits

    def assert_restored(self) -> None:
        self.cluster.close_engines()
        assert self.start() == [self.iteration] * 2
        assert [bytes(state) for state in self.states] == [self.content(rank) for rank in (0, 1)]


def status(cluster, node: str) -> dict:
    words = [build_file(BUILD, "ckptctl"), "status", "--json", f"job={cluster.job}", f"arena_dir={cluster.arena}",
             f"coordination={cluster.coordination}", f"node={node}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return json.loads(done.stdout)["agents"][0]


def log_lines(cluster, node: str, words: str) -> list[str]:
    log = cluster.arena / cluster.job / node / "ckptd.log"
    return [line for line in log.read_text().splitlines() if words in line]


def eventually(what) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def listener(cluster, node: str) -> tuple[str, int]:
    host, port = re.search(r"listener at (.*):(\d+),", status(cluster, node)["transport"]).groups()
    return host, int(port)


def ports(pid: int) -> set[int]:
    """TCP ports that the process listens on."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(descriptor))
        except OSError:
            continue
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return {int(line[1].split(":")[1], 16) for line in fields if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}


def connect(address: tuple[str, int], source: int) -> socket.socket:
    return socket.create_connection(address, DEADLINE_S, (f"127.9.{source // 250}.{source % 250 + 1}", 0))


def visit(address: tuple[str, int], source: int, *words: bytes) -> bytes:
    """Says the words, and returns what is answered."""
    with connect(address, source) as connection:
        heard = b""
        try:
            for word in words:
                connection.sendall(word)
            while part := connection.recv(4096):
                heard += part
        except ConnectionResetError:
            pass
        return heard


def wire_version() -> int:
    source = (Path(__file__).parents[2] / "src" / "net" / "wire.hpp").read_text()
    return int(re.search(r"version = (\d+);", source).group(1))


def introduction(version: int) -> bytes:
    return struct.pack("<4sI", b"CKPD", version) + bytes(64)


def test_unauthenticated_peers_at_the_listener_change_nothing(cluster):
    pair = Pair(cluster)
    pair.commit()
    agents = sorted(cluster.agents())
    address = listener(cluster, "n0")

    def say_nonsense():
        dice = random.Random(1)
        for source in range(200):
            assert visit(address, source, dice.randbytes(dice.randrange(8, 3000))) == b""

    def speak_of_another_version():
        magic, version, refusal, zero = struct.unpack("<4sIII", visit(address, 300, introduction(wire_version() + 1)))
        assert (magic, version, refusal, zero) == (b"CKPD", wire_version(), 2, 0)

    def stay_silent():
        silent = [connect(address, source) for source in range(HALF_OPEN)]
        for each in silent:
            each.close()

    commits = pair.commit_while(say_nonsense, speak_of_another_version, stay_silent)
    assert commits >= 3
    assert sorted(cluster.agents()) == agents
    # Of connections that wait to be taken in, a kernel that has too many forgets some, and nobody ever sees those.
    eventually(lambda: status(cluster, "n0")["unauthenticated_peers"]["count"] >= 200 + 1 + HALF_OPEN // 2)
    eventually(lambda: log_lines(cluster, "n0", "turned"))
    assert len(log_lines(cluster, "n0", "turned")) == 1
    assert not log_lines(cluster, "n1", "turned")
    pair.assert_restored()


def aimed_at_ucx(dice: random.Random) -> bytes:
    """What UCX takes for the beginning of something."""
    magic = struct.pack("<Q", 0xCAFEBABE12345678)
    return dice.choice([
        struct.pack("<Q", dice.randrange(400)) + dice.randbytes(400),
        magic + struct.pack("<BI", dice.randrange(36), dice.randrange(300)) + dice.randbytes(300),
        magic + struct.pack("<BI", dice.randrange(36), dice.choice([2**31, 2**32 - 1])) + dice.randbytes(100),
        dice.randbytes(dice.randrange(3000)),
    ])


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def cpu_share(pid: int) -> float:
    """Of one core, over a second."""
    before, begin = cpu_ticks(pid), time.monotonic()
    time.sleep(1)
    return (cpu_ticks(pid) - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - begin)


@pytest.mark.parametrize("transport", nightly_but(["tcp"], ["tcp", "shm"]))
def test_unauthenticated_peers_neither_end_an_agent_nor_keep_it_busy(cluster, transport):
    pair = Pair(cluster, transport=transport)
    pair.commit()
    agents = sorted(cluster.agents())
    addresses = []
    for node in ("n0", "n1"):
        (agent,) = cluster.agents(node)
        addresses += [("127.0.0.1", port) for port in sorted(ports(agent))]
    assert len(addresses) == 2, "an agent has its listener and no other port"
    idle = max(cpu_share(agent) for agent in agents)
    stay = threading.Event()

    def say(words: bytes, times: int = 1, source: str = "127.0.0.1") -> None:
        for address in addresses * times:
            with suppress(OSError), socket.create_connection(address, DEADLINE_S, (source, 0)) as connection:
                connection.sendall(words)

    def say_all():
        say(b"A" * 4096, 8)
        say(bytes(64), 8)
        dice = random.Random(3)
        for _ in range(50):
            say(dice.randbytes(dice.randrange(5000)), 1, "127.9.0.1")
            say(aimed_at_ucx(dice), 1, "127.9.0.2")

    def stay_silent():
        silent = [socket.create_connection(address, DEADLINE_S, ("127.9.0.3", 0)) for address in addresses * 100]
        stay.wait(DEADLINE_S)
        for each in silent:
            each.close()

    def half_a_frame():
        say(introduction(wire_version())[:20], 8)
        stay.set()

    pair.commit_while(say_all, stay_silent, half_a_frame)
    assert sorted(cluster.agents()) == agents, "unauthenticated peers have ended an agent"
    for agent in agents:
        eventually(lambda agent=agent: cpu_share(agent) < idle + 0.2)
    pair.assert_restored()


def test_messages_to_ucx_may_end_an_agent_but_lose_nothing(cluster):
    """Where the option transport chooses UCX, its listeners hear unauthenticated peers."""
    pair = Pair(cluster, transport="tcp,cma")
    pair.commit()
    dice = random.Random(5)
    for node in ("n0", "n1", "n0"):
        eventually(lambda node=node: cluster.agents(node))
        (agent,) = cluster.agents(node)
        host, own = listener(cluster, node)
        others = ports(agent) - {own}
        assert others
        for port in sorted(others) * 10:
            try:
                with socket.create_connection((host, port), DEADLINE_S) as connection:
                    connection.sendall(aimed_at_ucx(dice))
            except OSError:
                break  # UCX aborts on some of it; trainers start the agent again
        pair.commit_at_last()
    pair.assert_restored()


def test_unauthenticated_addresses_do_not_reach_the_ucx_listener(cluster):
    pair = Pair(cluster, transport="tcp,cma")
    pair.commit()
    agents = sorted(cluster.agents())
    if "open to unauthenticated peers" in status(cluster, "n0")["transport"]:
        pytest.skip("this kernel refuses filters to users other than root")
    for node in ("n0", "n1"):
        host, port = re.search(r"UCX at (.*):(\d+)", status(cluster, node)["transport"]).groups()
        for source in ("127.9.0.1", "127.9.0.2"):
            with pytest.raises(TimeoutError):
                socket.create_connection((host, int(port)), 0.3, (source, 0))
        with socket.create_connection((host, int(port)), DEADLINE_S):  # where the members are
            pass
    pair.commit()
    assert sorted(cluster.agents()) == agents
    pair.assert_restored()


ABORTED = (signal.SIGABRT, "a library has aborted this agent (SIGABRT)")
CRASHES = [(signal.SIGSEGV, "this agent has crashed (SIGSEGV)"), (signal.SIGBUS, "this agent has crashed (SIGBUS)")]


@pytest.mark.parametrize(("crash", "words"), nightly_but([ABORTED], [ABORTED, *CRASHES]))
def test_agent_aborted_by_a_library_logs_it_and_restarts(cluster, crash, words):
    pair = Pair(cluster)
    pair.commit()
    (agent,) = cluster.agents("n0")
    os.kill(agent, crash)
    eventually(lambda: agent not in cluster.agents("n0"))
    pair.commit_at_last()
    assert len(log_lines(cluster, "n0", words)) == 1
    pair.assert_restored()


class Dialer:
    """Somebody with the token who asks to be let in, as handshake.hpp says, and keeps what it has said."""

    def __init__(self, cluster, token: str, node: str) -> None:
        self.job, self.token, self.node = cluster.job.encode(), token.encode(), node
        xxhash = ctypes.CDLL("libxxhash.so.0")
        xxhash.XXH3_64bits.restype = ctypes.c_uint64
        job_hash = xxhash.XXH3_64bits(self.job, ctypes.c_size_t(len(self.job)))
        revisions = (cluster.coordination / cluster.job / "nodes").glob(f"{node}@*")
        record = max(revisions, key=lambda file: int(file.name.rpartition("@")[2])).read_text()
        entry = json.loads(record.partition("\n")[2])
        self.opening = struct.pack("<4sIQIIQQ", b"CKPD", wire_version(), job_hash, 99, entry["id"], 1,
                                   entry["arena_id"]) + os.urandom(32)

    def proof(self, heard: bytes) -> bytes:
        said = b"ckptengine asks." + struct.pack("<Q", len(self.job)) + self.job + self.opening + heard
        return hmac.digest(self.token, said, "sha256")


def receive(connection: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer where the other side hangs up."""
    heard = b""
    while len(heard) < size and (part := connection.recv(size - len(heard))):
        heard += part
    return heard


REFUSED_FOR_TOKEN = struct.pack("<II", 4, 0)
WELCOME_BYTES = 8 + 96


def test_recorded_handshake_cannot_be_replayed(cluster, tmp_path):
    token = tmp_path / "token"
    subprocess.run([build_file(BUILD, "ckptctl"), "token", token], check=True, capture_output=True, timeout=60)
    pair = Pair(cluster, token_file=token)
    pair.commit()
    address = listener(cluster, "n0")
    dialer = Dialer(cluster, token.read_text().strip(), "n0")
    with connect(address, 1) as member:
        member.sendall(dialer.opening)
        proof = dialer.proof(receive(member, 16 + 32))
        member.sendall(proof)
        welcome = receive(member, WELCOME_BYTES)
    assert len(welcome) == WELCOME_BYTES and welcome[:8] == bytes(8), "what is recorded here does open the listener"
    before = status(cluster, "n0")["unauthenticated_peers"]["count"]

    def replay():
        for source in range(2, 52):
            with connect(address, source) as connection:
                connection.sendall(dialer.opening)
                assert len(receive(connection, 16 + 32)) == 16 + 32
                connection.sendall(proof)
                assert receive(connection, WELCOME_BYTES) == REFUSED_FOR_TOKEN

    pair.commit_while(replay)
    eventually(lambda: status(cluster, "n0")["unauthenticated_peers"]["count"] >= before + 50)
    assert "does not have the job's token" in status(cluster, "n0")["unauthenticated_peers"]["last"]
    pair.assert_restored()


def test_large_first_message_uses_no_memory_of_the_agent(cluster):
    """What the listener does not ask for it does not read: neither behind an introduction nor instead of one."""
    pair = Pair(cluster)
    pair.commit()
    agents = sorted(cluster.agents())
    address = listener(cluster, "n0")
    much = bytes(8 << 20)

    def say_too_much(source: int, begin: bytes) -> None:
        with connect(address, source) as connection, suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(begin + much)
            while connection.recv(4096):
                pass

    def all_ways():
        for source in range(5):
            say_too_much(source, b"")
            say_too_much(100 + source, introduction(wire_version()))
            say_too_much(200 + source, struct.pack("<Q", 2**63))

    pair.commit_while(all_ways)
    assert sorted(cluster.agents()) == agents
    eventually(lambda: status(cluster, "n0")["unauthenticated_peers"]["count"] >= 15)
    pair.assert_restored()


def test_store_holds_no_secret_with_a_token_file(cluster, tmp_path):
    token = tmp_path / "token"
    subprocess.run([build_file(BUILD, "ckptctl"), "token", token], check=True, capture_output=True, timeout=60)
    assert token.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"[0-9a-f]{64}\n", token.read_text())
    pair = Pair(cluster, token_file=token)
    pair.commit()
    records = {}
    for path in cluster.coordination.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):  # what agents write beside its place has moved into it
            records[path.name] = path.read_text(errors="replace")
    assert records and not [name for name in records if name.startswith("token")]
    assert not [name for name, text in records.items() if token.read_text().strip() in text]
    pair.assert_restored()


def test_agent_with_another_token_is_refused_and_reports_it(cluster, tmp_path):
    files = [tmp_path / name for name in ("right", "wrong")]
    for file in files:
        subprocess.run([build_file(BUILD, "ckptctl"), "token", file], check=True, capture_output=True, timeout=60)
    for rank, file in enumerate(files):
        cluster.engine(rank, 2, token_file=file)
    eventually(lambda: log_lines(cluster, "n0", "do not have the same token") and
               log_lines(cluster, "n1", "do not have the same token"))
    eventually(lambda: "does not have the job's token" in status(cluster, "n0")["unauthenticated_peers"]["last"])
    # Whoever leads lets the other go once it has not answered for a while.
    eventually(lambda: any(status(cluster, node)["nodes_present"] == [node] for node in ("n0", "n1")))


@pytest.mark.parametrize(("text", "mode", "word"), [
    ("0" * 64, 0o644, "chmod 600"),
    ("0" * 63, 0o600, "64 hex digits"),
    ("x" * 64, 0o600, "64 hex digits"),
])
def test_invalid_token_file_is_refused(cluster, tmp_path, text, mode, word):
    token = tmp_path / "token"
    token.write_text(text)
    token.chmod(mode)
    _, message = refused(cluster.engine, token_file=token)
    assert "token_file" in message and word in message


def free_ports(count):
    """The first of several free ports in a row. The kernel gives none of them to others: they lie below its range."""
    for first in range(20_000 + os.getpid() % 1000 * 10, 32_000, count):
        with ExitStack() as taken:
            with suppress(OSError):
                for port in range(first, first + count):
                    taken.enter_context(socket.create_server(("127.0.0.1", port)))
                return first
    raise AssertionError("no free ports")


def test_option_port_sets_where_an_agent_listens(cluster):
    port = free_ports(1)
    cluster.engine(0, 1, copies=1, port=port)
    (agent,) = cluster.agents("n0")
    assert listener(cluster, "n0")[1] == port
    assert ports(agent) == {port}


def test_option_port_sets_eight_ports_with_ucx(cluster):
    port = free_ports(8)
    cluster.engine(0, 1, copies=1, port=port, transport="tcp,cma")
    (agent,) = cluster.agents("n0")
    assert listener(cluster, "n0")[1] == port
    assert ports(agent) > {port}
    assert ports(agent) <= set(range(port, port + 8))


def test_memory_socket_and_records_are_accessible_only_to_the_user(cluster):
    pair = Pair(cluster)
    pair.commit()
    for folder in (cluster.arena / cluster.job, cluster.coordination / cluster.job):
        for path in (folder, *folder.rglob("*")):
            with suppress(FileNotFoundError):  # what agents write beside its place has moved into it
                assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's link")
@pytest.mark.parametrize("option", ["arena_dir", "coordination"])
def test_agent_of_root_creates_nothing_behind_another_users_link(cluster, tmp_path, option):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    link = tmp_path / "link"
    link.symlink_to(theirs)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    _, message = refused(cluster.engine, **{option: link / "a" / "b" / "c"})
    assert "belongs to another user" in message and option in message
    assert not list(theirs.iterdir())


def test_an_agent_writes_no_core_and_shows_its_memory_to_no_process_of_its_user():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        ckptd = shutil.copy(build_file(BUILD, "ckptd"), root)
        user = 12345 if os.geteuid() == 0 else os.geteuid()
        for path in (root, root / "memory", root / "records"):
            path.mkdir(mode=0o700, exist_ok=True)
            os.chown(path, user, -1)
        words = [ckptd, "--job", "private", "--node", "n0", "--interface", "lo",
                 "--arena_dir", root / "memory", "--coordination", root / "records"]
        others = {} if os.geteuid() else {"user": user, "group": user, "extra_groups": []}
        most = resource.getrlimit(resource.RLIMIT_CORE)[1]
        others["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_CORE, (most, most))  # it may write one
        with subprocess.Popen([str(word) for word in words], stderr=subprocess.PIPE, **others) as agent:
            try:
                eventually(lambda: list((root / "memory").glob("*/n0/agent.sock")) or agent.poll() is not None)
                assert agent.poll() is None, agent.stderr.read()
                assert os.stat(f"/proc/{agent.pid}/fd").st_uid == 0, "what is not dumpable belongs to root there"
                limits = Path(f"/proc/{agent.pid}/limits")
                if os.geteuid() == 0:
                    assert re.search(r"Max core file size +0 ", limits.read_text())
            finally:
                agent.terminate()
