"""Lesson 11: slips of a planner. Each is a plausible sentence, and each buys the wrong machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from fractions import Fraction

from minidsv41.config import ModelConfig
from minidsv41.course.sabotage import Fault
from minidsv41.ledger import flops
from minidsv41.ledger.line import Line
from minidsv41.ledger.plan import Order, Plan, plan, planned
from minidsv41.ledger.planned import V41, Experts
from minidsv41.replaced import replaced


def growing_only() -> AbstractContextManager[None]:
    """A session is taken to hold its entries and index keys alone."""

    def session(original: Callable) -> Callable:
        return lambda self, context: [self.stored(context)]

    return replaced(V41, "session", session)


def one_choice() -> AbstractContextManager[None]:
    """However many sessions run, a step is taken to read the experts that one token chooses."""

    def touched(original: Callable) -> Callable:
        return lambda self, tokens: original(self, Line(tokens.name, 1, tokens.unit))

    return replaced(Experts, "touched", touched)


def no_pool() -> AbstractContextManager[None]:
    """Reindex layers are taken to scan all keys, as if there were no pool."""

    def unbounded(original: Callable) -> Callable:
        return lambda c: Line("cand_positions", c.max_position_embeddings, "entries")

    return replaced(flops, "cand_positions", unbounded)


def binary() -> AbstractContextManager[None]:
    """The memory on the datasheet, which is in GB, is taken to be in GiB."""

    def larger(original: Callable) -> Callable:
        def over_gpus(self: Order, name: str, unit: str) -> Line:
            line = original(self, name, unit)
            return line * Fraction(1024**3, 10**9) if name == "memory" else line

        return over_gpus

    return replaced(Order, "over_gpus", larger)


def planned_at(context: int) -> Plan:
    return plan(Order(model=planned("flash"), context=context, sessions=1000))


FAULTS = (
    Fault(
        name="11.growing_only",
        kind={"en": "omission", "zh": "遗漏"},
        change={"en": "a session is 890 B a token and nothing else", "zh": "会话只算每 token 890 B，别无其他"},
        symptom={
            "en": "nearly right at a million tokens; at chat length the machine takes a fraction of what was sold",
            "zh": "一百万 token 时几乎正确；聊天长度下，机器能承载的会话只有承诺的几分之一",
        },
        apply=growing_only,
        probe=lambda: planned_at(2000).fit,
    ),
    Fault(
        name="11.one_choice",
        kind={"en": "wrong load", "zh": "负载错误"},
        change={
            "en": "a batch reads six experts in a layer, as one token does",
            "zh": "一批请求每层只读六个专家，如同单个 token",
        },
        symptom={
            "en": "the planner agrees with a test of one session and promises many times the speed under load",
            "zh": "单会话测试与规划一致，负载下的承诺速度却高出好几倍",
        },
        apply=one_choice,
        probe=lambda: float(planned_at(131_072).step["tokens_per_second"].value),
    ),
    Fault(
        name="11.no_pool",
        kind={"en": "wrong mechanism", "zh": "机制错误"},
        change={"en": "Reindex layers scan the whole context", "zh": "Reindex 层扫描整个上下文"},
        symptom={
            "en": "nothing at 16,384 tokens; at a million a step is billed for more than twice the keys that it reads",
            "zh": "16,384 token 时毫无异常；一百万时，一步所计的键是实际读取的两倍多",
        },
        apply=no_pool,
        probe=lambda: float(planned_at(ModelConfig().max_position_embeddings).step["session_read_bytes"].value),
    ),
    Fault(
        name="11.binary",
        kind={"en": "unit", "zh": "单位"},
        change={"en": "GB of the datasheet are read as GiB", "zh": "把数据表上的 GB 当作 GiB"},
        symptom={
            "en": "7 % more memory than there is; the reserve hides it until activations need theirs",
            "zh": "内存多算了 7 %；预留部分掩盖了它，直到激活真的需要这部分内存",
        },
        apply=binary,
        probe=lambda: planned_at(131_072).fit,
    ),
)
