"""Peers take turns: in each round each of them has one, so that what disturbs the machine disturbs
all of them."""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.busy import CpuUse, CpuWatch
from benchmarks.client import ClientFailed
from benchmarks.peers.peer import Peer
from benchmarks.stage import PeerFailed, Run, Stage


@dataclass(slots=True)
class Turns:
    """What came of them.

    results   by peer, one for each round; None where it failed
    failures  the first one of each peer that had one
    use       how busy the machine was in each turn
    """

    results: dict[str, list[Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    use: list[CpuUse] = field(default_factory=list)

    def of(self, peer: str, name: str = "") -> list[float]:
        """The values of the rounds in which it succeeded."""
        found = [result for result in self.results.get(peer, ()) if result is not None]
        return [result[name] for result in found] if name else found


def take_turns(
    stage: Stage,
    peers: Sequence[Peer],
    turn: Callable[[Run], Any],
    *,
    rounds: int,
    seed: int,
    what: str,
    slow_rounds: int | None = None,
) -> Turns:
    """`turn` measures one peer once; raises PeerFailed where it does not do what it should, after
    which this peer has no other turn. Peers that are slow take part in `slow_rounds` alone."""
    turns = Turns(results={peer.name: [] for peer in peers})
    turns.failures = {p.name: stage.absent[p.name] for p in peers if p.name in stage.absent}
    order = list(peers)
    shuffle = random.Random(seed).shuffle
    for number in range(rounds):
        shuffle(order)
        for peer in order:
            is_over = peer.is_slow and slow_rounds is not None and number >= slow_rounds
            if is_over or peer.name in turns.failures:
                turns.results[peer.name].append(None)
                continue
            print(f"{what}, round {number + 1}: {peer.name} ...", file=sys.stderr, flush=True)
            try:
                with stage.run(peer) as run:
                    watch = CpuWatch()
                    turns.results[peer.name].append(turn(run))
                    turns.use.append(watch.use())
            except (PeerFailed, ClientFailed) as error:
                print(f"{error}\n{error.log}", file=sys.stderr, flush=True)
                turns.failures[peer.name] = str(error)
                turns.results[peer.name].append(None)
    return turns
