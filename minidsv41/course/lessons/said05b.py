"""What lesson 05b says to right and wrong answers, in both languages."""

from __future__ import annotations

from minidsv41.course.language import Text

RECALL_WHY: Text = {
    "en": "Both sums run over heads first. A head that hardly looks at entries then hardly counts, and that is why the "
    "number can hide a head that lost everything.",
    "zh": "两个求和都先跨注意力头。几乎不看条目的头因此几乎不计入，所以这个数可能掩盖一个丢光了一切的头。",
}
RECALL_HINTS: tuple[Text, ...] = (
    {
        "en": "One selection serves all heads. What do they hold together?",
        "zh": "一次选择服务所有头。它们合起来有多少？",
    },
    {"en": "Chosen columns, summed over heads, over the sum of all.", "zh": "选中的列对所有头求和，除以总和。"},
    {"en": "mass[:, chosen].sum() / mass.sum()", "zh": "mass[:, chosen].sum() / mass.sum()"},
)
MEAN_OF_HEADS: Text = {
    "en": "You average the heads' own shares. Then a head with a thousandth of its softmax on entries counts as much "
    "as one that looks at nothing else. A fair measure, another one.",
    "zh": "你把每个头各自的比例取了平均。这样，只有千分之一权重在条目上的头，和只看条目的头一样重要。"
    "这也是一种量法，但不是这里的。",
}
COUNTED: Text = {
    "en": "You count entries. Recall of attention mass weighs them by how much they are looked at.",
    "zh": "你数的是条目个数。这里要按注意力权重占比加权。",
}
NOT_DIVIDED: Text = {
    "en": "You left out the division: a part of the softmax lies on window rows, which need no choosing.",
    "zh": "你没有做除法：softmax 的一部分落在窗口行上，那部分不需要选择。",
}

SELECT_VERSUS: Text = {
    "en": "yours: {value}; the package's: {right} (wanted: 97 % of its recall for 75 % of its bytes)",
    "zh": "你的：{value}；代码库的：{right}（要求：用 75 % 的字节达到其召回的 97 %）",
}
SELECT_WHY: Text = {
    "en": "On every other step all keys are opened; in between only the keys of what was chosen last, of the entry "
    "behind each, and of the newest few. Whoever reads along an old passage wants the next entry next. What this risks "
    "is a question that falls on a step in between: then the needle is found one step late.",
    "zh": "每隔一步打开全部键；其余步骤只打开上次选中的键、各自的后一条，以及最新的几条。沿着旧段落往下读的查询，"
    "下一步要的就是下一条。风险在于：问题恰好落在中间那一步时，要晚一步才找到。",
}
SELECT_HINTS: tuple[Text, ...] = (
    {
        "en": "Which keys can you leave closed? Ask what the step before already found.",
        "zh": "哪些键可以不打开？想想上一步已经找到了什么。",
    },
    {
        "en": "Open all keys on every other step; in between, those of sight.previous.",
        "zh": "每隔一步打开全部键；中间只打开 sight.previous 的键。",
    },
    {"en": "and the entry after each of them, and the newest eight", "zh": "再加上它们各自的后一条，以及最新的八条"},
)
EVERYTHING: Text = {
    "en": "That is the indexer itself: every key, every step. Most of its bytes are keys.",
    "zh": "这就是索引器本身：每一步打开每个键。它的字节大部分花在键上。",
}
RECENT: Text = {
    "en": "You open no key. It is cheap, and it finds only what always stands in the same place.",
    "zh": "你一个键也不打开。很便宜，但只能找到位置固定的东西。",
}
HALVED: Text = {
    "en": "You open every second key. A needle stands in one entry, and half of the time not in yours.",
    "zh": "你只打开一半的键。一根针只在一条里，有一半机会不在你打开的那些里。",
}
SAME_AGAIN: Text = {
    "en": "You repeat the last choice unchanged. The passage that it points to goes on one entry further.",
    "zh": "你原样重复上一次的选择。可是它所指的段落已经往后走了一条。",
}

FORGET_VERSUS: Text = {
    "en": "your text: {value} (wanted: dark at least 0.90 with every entry, at most 0.10 with 8)",
    "zh": "你的文本：{value}（要求：读全部条目时 dark 不低于 0.90，读 8 条时不高于 0.10）",
}
FORGET_WHY: Text = {
    "en": "Say it often. Each repetition adds an entry that looks like the question, layer 1 likes them all, and they "
    "fill the eight places; no place is left for what followed. With every entry nothing is crowded out.",
    "zh": "多说几遍。每重复一次就多一条与问题相似的条目，第 1 层全都喜欢，八个位置被占满，"
    "答案所在的条目就没有位置了。读全部条目时则不会被挤掉。",
}
FORGET_HINTS: tuple[Text, ...] = (
    {"en": "Eight places. What could fill them all?", "zh": "八个位置。用什么能占满？"},
    {"en": "Something that resembles the question more than the answer does.", "zh": "比答案更像问题的东西。"},
    {
        "en": "The fact itself holds such an entry. Turn the dial's second control.",
        "zh": "这个事实本身就含有这样的条目。转动旋钮的第二个控件。",
    },
)
FAR: Text = {
    "en": "Distance does not hurt: an entry is as easily found at 150 tokens as at 15.",
    "zh": "距离没有影响：隔 150 个 token 和隔 15 个一样好找。",
}
OTHERS: Text = {
    "en": "Other names look less like the question than the right one, and do not crowd it out.",
    "zh": "别的名字不如正确的名字像问题，挤不掉它。",
}
CHANGED: Text = {
    "en": "You told it something else about Juliet. Then not even every entry gives a clear dark.",
    "zh": "你又对 Juliet 说了别的。这样即使读全部条目，也得不到明确的 dark。",
}
