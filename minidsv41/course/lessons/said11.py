"""What lesson 11 says to right and wrong answers, in both languages."""

from __future__ import annotations

from minidsv41.course.language import Text

CROSSOVER_WHY: Text = {
    "en": "Full windows weigh layers · window · row, whatever the length. What grows weighs per_token for each token. "
    "They are even at the quotient, and the first whole length at or past it is its ceiling.",
    "zh": "窗口写满后为 layers · window · row，与长度无关。增长的部分每个 token 为 per_token。"
    "两者相等于其商，首个不小于它的整数长度就是向上取整。",
}
CROSSOVER_HINTS: tuple[Text, ...] = (
    {"en": "One of the two stops growing. When, and at what weight?", "zh": "两者之一会停止增长。何时？停在多少？"},
    {"en": "every layer has a window of its own", "zh": "每一层都有自己的滑窗"},
    {"en": "-(-layers * window * row // per_token)", "zh": "-(-layers * window * row // per_token)"},
)
ONE_WINDOW: Text = {
    "en": "You weigh one layer's window. Every layer keeps one.",
    "zh": "你只算了一层的滑窗。每一层都有一个。",
}
ROUNDED_DOWN: Text = {
    "en": "You rounded down: at that length the windows are still heavier.",
    "zh": "你向下取整了：在那个长度，滑窗仍然更重。",
}
ONE_TOO_FAR: Text = {
    "en": "You went one token too far where the quotient is whole: there they are even already, and even counts.",
    "zh": "商为整数时你多走了一个 token：在那里两者已经相等，相等也算。",
}
ONE_ROW: Text = {
    "en": "You compare one row with one token. A window keeps `window` rows.",
    "zh": "你拿一行和一个 token 比。一个滑窗有 window 行。",
}

PLAN_WHY: Text = {
    "en": "Memory first: nine tenths of it must hold the weights and every session with its windows. Then one step: "
    "what all sessions read, against what they compute. Routed experts are read by whoever chooses them, so one "
    "session reads 6 of 384 in a layer and a thousand sessions read all. With more sessions the experts are read no "
    "more often, the cache is; and more GPUs of the same kind do not change which of the two is slower.",
    "zh": "先看内存：其十分之九要装下权重和每个会话（连同滑窗）。再看一步：所有会话读多少、算多少。"
    "被选中的专家才会被读：一个会话每层只读 384 个中的 6 个，一千个会话则全部读到。"
    "会话再多，专家也只读一遍，而缓存继续增长；增加同种 GPU 并不改变两者谁更慢。",
}
PLAN_HINTS: tuple[Text, ...] = (
    {
        "en": "How many bytes must lie on the GPUs? A tenth of their memory is not yours.",
        "zh": "GPU 上必须放多少字节？它们的十分之一内存不归你用。",
    },
    {
        "en": "Compute both times of a step on one GPU: bytes over bandwidth, FLOP over rate. The longer one binds.",
        "zh": "在一块 GPU 上算出一步的两种时间：字节 ÷ 带宽，FLOP ÷ 算力。较长者为瓶颈。",
    },
    {
        "en": "gpus = ceil((weights + sessions · held) / (0.9 · memory)); if bytes bind, name the largest of dense, "
        "experts(sessions) and sessions · reads",
        "zh": "gpus = ceil((weights + sessions · held) / (0.9 · memory))；若是带宽，"
        "取 dense、experts(sessions)、sessions · reads 中最大者",
    },
)
NO_RESERVE: Text = {
    "en": "You fill the memory to its last byte. A tenth is left to activations and the runtime.",
    "zh": "你把内存用到了最后一个字节。十分之一要留给激活和运行时。",
}
GROWING_ONLY: Text = {
    "en": "You count 890 B a token and forget what a session holds at any length: 43 windows of 128 rows, and the "
    "scratch of verification.",
    "zh": "你只算了每 token 890 B，忘了会话在任何长度都持有的部分：43 个 128 行的滑窗，以及验证用的暂存。",
}
BARE_WINDOWS: Text = {
    "en": "A session holds a little more than entries and 40 windows: three windows of the draft module and the "
    "scratch of verification. `model.session(context)` lists all of it.",
    "zh": "会话持有的不止条目和 40 个滑窗：还有草稿模块的三个滑窗和验证用的暂存。`model.session(context)` 列出了全部。",
}
TABLES_TOO: Text = {
    "en": "You put Engram's tables on the GPUs as well. Here they lie in the host's memory.",
    "zh": "你把 Engram 的表也放到了 GPU 上。这里它们放在主机内存里。",
}
PLAIN_PRODUCTS: Text = {
    "en": "You count FP8 products like BF16 ones. An H200 does two of them in the same time: "
    "`step_flops(context, fp8=True)` counts each of them half.",
    "zh": "你把 FP8 乘法和 BF16 一样计。H200 在同样时间里能做两倍的 FP8 乘法："
    "`step_flops(context, fp8=True)` 把它们按一半计。",
}
OWN_EXPERTS: Text = {
    "en": "You let each session read its six experts of a layer for itself. One reading serves all who chose the same "
    "expert, and a layer has no more than 384.",
    "zh": "你让每个会话各读自己的六个专家。选中同一专家的会话共用一次读取，而一层最多只有 384 个专家。",
}
LARGEST_READ: Text = {
    "en": "You name the largest read without asking whether reading is what takes longest.",
    "zh": "你指出了最大的读取项，却没有问读取是不是最慢的。",
}
ALL_EXPERTS: Text = {
    "en": "You read all experts in every step. A few sessions choose only some of them.",
    "zh": "你让每一步都读全部专家。会话少时，被选中的只是一部分。",
}

