"""What lesson 09b says about answers: why, hints, and the thoughts behind the wrong ones."""

from __future__ import annotations

WHY_TOKENS = {
    "en": "A draft counts only if all before it were kept, so its share is a running product. And a step always gives "
    "one token more than it keeps: the word drawn at the first rejection, or behind the last draft.",
    "zh": "只有前面的草稿全部被接受，后一个才算数，所以每个草稿的贡献是连乘积。"
    "此外每一步总会多得一个 token：在首次拒绝处重抽的词，或最后一个草稿之后的词。",
}
HINTS_TOKENS = (
    {
        "en": "What does a step give if the very first draft is rejected?",
        "zh": "如果第一个草稿就被拒绝，这一步得到什么？",
    },
    {"en": "With what chance does draft 2 come out at all?", "zh": "第 2 个草稿最终输出的概率是多少？"},
    {"en": "1 + c₁ + c₁c₂ + …, `verified` terms behind the 1", "zh": "1 + c₁ + c₁c₂ + …，1 之后共 verified 项"},
)
NO_BONUS = {
    "en": "You count accepted drafts. Every step gives one token more, also where all drafts are rejected.",
    "zh": "你只数了被接受的草稿。每一步都会多得一个 token，即使草稿全被拒绝。",
}
NO_PRODUCT = {
    "en": "You add the chances as if each draft stood alone. One rejection ends the step, whatever lies behind it.",
    "zh": "你把各个概率直接相加，好像草稿彼此独立。一旦拒绝，这一步就结束，后面的都不算。",
}
ALL_OR_NOTHING = {
    "en": "You keep all drafts or none. A rejection keeps those before it.",
    "zh": "你假设要么全收、要么全拒。拒绝之前的草稿是保留的。",
}
ALL_KEPT = {
    "en": "You count every draft as kept. That is the most that a step can give, not what it gives on average.",
    "zh": "你把每个草稿都算作被接受。那是一步的上限，不是平均值。",
}

VERSUS = {"en": "yours: {value}; the package's: {right}", "zh": "你的：{value}；代码库的：{right}"}
WHY_PLAN = {
    "en": "Drafts of all requests stand in one queue, by their chance to be reached and kept, because each takes a row "
    "of the same batch. The queue ends at the first draft that gains nothing. When it is decided whether a draft is "
    "verified, nothing has been looked at that depends on what the draft is: only the chances of those before it and "
    "its own. So no word is thrown away for being that word.",
    "zh": "所有请求的草稿按“被到达且被接受”的概率排成一队，因为每个草稿都占同一批次的一行。"
    "队列在第一个没有收益的草稿处结束。决定是否验证某个草稿时，没有用到任何取决于该草稿内容的信息，"
    "只用到它之前各草稿和它自己的概率。所以不会因为某个词是这个词而丢弃它。",
}
HINTS_PLAN = (
    {
        "en": "All requests share the rows of one step: which draft of the whole batch is worth its row most?",
        "zh": "所有请求共用一步的行数：整个批次里哪个草稿最值得占一行？",
    },
    {
        "en": "Sort all drafts by the product of chances up to them; add one at a time to rows and expected tokens.",
        "zh": "把所有草稿按到它为止的概率连乘积排序；逐个加入行数和期望 token 数。",
    },
    {
        "en": "Stop at the first that does not raise tokens × steps_per_second(rows), and do not look further.",
        "zh": "遇到第一个不能提高 token 数 × steps_per_second(行数) 的草稿就停，不再往后看。",
    },
)
BEST_OF_ALL = {
    "en": "You look at all lengths and take the best. The chance of draft 2 depends on which word draft 1 is, so draft "
    "1 is verified or dropped because of what it is, and the text changes.",
    "zh": "你比较所有长度再取最好的。第 2 个草稿的概率取决于第 1 个草稿是哪个词，"
    "于是第 1 个草稿因为自己是什么词而被验证或丢弃，输出分布就变了。",
}
ALWAYS_ALL = {
    "en": "You verify everything: honest, but in a full batch most rows are spent on drafts that are hardly ever "
    "reached.",
    "zh": "你验证全部草稿：诚实，但批次满时大部分行花在几乎到不了的草稿上。",
}
NEVER = {
    "en": "You verify nothing: honest, but every draft was made in vain.",
    "zh": "你什么都不验证：诚实，但草稿全都白做了。",
}
ALONE = {
    "en": "You plan each request as if it were alone. Its row is cheap for the first request and dear for the eighth.",
    "zh": "你把每个请求当作独占机器来计划。同样一行，对第一个请求便宜，对第八个就贵了。",
}

VERSUS_VALLEY = {
    "en": "yours (night, padded): {value}; the package's: {right}; beat the second by 5 % and change no text",
    "zh": "你的（夜间，补齐）：{value}；代码库的：{right}；请在第二项上高出 5%，且不改变输出",
}
WHY_VALLEY = {
    "en": "How many drafts are verified in all may be chosen with anything that was known before they were made: here "
    "the average of yesterday. Which ones they are may follow their own chances, likeliest first: whether a draft is "
    "among them depends on those before it and on other requests, not on what it is.",
    "zh": "总共验证多少个草稿，可以用草稿产生之前已知的任何信息来决定：这里用的是昨天的平均值。"
    "具体是哪些，可以按各自的概率从高到低选：某个草稿是否入选，取决于它之前的草稿和其他请求，而不取决于它是什么词。",
}
HINTS_VALLEY = (
    {
        "en": "What could you know about the drafts before they are made?",
        "zh": "在草稿产生之前，你能知道它们的什么？",
    },
    {
        "en": "A search over all numbers of drafts harms nobody if it does not look at these drafts.",
        "zh": "只要不看这些草稿本身，对草稿总数做全局搜索就不会伤害任何人。",
    },
    {
        "en": "Choose the number K with `usual` for every request, then verify the K likeliest.",
        "zh": "对每个请求都用 usual 选出总数 K，再验证概率最高的 K 个。",
    },
)
STUCK = {
    "en": "Early stop fills the twelve rows and stays there: the thirteenth costs a third of a step and gains less "
    "than a token. The next twenty would pay for it together.",
    "zh": "提前停止填满十二行就不动了：第十三行要多花三分之一步，收益不到一个 token。而后面的几行合起来就划算了。",
}
FULL_PAGES = {
    "en": "You verify everything. The last rows open another dozen that is not worth its price.",
    "zh": "你验证全部草稿。最后几行又多占一组十二行，收益抵不上成本。",
}
