"""What lesson 08 says about n-grams, collisions and the switch, in both languages."""

from __future__ import annotations

from minidsv41.course.language import Text

SLOTS_WHY: Text = {
    "en": "An n-gram never jumps over a gap. Once a place is missing, because the text begins there or an image stands "
    "there, that place and everything older become the pad id.",
    "zh": "n-gram 不会跨过空缺。一旦某个位置缺失（文本开头之前，或是图像），该位置和更早的位置全部换成 pad id。",
}
SLOTS_HINTS: tuple[Text, ...] = (
    {"en": "Walk back from t, one place at a time.", "zh": "从 t 往回走，一次一个位置。"},
    {
        "en": "A place is missing if its index is below 0 or its id is -1. What about places older than that?",
        "zh": "下标小于 0 或 id 为 -1 的位置算缺失。比它更早的位置呢？",
    },
    {
        "en": "keep a flag: alive = alive and t - s >= 0 and ids[t - s] != -1; then ids[t - s] if alive else pad",
        "zh": "用一个标记：alive = alive and t - s >= 0 and ids[t - s] != -1；取 ids[t - s] if alive else pad",
    },
)
WRAPPED: Text = {
    "en": "ids[-1] in Python is the last id of the text: your first tokens see its end.",
    "zh": "Python 的 ids[-1] 是文本最后一个 id：开头的 token 看到了结尾。",
}
ONLY_ONE: Text = {
    "en": "You replace the missing place alone and go on behind it. Everything older is pad as well.",
    "zh": "你只替换了缺失的位置，又接着往更早处取。更早的位置也都应换成 pad。",
}
SKIPPED: Text = {
    "en": "You step over the missing place and take older ids instead. Words on two sides of an image are no phrase.",
    "zh": "你跳过缺失位置，用更早的 id 补上。图像两侧的词不构成词组。",
}
OLDEST: Text = {
    "en": "You list the oldest first. The first multiplier belongs to the newest id.",
    "zh": "你把最早的放在最前。第一个乘数对应最新的 id。",
}

MEET_VERSUS: Text = {
    "en": "your pair meets in {value}, asked was {right}",
    "zh": "你的一对在 {value} 相遇，要求是 {right}",
}
MEET_WHY: Text = {
    "en": "About √p n-grams are enough: with 16 million rows some five thousand tries. What meets in one head differs "
    "by a multiple of its prime, and that is no multiple of the other primes, unless the mixes are equal.",
    "zh": "大约 √p 个 n-gram 就够：1600 万行时约五千次尝试。在一个头里相遇，说明两个混合值相差该素数的倍数；"
    "除非混合值相等，它不会恰好也是其他素数的倍数。",
}
MEET_HINTS: tuple[Text, ...] = (
    {
        "en": "Do not search for a partner of one n-gram; remember all that you have tried.",
        "zh": "不要为某一个 n-gram 找伙伴；把试过的都记住。",
    },
    {
        "en": "A dictionary from mix % primes[head] to the n-gram that had it. The mix is an XOR of products, newest "
        "id first.",
        "zh": "用字典记录 mix % primes[head] 对应的 n-gram。mix 是各乘积的异或，最新的 id 在前。",
    },
    {
        "en": "for x, y over ids: gram = (x, y, 0, …); a hit counts if no other prime has equal remainders",
        "zh": "遍历 x、y：gram = (x, y, 0, …)；若其他素数的余数都不等，就找到了",
    },
)
EQUAL: Text = {
    "en": "Your two n-grams are one and the same. Two are asked for.",
    "zh": "你给出的是同一个 n-gram，要求是两个不同的。",
}
ALL_HEADS: Text = {
    "en": "Your pair meets everywhere: its mixes are equal, or you compare an n-gram with itself.",
    "zh": "你的一对在所有头里都相遇：混合值相等，或者是同一个 n-gram。",
}
NOWHERE: Text = {
    "en": "These two meet nowhere. Neighbours in the vocabulary are strangers in the table.",
    "zh": "这两个在哪里都不相遇。词表里相邻，在表里毫不相干。",
}
SUMMED: Text = {
    "en": "They would meet if the products were added. They are mixed by XOR.",
    "zh": "如果把乘积相加，它们会相遇。实际用的是异或。",
}
REVERSED: Text = {
    "en": "They would meet if the oldest id came first. The first multiplier belongs to the newest.",
    "zh": "如果最早的 id 在前，它们会相遇。第一个乘数对应最新的 id。",
}
NEXT_HEAD: Text = {
    "en": "They meet in the next head. Heads are counted from 0.",
    "zh": "它们在下一个头相遇。头从 0 开始数。",
}

SWITCH_VERSUS: Text = {
    "en": "with your switch {value} nats a token, without it {right} (be 0.015 below it)",
    "zh": "用你的开关每 token {value} nats，不用是 {right}（请比它低 0.015）",
}
SWITCH_WHY: Text = {
    "en": "A hashed table cannot answer 'not found': an n-gram that nobody has ever seen reads the row of strangers, "
    "and the gate, which sees that row and the state, cannot quite tell. One bit a token says it.",
    "zh": "哈希表无法回答“没有”：从未出现过的 n-gram 会读到别人的行，而门控只看到这一行和当前状态，难以完全分辨。"
    "每个 token 一个比特就能说清。",
}
SWITCH_HINTS: tuple[Text, ...] = (
    {
        "en": "seen[:, 0] says whether the last two ids stood together in the training text.",
        "zh": "seen[:, 0] 表示最后两个 id 是否在训练文本中相邻出现过。",
    },
    {
        "en": "If they did not, the row holds what others put there. Shut the gate.",
        "zh": "如果没有出现过，这一行是别人写的。关上门。",
    },
    {
        "en": "0 where seen[:, 0] is false; then try a little less than 1 where seen[:, 1] is false",
        "zh": "seen[:, 0] 为假时取 0；再试试 seen[:, 1] 为假时取略小于 1 的值",
    },
)
INVERTED: Text = {
    "en": "You shut the table for the phrases that it knows.",
    "zh": "你把表认识的词组关掉了。",
}
TOO_STRICT: Text = {
    "en": "You ask for three known ids. Most of what the toy's table gives comes from two.",
    "zh": "你要求三个 id 的词组都出现过。toy 的表大部分收益来自两个 id。",
}
OFF: Text = {"en": "That is the knock-out.", "zh": "这就是把表整个拿掉。"}
DOUBLED: Text = {
    "en": "You open the gates twice as far, for strangers' rows as well.",
    "zh": "你把门控加倍，别人的行也一起放大了。",
}
