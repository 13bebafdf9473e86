"""A trainer process of a chaos job, and what it has said so far."""

import subprocess
from dataclasses import dataclass, field

OK, NO_AGENT, SUPERSEDED, LOST = 0, 17, 19, 22  # ckpt_status


@dataclass(eq=False)
class Trainer:
    """A trainer process, and what it has said so far."""

    rank: int
    node: str
    process: subprocess.Popen
    doomed: bool = False  # may end without that being a violation
    ready: bool = False
    restored: dict | None = None
    failed: dict | None = None
    struck: dict | None = None
    woke: dict | None = None
    diverged: dict | None = None
    attempted: int = -1
    captured: int = -1
    committed: int = -1
    ended: bool = False
    remarks: list = field(default_factory=list)

    def take(self, event):
        kind = event.pop("event")
        if kind == "ready":
            self.ready = True
        elif kind == "snapshot":
            self.attempted = event["iteration"]
        elif kind == "captured":
            self.captured = event["iteration"] if event["status"] == OK else self.captured
        elif kind == "committed":
            self.committed = event["iteration"]
        elif kind == "remark":
            self.remarks.append(event["message"])
        elif kind in ("restored", "failed", "struck", "woke", "diverged"):
            setattr(self, kind, event)
        elif kind == "eof":
            self.ended = True

    def tell(self, order):
        self.ready = False
        try:
            self.process.stdin.write(f"{order}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def hang_up(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass

    def kill(self):
        self.doomed = True
        self.process.kill()
