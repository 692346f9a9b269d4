"""What lesson 04 says to right and wrong answers, in both languages."""

from __future__ import annotations

from minidsv41.course.language import Text

ENTRIES_WHY: Text = {
    "en": "Only owners write. An owner whose ratio is m writes one entry for m tokens, so it adds 1/m for each; "
    "ratios of the layers that read cost nothing.",
    "zh": "只有源层写入。压缩比为 m 的源层每 m 个 token 写一条，即每个 token 1/m 条；只读的层不增加任何条目。",
}
ENTRIES_HINTS: tuple[Text, ...] = (
    {"en": "Who writes? Count those only.", "zh": "谁在写入？只数它们。"},
    {"en": "An owner of ratio 2 writes half an entry for a token.", "zh": "压缩比 2 的源层每个 token 写半条。"},
    {"en": "the sum of 1 / ratios[owner] over owners", "zh": "对所有源层求和：1 / ratios[owner]"},
)
EVERY_LAYER: Text = {
    "en": "You count every layer that reads entries. That is the bill without sharing.",
    "zh": "你数了每个读取条目的层。那是没有跨层共享时的账。",
}
ONE_EACH: Text = {
    "en": "You count one entry an owner. With ratio 2 it writes one for two tokens.",
    "zh": "你给每个源层算一条。压缩比为 2 时，两个 token 才写一条。",
}
TOKENS_AN_ENTRY: Text = {
    "en": "A ratio is tokens an entry. You were asked for entries a token.",
    "zh": "压缩比是每条条目的 token 数。题目问的是每个 token 的条目数。",
}

SCHEDULE_VERSUS: Text = {
    "en": "your schedule: {value}; the best that is allowed: {right}",
    "zh": "你的方案：{value}；允许范围内最好的：{right}",
}
SCHEDULE_WHY: Text = {
    "en": "An owner costs 178 B a token with ratio 2 and twice that with ratio 1, so 600 B pay for three owners of "
    "ratio 2. A group of g layers adds 0 + 1 + … + (g − 1) to the distances, which is least when groups are equal. "
    "No owner may stand past layer 20, so the decoder is one group, and layers 2 to 19 are halved at 11. What the "
    "score cannot see: this decoder reads entries of two tokens, the released one entries of one.",
    "zh": "压缩比 2 的源层每 token 178 B，压缩比 1 是两倍，所以 600 B 够三个压缩比 2 的源层。"
    "g 层的一组贡献距离 0 + 1 + … + (g − 1)，各组相等时总和最小。第 20 层之后不能有源层，"
    "所以解码器是一整组，第 2 到 19 层在第 11 层处对半分。这个评分看不到的是：这里的解码器读的条目含两个 token，"
    "发布的模型里只含一个。",
}
SCHEDULE_HINTS: tuple[Text, ...] = (
    {"en": "How many owners can 600 B pay for, at 178 B a half?", "zh": "每半份 178 B，600 B 够几个源层？"},
    {
        "en": "Long groups cost most: g layers add g(g − 1)/2. Which group cannot be cut?",
        "zh": "组越长代价越大：g 层贡献 g(g − 1)/2。哪一组不能再切？",
    },
    {
        "en": "ratio 2 from layer 2 on; owners at 2, at 20, and at the middle between them",
        "zh": "从第 2 层起压缩比为 2；源层为 2、20 以及两者的中点",
    },
)
REFUSED: Text = {
    "en": "The config refused it before anything was scored; the line above names field, value and rule. A frequent "
    "one: a ratio may change only where a new owner stands.",
    "zh": "配置在评分之前就拒绝了它；上一行写明字段、值和规则。常见的一条：压缩比只能在新的源层处改变。",
}
OVER: Text = {
    "en": "It costs more than 600 B a token. Take an owner away, or give one ratio 2.",
    "zh": "它超过了每 token 600 B。去掉一个源层，或把某个源层的压缩比改为 2。",
}
WINDOWS: Text = {
    "en": "You save bytes by layers that read no entries. They see 128 tokens and nothing older.",
    "zh": "你用不读条目的层来省字节。这些层只看得到 128 个 token，更早的一概看不到。",
}
THIRDS: Text = {
    "en": "You put an owner inside the decoder. It writes entries of all tokens, so a prompt would have to run through "
    "the decoder as well, and the half of prefill that lesson 02 saves is gone.",
    "zh": "你在解码器内部放了源层。它要为所有 token 写条目，提示词就必须也跑完解码器，第 02 课省下的一半预填充就没了。",
}
UNPOOLED: Text = {
    "en": "You kept the decoder at one token an entry, as the release does. By this score that is one owner too few: "
    "with ratio 2 at layer 20 there are 178 B left for another in the encoder.",
    "zh": "你让解码器每个 token 一条，和发布的模型一样。按这个评分这少了一个源层：第 20 层改为压缩比 2，"
    "就剩下 178 B 给编码器再放一个。",
}
LESS_ONE: Text = {
    "en": "These are the released owners without layer 14. Nothing else moved, so layers 8 to 19 are one long group.",
    "zh": "这是去掉第 14 层后的发布方案。其余没有移动，于是第 8 到 19 层成了很长的一组。",
}

CHOOSERS_VERSUS: Text = {
    "en": "your choosers: {value}; the best within the budget: {right}",
    "zh": "你的选择层：{value}；预算内最好的：{right}",
}
CHOOSERS_WHY: Text = {
    "en": "A layer that chooses in the encoder reads an index key for every two tokens of the context: 35.7 MB at a "
    "million tokens. In the decoder, behind the pool, it reads 16,384 keys at most: 1.1 MB. So the budget has no room "
    "for one more in the encoder, and room for all in the decoder. The report does not say why the release stops at "
    "four; each chooser also has weights of its own, and its kernels run one after another.",
    "zh": "编码器里的选择层要读上下文中每两个 token 的一个索引键：一百万 token 时为 35.7 MB。解码器里有候选池，"
    "最多读 16,384 个键：1.1 MB。所以预算在编码器里一个也加不下，在解码器里全部都加得下。"
    "报告没有说明为什么只用四个；每个选择层还有自己的权重，内核也要依次执行。",
}
CHOOSERS_HINTS: tuple[Text, ...] = (
    {
        "en": "Ask what one more chooser reads, before layer 20 and after it.",
        "zh": "先问：多一个选择层要读多少？第 20 层之前和之后各是多少？",
    },
    {
        "en": "After layer 20 the candidate pool bounds it: 2,048 blocks of 8 keys, however long the context.",
        "zh": "第 20 层之后由候选池限制：2,048 块，每块 8 个键，与上下文长度无关。",
    },
    {"en": "owners stay; then every layer that costs 1.1 MB", "zh": "源层保留；再加上所有只花 1.1 MB 的层"},
)
OWNERS_CHOOSE: Text = {
    "en": "The config refused it; the line above names field, value and rule. A frequent one: an owner must also "
    "choose, because the layers behind it need a choice among its entries.",
    "zh": "配置拒绝了它；上一行写明字段、值和规则。常见的一条：源层也必须选择，因为后面的层需要对它的条目作出选择。",
}
ENCODER_CHOOSER: Text = {
    "en": "You added choosers in the encoder. Before layer 20 there is no pool: each of them scores the whole context.",
    "zh": "你在编码器里加了选择层。第 20 层之前没有候选池，每个都要给整个上下文打分。",
}
AS_RELEASED: Text = {
    "en": "That is the release. A part of your budget is unspent.",
    "zh": "这就是发布的方案。预算还有剩余。",
}
