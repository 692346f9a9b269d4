"""Lesson 02: what a row is made of, the turn from which replay is no loss, and a bias that evens the load."""

from __future__ import annotations

from minidsv41.config import ModelConfig
from minidsv41.course import ced
from minidsv41.course.exercise import Exercise, Mistake
from minidsv41.course.lessons.router import BALANCE

FLASH = ModelConfig.preset("flash")


def source(layer: int, kind: str) -> int:
    return FLASH.kv_owner(layer) - 1 if kind == "entry" else layer - 1


def made_of(layer: int, kind: str) -> int:
    owner = layer
    if kind == "entry":
        owner = 20 if layer >= 20 else 14 if layer >= 14 else 8 if layer >= 8 else 2
    return owner - 1


SOURCE = Exercise(
    name="02.made_of",
    inputs=lambda: [
        dict(layer=layer, kind=kind) for layer in (2, 7, 8, 20, 21, 33, 39) for kind in ("window", "entry")
    ],
    reference=source,
    solution=made_of,
    why={
        "en": "A layer makes its window row from its own input, which is the output of the layer before. Entries are "
        "made by their owner, from the owner's input. For every decoder layer the owner is 20, and its input is the "
        "output of layer 19: the encoder's last state. Nothing of the decoder is in it.",
        "zh": "每层的滑窗行由它自己的输入算出，也就是前一层的输出。条目由源层用源层的输入算出。"
        "所有解码器层的源层都是第 20 层，它的输入是第 19 层的输出，即编码器的最后状态：其中没有任何解码器的计算。",
    },
    hints=(
        {"en": "Who writes the row? Start there.", "zh": "这一行是谁写的？从这里开始。"},
        {
            "en": "A layer writes from its input, and its input is what the layer before it put out.",
            "zh": "一层用自己的输入写行，而它的输入是前一层的输出。",
        },
        {
            "en": "window: layer − 1; entry: owner − 1, with the owners 2, 8, 14 and 20",
            "zh": "滑窗：layer − 1；条目：源层 − 1，源层为 2、8、14、20",
        },
    ),
    mistakes=(
        Mistake(
            name="every layer its own keys",
            answer=lambda layer, kind: layer - 1,
            thought={
                "en": "That is a plain Transformer, in which every layer makes all its keys itself. Here only windows "
                "are made so; entries come from the owner.",
                "zh": "这是普通 Transformer：每层自己计算所有的键。这里只有滑窗如此，条目来自源层。",
            },
        ),
        Mistake(
            name="the owner's output",
            answer=lambda layer, kind: source(layer, kind) + 1,
            thought={
                "en": "You name the layer that writes. It writes from its input, before it has run itself, so layer 20 "
                "need not run for the decoder's entries to exist.",
                "zh": "你给出的是写入的层。它用输入写入，先于自己的运行，所以第 20 层不必运行，解码器的条目就已存在。",
            },
        ),
        Mistake(
            name="the encoder for all",
            answer=lambda layer, kind: min(layer - 1, 19) if kind == "window" else source(layer, kind),
            thought={
                "en": "You take decoder windows from the encoder too. They are made of each layer's own input: that is "
                "why a decoder without its windows has to run.",
                "zh": "你让解码器的滑窗也来自编码器。滑窗由各层自己的输入算出：所以丢了滑窗的解码器必须运行。",
            },
        ),
        Mistake(
            name="one owner for all",
            answer=lambda layer, kind: 19 if kind == "entry" else layer - 1,
            thought={
                "en": "Layer 20 owns the decoder's entries alone. The owner of an encoder layer is 2, 8 or 14.",
                "zh": "第 20 层是解码器条目的源层。编码器层不能等它：它们的源层是 2、8 或 14。",
            },
        ),
    ),
)


def break_even(window: int, layers: int) -> int:
    return 2 * window


BREAK_EVEN = Exercise(
    name="02.break_even",
    inputs=lambda: [
        dict(window=w, layers=n) for w, n in [(1, 2), (4, 2), (3, 8), (6, 8), (32, 8), (17, 12), (64, 30), (128, 40)]
    ],
    reference=ced.break_even,
    solution=break_even,
    why={
        "en": "Both replays run half of the layers on W + n rows and the other half on W: (2W + n) · L/2. Kept windows "
        "run n · L. Equal at n = 2W. L is a factor of both sides: however deep the model, the debt is two windows.",
        "zh": "两次重放：一半的层运行 W + n 行，另一半运行 W 行，共 (2W + n) · L/2。保留滑窗则为 n · L。"
        "n = 2W 时相等。L 是两边的公因子：不论模型多深，欠下的都是两个窗口。",
    },
    hints=(
        {
            "en": "Count rows for each half of the layers, once with windows kept and once with them lost.",
            "zh": "对每一半的层数行数：滑窗还在时一次，滑窗丢失时一次。",
        },
        {
            "en": "Lost: the encoder runs on W old rows and n new ones, the decoder on the last W of these.",
            "zh": "丢失时：编码器运行 W 个旧行和 n 个新行，解码器运行其中最后 W 行。",
        },
        {"en": "(W + n) · L/2 + W · L/2 = n · L", "zh": "(W + n) · L/2 + W · L/2 = n · L"},
    ),
    mistakes=(
        Mistake(
            name="the decoder is free",
            answer=lambda window, layers: window,
            thought={
                "en": "You count the encoder's replay alone. The decoder's last window has to run as well.",
                "zh": "你只算了编码器的重放。解码器的最后一个窗口也必须运行。",
            },
        ),
        Mistake(
            name="strictly cheaper",
            answer=lambda window, layers: 2 * window + 1,
            thought={
                "en": "There replay is cheaper already. Asked is where it stops being dearer, one token before.",
                "zh": "从那里起重放才更便宜。问的是它不再更贵的地方，早一个 token。",
            },
        ),
        Mistake(
            name="exact windows",
            answer=lambda window, layers: layers * (window - 1),
            thought={
                "en": "That many old tokens would make the windows exact. Bounded replay runs W of them.",
                "zh": "这么多旧 token 才能让滑窗精确。有界重放只运行其中 W 个。",
            },
        ),
        Mistake(
            name="each layer its window",
            answer=lambda window, layers: layers * window,
            thought={
                "en": "You charge the turn with W rows for each layer. But its own tokens pass through each layer too: "
                "L is on both sides.",
                "zh": "你把每层 W 行都算给了这一轮。但新 token 本身也要经过每一层：L 在等式两边都有。",
            },
        ),
        Mistake(
            name="the first decoder layer on 2W - 1 rows",
            answer=lambda window, layers: 2 * window + -(-2 * (window - 1) // layers),
            thought={
                "en": "You let the first decoder layer run on W − 1 rows more, so that its window is whole, as "
                "cut='late' does. Here it belongs to the tail.",
                "zh": "你让第一个解码器层多运行 W − 1 行，使它自己的滑窗完整，即 cut='late'。这里它算在尾部之内。",
            },
        ),
    ),
)


EXERCISES = (SOURCE, BREAK_EVEN, BALANCE)
