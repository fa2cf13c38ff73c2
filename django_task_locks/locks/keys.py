"""Every Redis key of the lock manager, named and explained here and nowhere else.

The scripts receive these names as literals (`lua_literals`), so no script spells a key.
"""

import re
from dataclasses import dataclass, field

# What stands for the epoch before the first one: a deployment in which no process has ever beaten.
NO_EPOCH = "0:"

# The first character of a lock's value: an exclusive holder, and whether somebody (perhaps) waits;
# or the one shared holder of a resource that nobody waits for.
AWAITED, UNAWAITED, SOLE = "+", "-", "="

_PREFIX = re.compile(r"[A-Za-z0-9_.:/@-]{1,64}")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys under one prefix. All share the hash tag `{prefix}`, hence one cluster slot.

    ============================  ======  ========================================================
    request:<id>                  STRING  one request as JSON: state, score, owner, since; where not
                                          empty token, queue and lane (of a task), slot, label,
                                          exclusive, shared, and watched while somebody waits for
                                          its end. The score is the priority in the high part and
                                          the arrival in the low 43 bits
    lock:<resource>               STRING  the exclusive holder's id after a mark: "-", or "+" once
                                          somebody waits; "+" alone where it is free, but waited
                                          for; "=" before the id of the only shared holder
                                  SET     the shared holders' ids (granted ones included), once
                                          there are more or somebody waits
    wait:all:<resource>           ZSET    waiting ids by score
    wait:x:<resource>             ZSET    those of them that wait for exclusive access
    owner:<owner>                 SET     the registry: ids of what this owner holds or waits for;
                                          `queue/<queue>` for tasks that no process has claimed
    owners                        HASH    process owner to its TTL in seconds, negative once closed
    slot:<owner>                  HASH    executor slot number to the one id it holds, and
                                          `generation:<number>` to the slot's generation
    closed                        ZSET    owners declared dead, by time in ms; scripts refuse them
    suspects                      ZSET    owners seen without a row, by the time first seen in ms
    lanes                         HASH    lane to {queue, versions} as JSON; "" to a counter that
                                          changes with every change of the others
    due                           ZSET    ids of requests whose time is still to come, by that time
                                          in ms: they have no arrival, lock or place in a queue yet
    ready:<lane>                  ZSET    granted ids that no worker has claimed, by score
    wake:<lane>                   ZSET    one marker that idle executors block on; `wake:` is lit
                                          for a new lane and a new first one in `due`
    control:<owner>               LIST    messages to one process
    grant:<id>                    LIST    the token, for the process that waits for this request
    ended:<id>                    LIST    a sign that a watched request has ended, for 10 s: whoever
                                          waits for its end takes it and puts it back
    leader:<job>                  STRING  who does a job that one process at a time may do
    unsettled                     HASH    resource to the score from which on its waiters are still
                                          to be examined after a release
    seq                           STRING  counter: order of arrival, and fencing tokens
    epoch                         STRING  <number>:<run id of the server> while Redis holds the
                                          truth, -<number>:<run id> while the locks are rebuilt;
                                          scripts refuse to work when it is not what they expect
    confirmed                     SET     ids that the present rebuild has restored
    ============================  ======  ========================================================
    """

    prefix: str
    base: str = field(init=False)

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise ValueError(
                f"prefix {self.prefix!r}: 1 to 64 letters, digits or any of _.:/@- are accepted"
            )
        object.__setattr__(self, "base", f"{{{self.prefix}}}:")

    @property
    def anchor(self) -> str:
        """The key that routes a script to this prefix's cluster slot."""
        return self.seq

    @property
    def absent(self) -> str:
        """A key that never exists, in the same slot; see transport.Script."""
        return self.base + "absent"

    @property
    def seq(self) -> str:
        return self.base + "seq"

    @property
    def owners(self) -> str:
        return self.base + "owners"

    @property
    def closed(self) -> str:
        return self.base + "closed"

    @property
    def suspects(self) -> str:
        return self.base + "suspects"

    @property
    def unsettled(self) -> str:
        return self.base + "unsettled"

    @property
    def lanes(self) -> str:
        return self.base + "lanes"

    @property
    def due(self) -> str:
        return self.base + "due"

    @property
    def epoch(self) -> str:
        return self.base + "epoch"

    @property
    def confirmed(self) -> str:
        return self.base + "confirmed"

    def request(self, id: str) -> str:
        return f"{self.base}request:{id}"

    def lock(self, resource: str) -> str:
        return f"{self.base}lock:{resource}"

    def wait(self, resource: str) -> str:
        return f"{self.base}wait:all:{resource}"

    def wait_exclusive(self, resource: str) -> str:
        return f"{self.base}wait:x:{resource}"

    def owner(self, owner: str) -> str:
        return f"{self.base}owner:{owner}"

    def slot(self, owner: str) -> str:
        return f"{self.base}slot:{owner}"

    def ready(self, lane: str) -> str:
        return f"{self.base}ready:{lane}"

    def wake(self, lane: str) -> str:
        return f"{self.base}wake:{lane}"

    def control(self, owner: str) -> str:
        return f"{self.base}control:{owner}"

    def grant(self, id: str) -> str:
        return f"{self.base}grant:{id}"

    def ended(self, id: str) -> str:
        return f"{self.base}ended:{id}"

    def leader(self, job: str) -> str:
        return f"{self.base}leader:{job}"

    def lua_literals(self) -> dict[str, str]:
        """By the name that stands for it in the scripts, each key as a Lua literal; families end
        where the name begins.
        """
        names = {
            "SEQ": self.seq,
            "OWNERS": self.owners,
            "CLOSED": self.closed,
            "SUSPECTS": self.suspects,
            "LANES": self.lanes,
            "DUE": self.due,
            "UNSETTLED": self.unsettled,
            "EPOCH": self.epoch,
            "CONFIRMED": self.confirmed,
            "REQUEST": self.request(""),
            "LOCK": self.lock(""),
            "WAIT": self.wait(""),
            "WAIT_X": self.wait_exclusive(""),
            "OWNER": self.owner(""),
            "SLOT": self.slot(""),
            "READY": self.ready(""),
            "WAKE": self.wake(""),
            "CONTROL": self.control(""),
            "LEADER": self.leader(""),
            "GRANT": self.grant(""),
            "ENDED": self.ended(""),
            "QUEUE": queue_owner(""),
        }
        names |= {"AWAITED": AWAITED, "UNAWAITED": UNAWAITED, "SOLE": SOLE, "NO_EPOCH": NO_EPOCH}
        return {name: f"'{key}'" for name, key in names.items()}


QUEUE_OWNER = "queue/"


def queue_owner(queue: str) -> str:
    """The pseudo owner under which requests of tasks that no process has claimed are registered."""
    return QUEUE_OWNER + queue
