"""What lesson 01b says to right and wrong answers, in both languages."""

from __future__ import annotations

from minidsv41.course.language import Text

LEFT_WHY: Text = {
    "en": "The first store writes β of the value. Each further store lets the memory fade to α, and then corrects what "
    "the key predicts by β of the error, which leaves 1 − β of the old content.",
    "zh": "第一次写入留下 β 份。之后每次写入先让记忆衰减为 α 倍，再把这个键的预测误差纠正 β 份，旧内容剩下 1 − β。",
}
LEFT_HINTS: tuple[Text, ...] = (
    {"en": "Follow one number: what this key reads.", "zh": "只跟踪一个数：这个键读出的值。"},
    {
        "en": "One store makes it β. What does a store of another value leave of it?",
        "zh": "第一次写入后它是 β。再写入另一个值，会剩下多少？",
    },
    {"en": "beta * (alpha * (1 - beta)) ** stores", "zh": "beta * (alpha * (1 - beta)) ** stores"},
)
NO_FIRST: Text = {
    "en": "The value itself was stored with weight β as well.",
    "zh": "这个值自己写入时，也只写了 β 份。",
}
DECAY_ALONE: Text = {
    "en": "You let it fade only. A store under the same key also replaces: the delta rule subtracts what it predicted.",
    "zh": "你只算了衰减。同一个键再次写入还会替换旧值：delta 规则要减去预测出来的那部分。",
}
NO_DECAY: Text = {
    "en": "You replace only. Each step also lets the memory fade.",
    "zh": "你只算了替换，每一步还有衰减。",
}
LEFT_MISPLACED: Text = {
    "en": "That is the printed form: it predicts before the memory fades and leaves α − β. What has faded predicts "
    "only α of its answer, so α(1 − β) is left.",
    "zh": "这是印错的那种写法：先预测再衰减，剩下 α − β。衰减之后的记忆只预测出原来的 α 倍，所以剩下 α(1 − β)。",
}
FIRST_DECAYED: Text = {
    "en": "You let the value fade in the step that stores it. The decay comes first and meets only what was there.",
    "zh": "你让新值在写入的那一步也衰减了。衰减在前，只作用于原来就有的内容。",
}

STEP_WHY: Text = {
    "en": "Fade, predict from what is left, store the error, then read. A channel's decay belongs to the key's axis: "
    "it says how long what was stored along that channel of the key is kept.",
    "zh": "先衰减，再用剩下的内容预测，把误差写入，最后读取。"
    "逐通道的衰减在键的那一维上：沿键的这个通道写入的内容保留多久。",
}
STEP_HINTS: tuple[Text, ...] = (
    {
        "en": "The two-dimensional step of the lesson, for each head. What is the decay's shape beside S [H, K, V]?",
        "zh": "就是正文里的那一步，对每个头做一遍。衰减的形状怎样对上 S [H, K, V]？",
    },
    {
        "en": "g is a logarithm: g.exp(), as [H, 1, 1] or as [H, K, 1]. The first line changes S.",
        "zh": "g 是对数：取 g.exp()，形状为 [H, 1, 1] 或 [H, K, 1]。第一行就要更新 S。",
    },
    {
        "en": "S = S * decay; error = v - einsum('hkv,hk->hv', S, k); "
        "S = S + beta · k ⊗ error; o = einsum('hkv,hk->hv', S, q)",
        "zh": "S = S * decay; error = v - einsum('hkv,hk->hv', S, k); "
        "S = S + beta · k ⊗ error; o = einsum('hkv,hk->hv', S, q)",
    },
)
MISPLACED: Text = {
    "en": "Misplaced decay: you predict from the state before it fades and subtract that from the state after. More is "
    "taken away than is there, and a key with β = 1 does not read back what was just stored.",
    "zh": "衰减放错了位置：你用衰减前的状态做预测，却从衰减后的状态里减。"
    "减掉的比实有的多，β = 1 时这个键读不回刚写入的值。",
}
AFTERWARDS: Text = {
    "en": "You let the state fade after storing, so that the new value fades as well.",
    "zh": "你在写入之后才衰减，刚写入的值也跟着变小了。",
}
NO_PREDICTION: Text = {
    "en": "You add the value itself. That is gated linear attention; the delta rule stores what was predicted wrongly.",
    "zh": "你直接加上了值，那是带门控的线性注意力。delta 规则写入的是预测误差。",
}
READ_BEFORE: Text = {
    "en": "You read before you store. The query of a token also sees its own value.",
    "zh": "你在写入之前就读了。一个 token 的 query 也应看到它自己的值。",
}
LOGARITHM: Text = {
    "en": "You multiply by g. It is the logarithm of the decay.",
    "zh": "你直接乘了 g，它是衰减的对数。",
}
VALUE_CHANNELS: Text = {
    "en": "You let channels of the value fade. KDA's decay belongs to channels of the key: rows of S, not columns.",
    "zh": "你让值的通道衰减了。KDA 的衰减属于键的通道：作用于 S 的行，而不是列。",
}

PLACES_VERSUS: Text = {
    "en": "with your places {value} blocks are run; with the best of the package's {right}",
    "zh": "按你的位置要运行 {value} 块；代码库里最好的策略要 {right} 块",
}
PLACES_WHY: Text = {
    "en": "The end serves the next turn. Where an earlier prompt left this one, a third may leave too; but only when "
    "that place lies behind the hit is there anything to save. Otherwise a place in the middle is a guess for free.",
    "zh": "末尾服务于下一轮。先前的请求在哪里与本请求分叉，第三个也可能在那里分叉；"
    "但只有分叉点在命中之后，才有状态可存。"
    "否则就在中间存一个，等于白得的一次机会。",
}
PLACES_HINTS: tuple[Text, ...] = (
    {
        "en": "Two kinds of hits: the next turn of this conversation, and the first of another with the same "
        "instruction.",
        "zh": "命中有两种：本对话的下一轮，以及系统提示相同的另一个对话的第一轮。",
    },
    {
        "en": "The end serves the first kind. For the second compare with earlier prompts. When is that place "
        "of no use?",
        "zh": "末尾服务第一种。第二种要与先前的请求比较。什么时候这个位置没有用？",
    },
    {
        "en": "[fork if fork > hit else the middle of what is run, len(prompt)]",
        "zh": "[分叉点在命中之后就取分叉点，否则取本次运行部分的中点, len(prompt)]",
    },
)
NOTHING: Text = {
    "en": "Nothing is saved, so every prompt runs from its first block, although all of its rows are in the cache.",
    "zh": "什么都没存，所以每个请求都要从第一块跑起，尽管它的行全在缓存里。",
}
THE_END: Text = {
    "en": "Ends serve the next turn. A new conversation with a known instruction leaves before any end.",
    "zh": "末尾只服务于下一轮。系统提示相同的新对话，在任何末尾之前就分叉了。",
}
HALVES: Text = {
    "en": "Halving creeps up to the fork without reaching it, though `seen` would tell you where it is.",
    "zh": "取半只是逼近分叉点，却到不了；其实 `seen` 已经告诉你它在哪里。",
}
BRANCHES: Text = {
    "en": "Forks are right, and within a conversation the fork is the hit itself: that second place is wasted.",
    "zh": "取分叉点是对的，但在同一个对话里，分叉点就是命中处：第二个位置白白浪费了。",
}
