"""What lesson 03 says to right and wrong answers, in both languages."""

from __future__ import annotations

from minidsv41.course.language import Text

HALO_WHY: Text = {
    "en": "The state itself is one position. Each layer below adds the W - 1 rows before the leftmost row that is "
    "needed so far; the W-th row of that window is there already. So L(W - 1) + 1.",
    "zh": "状态自身占一个位置。每向下一层，就在目前所需的最左一行之前再加 W - 1 行；该窗口的第 W 行本来就在。"
    "所以是 L(W - 1) + 1。",
}
HALO_HINTS: tuple[Text, ...] = (
    {"en": "Draw one layer with a window of 4. Then one more.", "zh": "先画一层、窗口为 4 的情形，再加一层。"},
    {
        "en": "The first layer needs W positions. How many does the next one add? They overlap in one.",
        "zh": "第一层需要 W 个位置。下一层增加几个？两个窗口有一行重叠。",
    },
    {"en": "layers · (window - 1) + 1", "zh": "layers · (window - 1) + 1"},
)
COUNTED_TWICE: Text = {
    "en": "L · W counts the query of each window twice: a window's last row is the query itself, which the layer above "
    "has counted already.",
    "zh": "L · W 把每个窗口的 query 算了两次：窗口的最后一行就是 query 自己，上面一层已经算过。",
}
ONE_LAYER: Text = {
    "en": "W is right for one layer. Its rows come from states that had windows of their own.",
    "zh": "W 只对一层成立。这些行来自下层状态，而下层状态也各有自己的滑窗。",
}
NOT_ITSELF: Text = {
    "en": "Those are the positions before the state. It stands on one itself.",
    "zh": "这是该状态之前的位置数。它自己也占一个。",
}
MULTIPLIED: Text = {
    "en": "You let every layer multiply the reach. Neighbouring windows lie over each other, so each layer adds.",
    "zh": "你让每层把范围相乘。相邻窗口彼此重叠，所以每层只是相加。",
}

RUN_WHY: Text = {
    "en": "The last layer's rows are projections of what the layer before it left, so it runs none; the one before it "
    "runs the W rows of one window, and every layer further down W - 1 more. At full size 0, 128, 255, 382, … "
    "4,954, in all 99,099.",
    "zh": "最后一层的滑窗行只是上一层输出的投影，因此它一行也不用运行；上一层运行一个窗口的 W 行，"
    "再往下每层多 W - 1 行。完整尺寸下是 0、128、255、382……4,954，共 99,099。",
}
RUN_HINTS: tuple[Text, ...] = (
    {"en": "Begin at the top: whom does the last layer's window need?", "zh": "从顶层开始：最后一层的滑窗需要谁？"},
    {
        "en": "A row of layer 39 is made from what layer 38 left at that position. So layer 38 runs W rows, layer 39 "
        "none.",
        "zh": "第 39 层的一行由第 38 层在该位置留下的状态得到。所以第 38 层运行 W 行，第 39 层不运行。",
    },
    {
        "en": "0 in the last layer, else (layers - 1 - layer) · (window - 1) + 1",
        "zh": "最后一层为 0，其余为 (layers - 1 - layer) · (window - 1) + 1",
    },
)
LAST_RUNS: Text = {
    "en": "Your last layer runs a row. Nothing old is read from behind it: its window rows are projected from what "
    "the layer before it left.",
    "zh": "你让最后一层也运行了一行。没有人读它之后的旧状态：它的滑窗行由上一层的输出投影而来。",
}
STEP_LATE: Text = {
    "en": "You run a layer on every row that it writes. To write a row it only projects; it must run where a later "
    "layer writes. That is one step less.",
    "zh": "你让每层在它写入的每一行上都运行。写入只需投影；只有后一层要写入的地方它才必须运行，少一级台阶。",
}
NO_OVERLAP: Text = {
    "en": "Your steps are W wide. Neighbouring windows share the query itself: W - 1.",
    "zh": "你的台阶宽为 W。相邻窗口共用 query 自己那一行：宽 W - 1。",
}
UPSIDE_DOWN: Text = {
    "en": "Your staircase stands on its head: layer 0 has every layer above it to feed, so it runs the most rows.",
    "zh": "你的楼梯倒过来了：第 0 层要供给上面所有层，运行的行最多。",
}
RECTANGLE: Text = {
    "en": "That is the rectangle: every layer on all positions. Only layer 0 needs to reach that far, and even it runs "
    "one step less.",
    "zh": "这是矩形：每层都跑全部位置。只有第 0 层需要那么远，而且它也少跑一级台阶。",
}

PLAN_WHY: Text = {
    "en": "A lower layer feeds all layers above it, so a row is worth more there, and a step of the staircase is W - 1 "
    "wide only if it is to be exact. Keep one window at the top and let each layer below run the same number of "
    "rows more: at equal cost the error falls to a fraction of the rectangle's.",
    "zh": "下层供给上面所有层，所以那里的一行更值钱；台阶只有在要求精确时才必须宽 W - 1。"
    "顶层保留一个窗口，往下每层多跑同样多的行：花费相同，误差只剩矩形的一小部分。",
}
PLAN_HINTS: tuple[Text, ...] = (
    {"en": "Which rows of a rectangle feed nobody?", "zh": "矩形里哪些行没有供给任何人？"},
    {
        "en": "The top layer needs window - 1 rows, no more. Give the rest to the layers below.",
        "zh": "顶层只需要 window - 1 行。把剩下的给下面各层。",
    },
    {
        "en": "Steps of equal width: window - 1 + step · (layers - 1 - layer), with the largest step that fits.",
        "zh": "等宽台阶：window - 1 + step · (layers - 1 - layer)，取放得下的最大 step。",
    },
)
PLAN_VERSUS: Text = {
    "en": "your plan leaves a KL of {value} nats, the rectangle of the same cost {right} (be below half of it)",
    "zh": "你的方案留下 {value} nat 的 KL，同样花费的矩形为 {right}（请低于它的一半）",
}
SAME_EVERYWHERE: Text = {
    "en": "That is the rectangle. Its upper left corner feeds nobody.",
    "zh": "这就是矩形。它的左上角没有供给任何人。",
}
ALL_BELOW: Text = {
    "en": "Layer 0 alone reaches far. The layer above it then starts from one window all the same, so the next ones "
    "see nothing of it.",
    "zh": "只有第 0 层伸得远。上面一层仍然只从一个窗口开始，再往上就什么也得不到。",
}
TOO_LITTLE: Text = {
    "en": "You leave cells unspent: one window in each layer is the cheapest plan and the least exact one.",
    "zh": "你没有用完格子：每层一个窗口最便宜，也最不精确。",
}
