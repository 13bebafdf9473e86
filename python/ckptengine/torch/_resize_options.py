"""What follows the parameters, besides tensors, if the ranks split the state in another way than before: the options of
parameter groups, schedulers, and optimizer state per parameter that is no tensor.

A rank of a pipeline gets parameters that another rank had before. It takes their state from that rank. Options are
stored per group, without the names of the group's parameters, and schedulers do not say for which parameters they are.
So all ranks that had the parameters of one rank must have stored the same options and schedulers. A rank that had all
of its parameters before takes its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .._engine import Error, Status
from ..dcp._index import RankState
from ._codec import decode, encode
from ._inventory import Inventory
from ._memory import split_name
from ._python_state import COMMON_STATE, COMMON_STATE_ON_GPU, PYTHON_STATE, PYTHON_STATE_ON_GPU, sorted_by_key
from ._resize_names import Names
from ._structure import refuse_other_numbers

State = dict[str, dict[str, dict]]  # by optimizer, then by parameter, then by key


class Options(NamedTuple):
    """What one rank stored."""

    common: dict[str, Any]  # parts of the Python state that are the same for many parameters: "groups" and "scheduler"
    names: dict[str, set[str]]  # by optimizer: parameters with state that is no tensor

    def renamed(self, names: Names) -> Options:
        return Options(self.common, {key: set(map(names.of_parameter, of)) for key, of in self.names.items()})


class Moved(NamedTuple):
    """State of a parameter, and the rank that stored it."""

    rank: int
    optimizer: str
    parameter: str


class Chosen(NamedTuple):
    """What one rank gets."""

    rank: int  # the rank whose Python state it gets otherwise
    common: dict[str, Any]
    sources: list[Moved]

    def states(self, own: State, others: Mapping[Moved, dict]) -> State:
        """Returns the state of all parameters. `own`: what `rank` stored. `others`: what other ranks stored."""
        found: State = {}
        for one in self.sources:
            state = own[one.optimizer][one.parameter] if one.rank == self.rank else others[one]
            found.setdefault(one.optimizer, {})[one.parameter] = state
        return found


def read(layout: Mapping[str, dict], small: Callable[[str], bytes]) -> tuple[Options, State] | None:
    """Reads them from a shard. Returns None if it has none. `small` returns the bytes of a tensor in the shard."""
    for name, on_gpu in ((PYTHON_STATE, PYTHON_STATE_ON_GPU), (COMMON_STATE, COMMON_STATE_ON_GPU)):
        if name not in layout:
            continue
        try:
            state = decode(small(name), small(on_gpu) if on_gpu in layout else b"")
        except ValueError:
            continue  # another program stored something else under this name
        if isinstance(state, dict) and "groups" in state:
            common = {part: state[part] for part in ("groups", "scheduler")}
            states = state["optimizer"]
            return Options(common, {key: set(of_parameters) for key, of_parameters in states.items()}), states
    return None


def renamed(state: State, names: Names) -> State:
    """Returns the state by the names that parameters have in this job."""
    return {key: {names.of_parameter(name): one for name, one in of.items()} for key, of in state.items()}


def choose(
    inventory: Inventory,
    own: RankState,
    ranks: Sequence[RankState],
    stored: Mapping[int, Options],
    names: Names,
) -> Chosen:
    """Returns what this rank gets. `own`: the rank whose Python state it gets otherwise. `stored`: by rank. Raises
    Error if the parameters of this rank do not have one common answer."""
    if any(rank.rank not in stored for rank in ranks):
        raise Error(Status.MISMATCH, "the checkpoint is not of a Checkpointer; load it with ckptengine.dcp.Reader")
    sources = _sources(inventory, own, ranks, names)
    firsts: dict[int, str] = {}  # by rank that stored parameters of this rank: the first of them
    for _, name, rank in sources:
        firsts.setdefault(rank, name)
    source = next(iter(firsts), own.rank)
    common = stored[source].common
    for rank, name in firsts.items():
        if rank != source and _encoded(stored[rank]) != _encoded(stored[source]):
            raise Error(
                Status.MISMATCH,
                f"one rank now has the parameters '{firsts[source]}' and '{name}', but the checkpoint has different "
                "optimizer options or schedulers for them; put them on different ranks, or start the ranks that "
                "stored them",
            )
    refuse_other_numbers(inventory, common["groups"])
    has_state = [Moved(rank, key, name) for key, name, rank in sources if name in stored[rank].names.get(key, ())]
    return Chosen(own.rank, common, has_state)


def _sources(
    inventory: Inventory, own: RankState, ranks: Iterable[RankState], names: Names
) -> list[tuple[str, str, int]]:
    """Returns, for each parameter of each optimizer, the rank whose state it gets: `own` if it had the parameter."""
    had: dict[str, set[int]] = {}  # by name of a tensor
    for rank in ranks:
        for stored_name in rank.layouts[rank.main or ""]:
            had.setdefault(names.of_tensor(split_name(stored_name)[0]), set()).add(rank.rank)
    found = []
    for key in inventory.optimizers:
        for name in inventory.parameter_names(key).values():
            those = had.get(f"model.{name}") or had.get(f"param.{key}.{name}" if key else f"param.{name}") or {own.rank}
            found.append((key, name, own.rank if own.rank in those else min(those)))
    return found


def _encoded(options: Options) -> bytes:
    return encode(sorted_by_key(options.common))


def refuse_unwanted(stored: Mapping[int, Options], chosen: Iterable[Chosen]) -> None:
    """Raises Error if there is state of a parameter that no rank gets."""
    wanted = {(one.optimizer, one.parameter) for each in chosen for one in each.sources}
    for options in stored.values():
        for key, names in options.names.items():
            for name in sorted(names):
                if (key, name) not in wanted:
                    raise Error(
                        Status.MISMATCH,
                        f"the optimizer has state for parameter '{name}' in the checkpoint, but no rank of this job "
                        "has it; start the job as it was stored, or under another job name",
                    )


def moved(chosen: Iterable[Chosen]) -> set[Moved]:
    """Returns the state that ranks get, but that is not part of the Python state that they get."""
    return {one for each in chosen for one in each.sources if one.rank != each.rank}
