"""What it costs to keep idle conversations, on disk and in memory: bytes from the ledger, prices from the reader."""

from __future__ import annotations

from dataclasses import dataclass

from minidsv41.config import ModelConfig
from minidsv41.ledger.bytes import kv_bytes_per_token, swa_bytes_per_sequence
from minidsv41.ledger.persistent import SNAPSHOTS, v4_parts

MONTH = 730  # hours
TB, GB = 10**12, 10**9
NAMES = {"global": "entries, keys on disk", "window": "windows on disk", "memory": "windows in memory"}


@dataclass(frozen=True)
class Policy:
    """per_token: bytes on disk for each token; snapshot: bytes of windows on disk; memory: bytes of windows there."""

    name: str
    per_token: float
    snapshot: float = 0
    memory: float = 0


@dataclass(frozen=True)
class Terms:
    """tokens of a conversation; hours on disk, minutes in memory; dollars a month for a TB of disk, a GB of memory."""

    tokens: int
    hours: int
    minutes: int
    disk: float
    memory: float
    conversations: int = 10**6

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0 or (name == "tokens" and value < 1):
                raise ValueError(f"{name} = {value}: must be {'1' if name == 'tokens' else '0'} or more")


def policies(c: ModelConfig) -> tuple[Policy, ...]:
    """This model's own, the same with windows on disk, and V4-Flash's."""
    own, window = float(kv_bytes_per_token(c).value), float(swa_bytes_per_sequence(c).value)
    v4, v4_window = (float(line.value) for line in v4_parts())
    copies = float(SNAPSHOTS.value)
    return (
        Policy("V4.1-Flash", own, memory=window),
        Policy("V4.1, all on disk", own, snapshot=copies * window),
        Policy("V4-Flash", v4, snapshot=copies * v4_window),
    )


def sizes(policy: Policy, tokens: int) -> dict[str, float]:
    """Bytes of one conversation, full windows counted."""
    return {"global": policy.per_token * tokens, "window": policy.snapshot, "memory": policy.memory}


def bill(policy: Policy, t: Terms) -> dict[str, float]:
    """Dollars for keeping every conversation to its deadlines once."""
    size = sizes(policy, t.tokens)
    disk = t.conversations * t.hours / MONTH * t.disk / TB
    memory = t.conversations * t.minutes / 60 / MONTH * t.memory / GB
    return {"global": size["global"] * disk, "window": size["window"] * disk, "memory": size["memory"] * memory}


def described(c: ModelConfig, t: Terms) -> str:
    """The bills in words, one line a policy."""
    lines = []
    for policy in policies(c):
        size, cost = sizes(policy, t.tokens), bill(policy, t)
        parts = [f"{size[k] * t.conversations / TB:,.2f} TB {NAMES[k]} ${v:,.2f}" for k, v in cost.items() if size[k]]
        lines.append(f"{policy.name}: ${sum(cost.values()):,.2f} = {' + '.join(parts)}")
    return "<br>".join(lines)
