"""What lesson 09 says to right and wrong answers, in both languages."""

from __future__ import annotations

from minidsv41.course.language import Text

KEPT_WHY: Text = {
    "en": "A word x is drafted with chance q(x) and then kept with chance min(1, p(x)/q(x)). The product is "
    "min(p(x), q(x)); the sum over all words is the area that the two histograms share, 1 - sum|p - q| / 2.",
    "zh": "词 x 以概率 q(x) 被起草，再以概率 min(1, p(x)/q(x)) 被保留，乘积是 min(p(x), q(x))；"
    "对所有词求和就是两个直方图重叠的面积，即 1 - Σ|p - q| / 2。",
}
KEPT_HINTS: tuple[Text, ...] = (
    {
        "en": "Take one word: how often is it drafted, and how often is it kept then?",
        "zh": "先看一个词：被起草的概率？之后被保留的概率？",
    },
    {"en": "q · min(1, p/q) can be written without a fraction.", "zh": "q · min(1, p/q) 可以不用分数来写。"},
    {"en": "torch.minimum(target, draft).sum()", "zh": "torch.minimum(target, draft).sum()"},
)
BOTH: Text = {
    "en": "That is the chance that two independent draws agree. The target does not draw a word of its own; it only "
    "judges the draft's. A perfect draft is always kept.",
    "zh": "这是两次独立采样恰好相同的概率。目标模型并不自己采样，只评判草稿的词。完美的草稿总被保留。",
}
TWICE: Text = {
    "en": "Each deviation is counted twice: what the draft has too much of one word it lacks in others. Halve it.",
    "zh": "每处偏差被算了两次：草稿在一个词上多出来的，正是在别的词上缺少的。要除以二。",
}
RATIO: Text = {
    "en": "You average the chance to be kept over words as if all were drafted equally often. Weigh by the draft.",
    "zh": "你对保留概率取了平均，仿佛每个词被起草的机会均等。应按草稿的概率加权。",
}
FAVOURITE: Text = {
    "en": "That is greedy decoding, where only the favourites count. Here words are sampled.",
    "zh": "那是贪心解码，只看最可能的词。这里是采样。",
}

VERIFIED_VERSUS: Text = {
    "en": "(how far what goes out is from the target, share of drafts kept): yours {value}, the package's {right}",
    "zh": "（输出与目标分布的距离，草稿被保留的比例）：你的 {value}，代码库的 {right}",
}
VERIFIED_WHY: Text = {
    "en": "The draft that counts is the one that the word was drawn from, correction included. Kept words give "
    "min(p, q); the residual (p - q)+ has exactly the area that is missing, so what goes out is p.",
    "zh": "起作用的是实际抽出该词的草稿分布，也就是含修正的那个。保留的词给出 min(p, q)，"
    "剩余分布 (p - q)+ 的面积恰好等于缺少的部分，所以输出就是 p。",
}
VERIFIED_HINTS: tuple[Text, ...] = (
    {"en": "Which distribution was the token drawn from?", "zh": "这个 token 是从哪个分布抽出来的？"},
    {
        "en": "Look at the black parts of the figure: what is left there when grey is paid out?",
        "zh": "看图中的黑色部分：付清灰色之后还剩什么？",
    },
    {
        "en": "q = (base + correction).softmax(-1); min(1, p[token] / q[token]); (p - q).clamp(min=0)",
        "zh": "q = (base + correction).softmax(-1)；min(1, p[token] / q[token])；(p - q).clamp(min=0)",
    },
)
UNCORRECTED: Text = {
    "en": "The uncorrected draft: the token was drawn behind the Markov correction, and you verify it as if it had "
    "been drawn before. Words that the correction favours are kept too often.",
    "zh": "未修正的草稿：token 是在马尔可夫修正之后抽出的，你却按修正之前的分布来验证。修正偏爱的词被保留得过多。",
}
WHOLE: Text = {
    "en": "You replace from the whole target. But kept drafts have paid for part of it already: words in the grey area "
    "come out twice.",
    "zh": "你从整个目标分布重新采样。但被保留的草稿已经付过一部分：灰色区域的词被算了两次。",
}
AGAIN: Text = {
    "en": "You draw again from the draft. What it lacks never comes out.",
    "zh": "你又从草稿里抽了一次。草稿缺少的词永远出不来。",
}
UPSIDE: Text = {
    "en": "Your ratio is upside down: it keeps for certain what the draft likes too much.",
    "zh": "你的比值颠倒了：草稿偏爱过头的词反而必定保留。",
}
ABSOLUTE: Text = {
    "en": "Where the draft has too much there is nothing left to give. Cut the difference at zero.",
    "zh": "草稿已经过多的词没有剩余可给。差值应在零处截断。",
}
GREEDY: Text = {
    "en": "You keep only the target's favourite. That is right at temperature 0; here it is bought with a bias.",
    "zh": "你只保留目标最可能的词。温度为 0 时这样才对；在这里会带来偏差。",
}
CHANCE: Text = {
    "en": "You keep a draft with the target's chance of it. Even a perfect draft would be rejected most of the time.",
    "zh": "你以目标给出的概率保留草稿。即使完美的草稿，多数时候也会被拒绝。",
}
NONE: Text = {
    "en": "Honest, and useless: every draft is rejected, and the target speaks alone.",
    "zh": "无损，但没有用：所有草稿都被拒绝，等于目标模型独自生成。",
}
ALL: Text = {
    "en": "You keep every draft. Fast, and it is the draft that speaks.",
    "zh": "你保留了所有草稿。很快，但说话的是草稿模型。",
}

SHAPE_VERSUS: Text = {
    "en": "your drafts gain {value} tokens a step, the package's {right} (be 1 % above)",
    "zh": "你的草稿每步得到 {value} 个 token，代码库的是 {right}（请高出 1%）",
}
SHAPE_WHY: Text = {
    "en": "Verification is honest for every draft, so its distribution is yours to choose. The toy was trained for "
    "minutes: its correction points the right way and is too small. Two or three times as loud it helps more. With the "
    "release you would have to measure again.",
    "zh": "无论草稿是什么分布，验证都无损，所以草稿分布可以随意选择。toy 只训练了几分钟：修正的方向对，幅度太小，"
    "放大两三倍更有用。换成发布的模型要重新测量。",
}
SHAPE_HINTS: tuple[Text, ...] = (
    {"en": "Nothing that you do here can change the text. Try things.", "zh": "这里怎么做都不会改变输出文本，大胆试。"},
    {
        "en": "The correction was trained for minutes. Is it as large as it should be?",
        "zh": "修正项只训练了几分钟，幅度够吗？",
    },
    {"en": "base + s * correction, with s larger than 1", "zh": "base + s * correction，取 s 大于 1"},
)
OWN: Text = {"en": "That is the package's own draft.", "zh": "这就是代码库自己的草稿。"}
ALONE: Text = {
    "en": "Without the correction drafts know nothing of each other. They get worse, and no faster.",
    "zh": "没有修正，草稿之间互不知情，质量更差，也不会更快。",
}
SHARPER: Text = {
    "en": "You made the draft surer than the target is. The overlap is largest where the draft is as unsure.",
    "zh": "你让草稿比目标更自信。草稿与目标同样不确定时，重叠才最大。",
}
FLATTER: Text = {
    "en": "You made the draft less sure than the target is, and it spends its chance on words that are never kept.",
    "zh": "你让草稿比目标更犹豫，概率花在了不会被保留的词上。",
}