MOVE_VERSUS: Text = {
    "en": "your schedule: {value}; the release: {right}",
    "zh": "你的方案：{value}；发布的模型：{right}",
}
MOVE_WHY: Text = {
    "en": "At a million tokens memory decides how many sessions run, and index keys are most of what each reads. Both "
    "follow the owners that scan everything. Pooling the decoder halves its keys; that alone gives 1.24 times. One "
    "owner less in the encoder takes another scan away: 1.4 times, for 0.7 layers of mean distance. What the planner "
    "cannot see is the price in quality: lesson 04 measured that pooling is not free.",
    "zh": "一百万 token 时，能同时运行多少会话由内存决定，而每个会话读的大多是索引键。"
    "两者都取决于要扫描全部条目的源层。解码器两两合并使其键减半，单此一项为 1.24 倍；"
    "编码器再少一个源层，又省去一次扫描：1.4 倍，代价是平均距离增加 0.7 层。"
    "规划器看不到质量上的代价：04 课测得合并并非没有代价。",
}
MOVE_HINTS: tuple[Text, ...] = (
    {
        "en": "What does a session hold and read most at a million tokens?",
        "zh": "一百万 token 时，会话持有和读取最多的是什么？",
    },
    {
        "en": "A chooser inside the pool reads 1.1 MB, an owner 36 or 71 MB. Which can you halve, which can you spare?",
        "zh": "候选池内的选择层读 1.1 MB，源层读 36 或 71 MB。哪个能减半，哪个能省去？",
    },
    {"en": "ratio 2 everywhere and three owners, as in 04.schedule", "zh": "全部压缩比为 2，三个源层，如 04.schedule"},
)
FEWER_CHOOSERS: Text = {
    "en": "You removed choosers behind the pool. They read 2 % of a session's rows in a step.",
    "zh": "你去掉了候选池后面的选择层。它们只占会话一步所读各行的 2 %。",
}
ONE_LESS: Text = {
    "en": "One owner less, and the decoder's keys are as long as before. That is half of the way.",
    "zh": "少了一个源层，但解码器的键和以前一样多。这只走了一半。",
}
POOLED_ONLY: Text = {
    "en": "The decoder is pooled, and three encoder owners still scan half a million keys each.",
    "zh": "解码器已经两两合并，但编码器的三个源层仍各扫描五十万个键。",
}
