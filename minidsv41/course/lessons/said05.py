"""What lesson 05 says to right and wrong answers, in both languages."""

from __future__ import annotations

from minidsv41.course.language import Text

NEEDED_WHY: Text = {
    "en": "In the worst case each of the k entries lies in a block of its own, and none of them is the newest block, "
    "which takes a place whatever it holds: k + 1. There are never more places than blocks.",
    "zh": "最坏情况下 k 条各占一块，而且都不在最新的块里；最新的块无论如何都占一个位置，所以是 k + 1。"
    "位置数不会超过块数。",
}
NEEDED_HINTS: tuple[Text, ...] = (
    {"en": "Spread the k best entries as badly as you can.", "zh": "把 k 个最好的条目分散到最不利的位置。"},
    {"en": "One block is in the pool for another reason. Which?", "zh": "有一个块因别的原因总在池中。哪一个？"},
    {"en": "min(k + 1, all blocks)", "zh": "min(k + 1, 全部块数)"},
)
NO_PIN: Text = {
    "en": "You forgot the newest block. It is pinned and can push out the weakest of your k.",
    "zh": "你漏了最新的块。它固定入池，可能把 k 个中最弱的挤出去。",
}
NO_END: Text = {
    "en": "Right while there are that many blocks. With fewer the pool simply holds all of them.",
    "zh": "块数足够时是对的。块数不足时，候选池就是全部的块。",
}
PACKED: Text = {
    "en": "You pack the k entries side by side. They lie where the scores put them, at worst one in each block.",
    "zh": "你把 k 个条目紧挨着放。它们的位置由分数决定，最坏是每块一个。",
}
THE_RULE: Text = {
    "en": "That is the config's rule: it makes sure that the pool holds k entries. They need not be the right k.",
    "zh": "那是配置的规则：保证池里至少有 k 个条目。但不保证就是那 k 个。",
}

OUTSIDE_VERSUS: Text = {
    "en": "with your keys: {value}; with the package's: {right}",
    "zh": "用你的键：{value}；用代码库的键：{right}",
}
OUTSIDE_WHY: Text = {
    "en": "Take away from the later query what it shares with the first one: a key of the rest is liked by the later "
    "layer and scores 0 in the first. All other keys do the opposite, so the first layer has blocks enough to fill "
    "its pool with. The entry's own block must hold nothing that the first layer likes, and must not be the newest. "
    "Only if both queries point the same way are there no such keys.",
    "zh": "从后面层的查询中去掉与前一层查询相同的部分：用剩下的部分作键，后面的层喜欢它，而前一层给它 0 分。"
    "其他键正好相反，于是前一层有足够的块填满候选池。该条目所在的块里不能有前一层喜欢的条目，也不能是最新的块。"
    "只有两个查询方向相同时才不存在这样的键。",
}
OUTSIDE_HINTS: tuple[Text, ...] = (
    {
        "en": "One entry for the later layer alone, and enough blocks for the first layer alone.",
        "zh": "一个条目只让后面的层喜欢，再有足够多的块只让前一层喜欢。",
    },
    {
        "en": "Remove from `later` its part along `own`: what is left scores 0 in the first layer.",
        "zh": "从 `later` 中去掉沿 `own` 的分量：剩下的部分在前一层得 0 分。",
    },
    {
        "en": "keys = own − (own·later / later·later) later everywhere, 0 in block 0, and in entry 0 "
        "later − (later·own / own·own) own",
        "zh": "所有键 = own − (own·later / later·later) later；第 0 块为 0；"
        "第 0 条为 later − (later·own / own·own) own",
    },
)
NEWEST: Text = {
    "en": "Your entry lies in the newest block, and that block is always in the pool.",
    "zh": "你的条目在最新的块里，而这个块总在候选池中。",
}
OTHERS_NOTHING: Text = {
    "en": "The first layer likes no block, so all tie at 0, and the lowest index wins: yours is in. Give it blocks "
    "that it prefers.",
    "zh": "前一层一个块也不喜欢，全部并列为 0，索引小者优先：你的块入选了。给它一些更喜欢的块。",
}
NEIGHBOURS: Text = {
    "en": "A neighbour in your entry's block is liked by the first layer and draws the whole block into the pool.",
    "zh": "你的条目所在块中有前一层喜欢的邻居，它把整个块带进了候选池。",
}
AWAY: Text = {
    "en": "A key that points away from the first query scores 0 there, and may well score 0 in the later layer too: "
    "ReLU cuts both.",
    "zh": "与前一层查询相反的键在那里得 0 分，在后面的层也很可能得 0 分：两处都被 ReLU 截断。",
}

RANK_VERSUS: Text = {
    "en": "the later layer keeps {value} of its attention mass with your rule, {right} with the block maximum",
    "zh": "用你的规则，后面的层保留 {value} 的注意力权重；用块最大值保留 {right}",
}
RANK_WHY: Text = {
    "en": "The mean asks whether a whole neighbourhood is liked, and what one layer likes on the whole, another may "
    "too. The price is the theorem: the builder's own best, alone among weak neighbours, can now be left out. And "
    "this is a network whose decoder looks at many entries a little; one that looks at few would judge otherwise.",
    "zh": "平均值问的是整个邻域是否受欢迎；一层整体上喜欢的，另一层往往也喜欢。代价是那条定理："
    "建池层自己的最佳条目若夹在弱邻居中，就可能落选。而且这个网络的解码器对许多条目都只看一点；"
    "只看少数条目的网络会得出不同的结论。",
}
RANK_HINTS: tuple[Text, ...] = (
    {
        "en": "The maximum serves the layer that made the scores. You serve another one.",
        "zh": "最大值服务于产生这些分数的层。你要服务的是另一层。",
    },
    {"en": "Let more than one entry of a block speak.", "zh": "让块中不止一个条目说话。"},
    {
        "en": "the mean over entries that can be seen; hidden ones are -inf",
        "zh": "对可见条目取平均；不可见的是 -inf",
    },
)
MAXIMUM: Text = {
    "en": "That is the released rule. It has to be beaten by 5 %.",
    "zh": "这就是发布的规则。要超过它 5 %。",
}
MINIMUM: Text = {
    "en": "The minimum hears one entry of a block too, only another one. It does better than the maximum here, but not "
    "by 5 %.",
    "zh": "最小值也只听块中的一个条目，只是换了一个。在这里它比最大值好，但没有好出 5 %。",
}
RECENT: Text = {
    "en": "You keep the newest blocks and ask no scores. That is about as good as the maximum here, but not better "
    "by 5 %.",
    "zh": "你保留最新的块，没有使用分数。在这里与最大值差不多，但没有好出 5 %。",
}
