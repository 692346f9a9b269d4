"""Lesson 00: bytes of a row, bytes of a conversation, and how long to keep them."""

from __future__ import annotations

from functools import cache

import torch

from minidsv41.cache import Cache
from minidsv41.config import ModelConfig
from minidsv41.course.exercise import Exercise, Mistake
from minidsv41.course.service import Service
from minidsv41.formats import E2M1, E4M3, UE8M0, Format
from minidsv41.ops import Batch

FLASH = ModelConfig.preset("flash")
LENGTHS = (0, 1, 2, 3, 64, 126, 127, 128, 129, 130, 255, 256, 257)


def stored(width: int, bits: int, group: int) -> int:
    """Bytes of one row as the package really writes it."""
    row = torch.randn(1, width, generator=torch.Generator().manual_seed(width))
    form = Format("row", E2M1 if bits == 4 else E4M3, UE8M0, group, floor=1e-4)
    return sum(part.nbytes for part in form.encode(row))


def row_bytes(width: int, bits: int, group: int) -> int:
    return width * bits // 8 + width // group


RECORD = Exercise(
    name="00.record",
    inputs=lambda: [
        dict(width=w, bits=b, group=g)
        for w, b, g in [(32, 8, 32), (64, 4, 16), (96, 8, 16), (128, 4, 32), (512, 4, 16), (512, 8, 32)]
    ],
    reference=stored,
    solution=row_bytes,
    why={
        "en": "A row is its values and, for each group of them, a scale of one byte. At 4 bits and 16 values a group "
        "the scales are an eighth of the values: 256 + 32.",
        "zh": "一行由数值和每组一个字节的缩放因子组成。4 位、每组 16 个数时，缩放因子是数值部分的八分之一：256 + 32。",
    },
    hints=(
        {"en": "A row has two parts: values and scales.", "zh": "一行有两部分：数值和缩放因子。"},
        {"en": "Two 4-bit values share a byte.", "zh": "两个 4 位数共用一个字节。"},
        {"en": "width · bits / 8 + width / group", "zh": "width · bits / 8 + width / group"},
    ),
    mistakes=(
        Mistake(
            name="no scales",
            answer=lambda width, bits, group: width * bits // 8,
            thought={
                "en": "Those are the values alone. Each group also stores the scale that it was divided by.",
                "zh": "这只是数值部分。每组还要存下它除以的缩放因子。",
            },
        ),
        Mistake(
            name="a byte a value",
            answer=lambda width, bits, group: width + width // group,
            thought={
                "en": "That is a byte for every value. At 4 bits two of them share one.",
                "zh": "这是每个数值一个字节。4 位时两个数值共用一个字节。",
            },
        ),
        Mistake(
            name="float scales",
            answer=lambda width, bits, group: width * bits // 8 + 4 * (width // group),
            thought={
                "en": "That gives each scale the four bytes of a float32. Here a scale is itself an 8-bit number.",
                "zh": "这里给每个缩放因子四个字节（float32）。实际上缩放因子本身也只有 8 位。",
            },
        ),
    ),
)


