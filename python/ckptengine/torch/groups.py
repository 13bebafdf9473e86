"""Process groups of torch whose connections can be replaced. The groups themselves stay, and so do models and device
meshes that hold them. Backends "ckpt:gloo" and "ckpt:nccl":

    torch.distributed.init_process_group("ckpt:gloo")

They communicate as "gloo" and "nccl" do, bit for bit. After a failure run() calls interrupt(), close() and reopen().
Call these only if you do not use run().

All groups of a process are in the same state:

    open         They communicate.
    failed       A communication has failed, e.g. because a peer has gone.
    interrupted  interrupt() was called: threads that wait for a communication go on.
    closed       They answer themselves, as if all ranks had sent what this rank sends. So a rank that takes the place
                 of another can build its model and warm up.

A process begins with open groups, or with closed ones if its rank was started before with the same store. When groups
have failed or were interrupted, a communication raises Interrupted. Within a backward pass it returns garbage instead,
so that the pass ends: call check() before you use gradients. Outside of guard(), a failed communication raises what it
would raise without this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from .._engine import Error, Status
from . import _group, _internals
from ._group_state import Interrupted, state


def interrupt(reason: str) -> None:
    """Interrupts all groups: threads that wait for a communication go on within milliseconds. Any thread may call it.

    Args:
        reason: Why, for people. Interrupted has it as text.
    """
    state.interrupt(reason)


def close() -> None:
    """Ends all connections. Returns once no communication changes tensors any more.

    Raises:
        Error: That takes too long.
    """
    state.close()


def reopen(prefix: str) -> None:
    """Connects all groups again, in the order in which they were made.

    Waits for the other ranks, at most for the timeout of a group.

    Args:
        prefix: A new text, the same on all ranks.

    Raises:
        Interrupted: interrupt() was called meanwhile.
        Error: The groups could not be connected.
    """
    state.reopen(prefix)


def check() -> None:
    """Checks that results of communications are valid.

    Raises:
        Interrupted: The groups were interrupted, or a communication has failed. Then results are garbage.
    """
    why = state.why_not()
    if why:
        raise Interrupted(why)


def why_not() -> str:
    """Returns why check() would raise. "" if it would not."""
    return state.why_not()


def require_replaceable() -> None:
    """Checks that interrupt() can interrupt all process groups.

    Raises:
        Error: This process has no process group, or one that interrupt() cannot interrupt.
    """
    if not dist.is_initialized():
        raise Error(Status.INVALID, "there is no process group; call init_process_group('ckpt:gloo') first")
    for group in _internals.made_groups()[0]:
        if not isinstance(group, _group.Group) and group.size() > 1:
            backend = dist.get_backend(group)
            raise Error(
                Status.INVALID,
                f"a process group has the backend '{backend}', so nothing can interrupt it; make all groups with "
                f"'ckpt:{backend}'",
            )


def failures() -> int:
    """Returns how many communications have failed since the groups were opened."""
    return state.failures


def unanswered() -> str:
    """Returns the name of a communication that only another rank could have answered. "" if there was none.

    It was made in closed groups, outside of guard().
    """
    return state.unanswered


def is_closed() -> bool:
    """Returns whether the groups are closed: their communications return at once."""
    return state.is_closed


@contextlib.contextmanager
def guard(watcher: Any = None) -> Iterator[None]:
    """Context for training that calls check() before it uses results.

    Within it, a communication that fails in a backward pass returns a meaningless result. Any other that fails raises
    Interrupted.

    Args:
        watcher: A Communication, which learns when each communication begins and ends.
    """
    before = state.guarded, state.watcher
    state.guarded, state.watcher = True, watcher
    try:
        yield
    finally:
        state.guarded, state.watcher = before


def _register() -> None:
    for kind in ("gloo", "nccl"):
        name = f"ckpt:{kind}"
        if name not in dist.Backend.backend_list:
            devices = list(dist.Backend.backend_capability[kind])
            make = lambda options, _, kind=kind: _group.make(kind, options)  # noqa: E731
            dist.Backend.register_backend(name, make, extended_api=True, devices=devices)


if not _internals.missing():
    _register()
