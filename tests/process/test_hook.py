"""The member hook as a URL, and `ckptctl hook`, which tries it or only says what it would call."""

from __future__ import annotations

import http.server
import json
import queue
import subprocess
import threading
from contextlib import contextmanager

import pytest
from conftest import build_file_of
from small_job import RANKS, Job

DEADLINE_S = 60


@contextmanager
def server(status: int = 200):
    """A URL, and a queue of what is posted there: path, content type, body."""
    posts: queue.Queue = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.put((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}/members", posts
    finally:
        httpd.shutdown()
        thread.join(DEADLINE_S)
        httpd.server_close()


def hook(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([build_file_of("ckptctl"), "hook", *words], capture_output=True, text=True, check=False,
                          timeout=DEADLINE_S)


REPLACED = ("replaced", "node2", "--replacement", "spare1", "--job", "run1")
NEWS = {"job": "run1", "change": "replaced", "node": "node2", "replacement": "spare1", "reason": ""}


def test_hook_posts_the_nodes_change_to_a_url():
    with server() as (url, posts):
        done = hook(*REPLACED, "--hook", url)
        assert done.returncode == 0, done.stderr
        assert posts.get(timeout=DEADLINE_S) == ("/members", "application/json", NEWS)
        assert posts.empty()


@pytest.mark.parametrize("status", [500, 404, 302])
def test_url_that_does_not_answer_with_success_counts_as_failed(status):
    with server(status) as (url, posts):
        done = hook(*REPLACED, "--hook", url)
        assert done.returncode == 1 and str(status) in done.stderr and done.stderr.count("\n") == 1
        assert posts.get(timeout=DEADLINE_S)[2] == NEWS


def test_dry_run_prints_the_request_and_posts_nothing():
    with server() as (url, posts):
        done = hook(*REPLACED, "--hook", url, "--dry-run")
        first, body = done.stdout.splitlines()
        assert done.returncode == 0 and first == f"POST {url}" and json.loads(body) == NEWS
        told = json.loads(hook(*REPLACED, "--hook", url, "--dry-run", "--json").stdout)
        assert told == {"hook": url, "news": NEWS, "called": False}
        assert hook(*REPLACED, "--hook", url).returncode == 0  # what came before it came in order
        posts.get(timeout=DEADLINE_S)
        assert posts.empty()


def test_dry_run_prints_an_equivalent_command(tmp_path):
    told = tmp_path / "it's told"
    said = "$CKPTENGINE_MEMBER_CHANGE $CKPTENGINE_MEMBER_NODE $CKPTENGINE_MEMBER_REPLACEMENT $CKPTENGINE_MEMBER_JOB"
    command = f"echo {said} >> \"{told}\""
    done = hook(*REPLACED, "--hook", command, "--dry-run")
    assert done.returncode == 0 and not told.exists()
    subprocess.run(["/bin/sh", "-c", done.stdout], check=True, timeout=DEADLINE_S)
    assert told.read_text() == "replaced node2 spare1 run1\n"
    assert hook(*REPLACED, "--hook", command).returncode == 0
    assert told.read_text() == "replaced node2 spare1 run1\n" * 2


def test_leader_posts_which_node_is_lost(cluster):
    with server() as (url, posts):
        job = Job(cluster, shared=False, member_hook=url)
        job.start()
        job.restore()
        job.commit(1)
        job.lose(RANKS - 1)
        lost = {"job": cluster.job, "change": "lost", "node": f"n{RANKS - 1}", "replacement": "", "reason": "ended"}
        while posts.get(timeout=DEADLINE_S)[2] != lost:
            pass  # a node that was slow for a moment is told of, too
        cluster.close_engines()
        cluster.kill_agents()  # before the server ends, so that none waits for it