@cache
def measured() -> dict[int, tuple[int, int, int]]:
    """Bytes that a real cache of the released widths holds, at each of LENGTHS: windows, entries, index keys."""
    store, g = Cache(FLASH, cache_format="packed"), torch.Generator().manual_seed(0)
    state, out = store.new(), {}
    for length in LENGTHS:
        batch = Batch.ragged([torch.zeros(length - state.length, dtype=torch.int64)], [state.length])
        keys = store.keys([state], batch)
        for kind, layer in store.pools:
            at = batch.positions if kind == "window" else torch.unique(batch.positions // FLASH.ratio(layer))
            width = FLASH.index_head_dim if kind == "index" else FLASH.head_dim
            keys.write(kind, layer, torch.zeros_like(at), at, torch.randn(len(at), width, generator=g))
        keys.commit()
        held = store.nbytes(state)
        out[length] = (held["window"], held["entry"], held["index"])
    return out


def held(tokens: int) -> tuple[int, int, int]:
    windows = min(tokens, 128) * 40 * 528
    entries = 3 * (tokens // 2) + tokens
    return windows, entries * 288, entries * 68


HELD = Exercise(
    name="00.held",
    inputs=lambda: [dict(tokens=n) for n in LENGTHS],
    reference=lambda tokens: measured()[tokens],
    solution=held,
    why={
        "en": "Forty windows fill until each holds 128 rows; from then on a row dies for every row that comes. Entries "
        "only grow, three owners by one for each complete pair and layer 20 by one for each token: 890 B a token "
        "at even lengths, three half-finished entries less at odd ones.",
        "zh": "40 个滑窗各自填到 128 行为止，此后每来一行就有一行消失。条目只增不减："
        "三个源层每凑满一对 token 增加一条，第 20 层每个 token 一条。"
        "长度为偶数时正好每 token 890 B，为奇数时少三条未完成的条目。",
    },
    hints=(
        {
            "en": "Two laws: windows are bounded, the shared caches are not.",
            "zh": "两条规律：滑窗有上限，共享缓存没有。",
        },
        {
            "en": "An entry of layers 2, 8 and 14 needs two tokens and does not exist before the second.",
            "zh": "第 2、8、14 层的一条条目需要两个 token，第二个到来之前它并不存在。",
        },
        {
            "en": "min(T, 128) · 40 · 528, and 288 and 68 times 3 · ⌊T / 2⌋ + T",
            "zh": "min(T, 128) · 40 · 528，以及 3 · ⌊T / 2⌋ + T 分别乘以 288 和 68",
        },
    ),
    mistakes=(
        Mistake(
            name="windows that grow",
            answer=lambda tokens: (tokens * 40 * 528, *held(tokens)[1:]),
            thought={
                "en": "Your windows never lose a row. A query reads itself and 127 tokens before it, nothing older.",
                "zh": "你的滑窗从不丢弃任何行。一个 query 只读自己和之前的 127 个 token。",
            },
        ),
        Mistake(
            name="half an entry",
            answer=lambda tokens: (held(tokens)[0], tokens * 720, tokens * 170),
            thought={
                "en": "890 B is the average of an even number of tokens. At odd lengths you count three half entries; "
                "an open pair is no entry yet.",
                "zh": "890 B 是偶数个 token 的平均值。长度为奇数时你多算了三个半条：未完成的压缩组还不是条目。",
            },
        ),
        Mistake(
            name="entry before its pair is complete",
            answer=lambda tokens: (held(tokens)[0], *(b * (3 * ((tokens + 1) // 2) + tokens) for b in (288, 68))),
            thought={
                "en": "You write an entry when its pair opens. It exists only once the second token is there.",
                "zh": "你在压缩组刚打开时就写入条目。要等第二个 token 到来，条目才存在。",
            },
        ),
        Mistake(
            name="every owner waits for a pair",
            answer=lambda tokens: (held(tokens)[0], tokens // 2 * 1440, tokens // 2 * 340),
            thought={
                "en": "You let every owner wait for a pair. Layer 20 compresses nothing: one entry for each token.",
                "zh": "你让每个源层都等一对 token。第 20 层不压缩：每个 token 一条。",
            },
        ),
        Mistake(
            name="a window without the query itself",
            answer=lambda tokens: (min(tokens, 127) * 40 * 528, *held(tokens)[1:]),
            thought={
                "en": "Your windows hold 127 rows. The query's own row is one of the 128.",
                "zh": "你的滑窗只有 127 行。query 自己的那一行也算在 128 行之内。",
            },
        ),
        Mistake(
            name="every layer its own entries",
            answer=lambda tokens: (
                held(tokens)[0],
                *(b * (18 * (tokens // 2) + 20 * tokens) for b in (288, 68)),
            ),
            thought={
                "en": "You give each of 38 layers entries of its own. Four layers write; the others read theirs.",
                "zh": "你让 38 层各自拥有条目。实际上只有 4 层写入，其余各层读取它们的。",
            },
        ),
        Mistake(
            name="draft windows",
            answer=lambda tokens: (min(tokens, 128) * 43 * 528, *held(tokens)[1:]),
            thought={
                "en": "You count 43 windows. Three belong to the draft, which the cache books apart.",
                "zh": "你算了 43 个滑窗。其中三个属于草稿，缓存单独记账。",
            },
        ),
    ),
)


def keep(kind: str, idle: float) -> bool:
    return idle < (300 if kind == "window" else 4 * 3600)


SERVICE = Service.day(FLASH)
TIMERS = Exercise(
    name="00.keep",
    inputs=lambda: [{}],
    reference=SERVICE.one_timer,
    use=lambda answer: SERVICE.cost(answer),
    accept=lambda cost, best: cost < 0.95 * best,
    versus={
        "en": "your policy costs {value} GB·h, the best single timer {right} GB·h (be 5 % below it)",
        "zh": "你的策略花费 {value} GB·h，最好的单一计时器花费 {right} GB·h（请比它低 5%）",
    },
    solution=keep,
    why={
        "en": "A kind is worth keeping as long as its bytes cost less than running its tokens again. A lost window and "
        "a lost entry both cost 20 encoder layers a token, but the window holds 21,120 B of it and the entries 890: "
        "whatever memory costs, the second timer may be 23.7 times as long. One timer is wrong for both.",
        "zh": "只要保存字节的花费低于重算，就值得保存。丢失滑窗和丢失条目，每个 token 都要重跑编码器的 20 层；"
        "但前者占 21,120 B，后者只占 890 B。所以不论内存多贵，第二个计时器都可以是第一个的 23.7 倍。"
        "单一计时器对两者都不合适。",
    },
    hints=(
        {"en": "Ask first which kind is cheaper to lose.", "zh": "先问：丢掉哪一种更便宜？"},
        {
            "en": "Two timers. Start with the best single one, then shorten one of the two.",
            "zh": "用两个计时器。从最好的单一计时器开始，再缩短其中一个。",
        },
        {
            "en": "break-even = row_price · token-layers lost / bytes kept, for each kind",
            "zh": "盈亏平衡时间 = row_price · 丢失的 token·层 / 保存的字节，两种分别计算",
        },
    ),
    mistakes=(
        Mistake(
            name="keep everything",
            answer=lambda kind, idle: True,
            thought={
                "en": "You drop nothing, so the memory of users who come back tomorrow is paid all night.",
                "zh": "你什么都不丢，明天才回来的用户，整晚都在占内存。",
            },
        ),
        Mistake(
            name="keep nothing",
            answer=lambda kind, idle: False,
            thought={
                "en": "You drop all at once, so every turn pays for its whole prompt again.",
                "zh": "你立刻全部丢弃，每一轮都要为整个提示词重新付费。",
            },
        ),
        Mistake(
            name="the wrong one first",
            answer=lambda kind, idle: idle < (300 if kind == "global" else 4 * 3600),
            thought={
                "en": "You drop the entries first. They are the small part, and losing them costs the whole prompt.",
                "zh": "你先丢了条目。它们占得少，丢失后却要重算整个提示词。",
            },
        ),
    ),
)

EXERCISES = (RECORD, HELD, TIMERS)
