"""What the exercises of lesson 08b say."""

from __future__ import annotations

OWNER_WHY = {
    "en": "Members take ceil(rows / members) consecutive rows each, so quotient and remainder by that number are the "
    "owner and its own number of the row. Only the last member has fewer. Rounding down instead would leave rows over.",
    "zh": "每个成员取连续的 ceil(行数 / 成员数) 行，因此除以这个数所得的商和余数就是所属成员和它自己的行号。"
    "只有最后一个成员的行更少；若向下取整，就会剩下没人管的行。",
}
OWNER_HINTS = (
    {
        "en": "All members but the last have equally many consecutive rows.",
        "zh": "除最后一个外，各成员的连续行数相同。",
    },
    {"en": "How many are that, if no row may be left over?", "zh": "若一行也不能剩下，那是多少行？"},
    {"en": "share = -(-rows // members); divmod(row, share)", "zh": "share = -(-rows // members)；divmod(row, share)"},
)
FLOOR = {
    "en": "Rounded down: the last rows then belong to a member that does not exist.",
    "zh": "向下取整了：最后几行会属于一个不存在的成员。",
}
ROBIN = {
    "en": "That deals rows out in turn. It works as well, but it is another layout: here rows are consecutive.",
    "zh": "这是轮流发牌。也能用，但布局不同：这里的行是连续的。",
}
SWAPPED = {"en": "Right numbers, wrong order: first the member.", "zh": "数字对，顺序反了：先写成员。"}
GLOBAL = {
    "en": "The member is right. It stores its rows from 0 on and does not know the number of the whole table.",
    "zh": "成员对了。但它的行从 0 开始存，不用整张表的行号。",
}

LATENCY_WHY = {
    "en": "The store does one thing after the other, so the answer for table k (from 0) is complete after k + 1 "
    "times latency + transfer. It is needed when all blocks before its layer are done. The tightest table decides.",
    "zh": "存储一次只做一件事，所以第 k 张表（从 0 数起）在 (k + 1) ×（延迟 + 传输）之后才到齐；"
    "它必须在所属层之前的所有块跑完时到达。最紧的那张表说了算。",
}
LATENCY_HINTS = (
    {"en": "When is each table's answer complete, and when is it needed?", "zh": "每张表何时到齐？何时要用？"},
    {
        "en": "The second answer begins when the first is over: both take latency + transfer.",
        "zh": "第二张表要等第一张取完才开始：两者各需 延迟 + 传输。",
    },
    {
        "en": "min over k of sum(blocks[:layers[k]]) / (k + 1) - transfer",
        "zh": "对 k 取 sum(blocks[:layers[k]]) / (k + 1) - transfer 的最小值",
    },
)
PARALLEL = {
    "en": "That looks at the first table, or lets all come at once. The store has one lane: the second answer stands "
    "behind the first, and may be the tighter one.",
    "zh": "这只看了第一张表，或假设各表同时取。存储只有一条通道：第二个结果排在第一个后面，可能反而更紧。",
}
OWN_BLOCK = {
    "en": "Engram adds its value before its layer's block runs, so that block hides nothing.",
    "zh": "Engram 在本层的块运行之前就要加上去，所以本层的块掩盖不了任何时间。",
}
NO_TRANSFER = {
    "en": "The rows need time on the link too; only what is left of the block's time is for latency.",
    "zh": "行在链路上也要时间；块的时间减去它，剩下的才留给延迟。",
}
ONCE = {
    "en": "That pays the latency once. Here each request pays it; a store that overlaps requests would be faster.",
    "zh": "这只算了一次延迟。这里每次请求都要付；能重叠请求的存储会更快。",
}

RESIDENT_WHY = {
    "en": "Phrases come back as often as they came: the rows that were asked for most often spare twice as many "
    "look-ups as the rows that came first. Most rows are asked for once and never again, so that even a store with "
    "room for everything that was ever seen would miss four look-ups of five.",
    "zh": "短语过去出现多少，将来大致也出现多少：保留被查次数最多的行，省下的查找是保留最先出现的行的两倍多。"
    "大多数行只被查一次就再不出现，所以即使能存下所有见过的行，五次查找仍有四次落空。",
}
RESIDENT_HINTS = (
    {"en": "What tells a row that will be asked for again?", "zh": "怎样看出一行还会被查到？"},
    {"en": "Count how often each row was asked for.", "zh": "数一数每一行被查了多少次。"},
    {
        "en": "rows, counts = seen.unique(return_counts=True); sort rows by counts, largest first",
        "zh": "rows, counts = seen.unique(return_counts=True)；按 counts 从大到小排序",
    },
)
RESIDENT_VERSUS = {
    "en": "your rows spare {value} % of the look-ups, the first that came {right} %; at least 10 % are wanted",
    "zh": "你选的行省下 {value} % 的查找，最先出现的行省下 {right} %；要求至少 10 %",
}
LATEST = {
    "en": "Those are the latest rows. In a play the last words come back less than the frequent ones.",
    "zh": "这是最近的行。在剧本里，最近的词不如常见的词更容易再出现。",
}
FIRST = {
    "en": "Those are the first rows that came, as in a cache that never gives anything up.",
    "zh": "这是最先出现的行，等于一个从不淘汰的缓存。",
}
BIGRAMS = {
    "en": "Only rows of two-token phrases. They return most, but the rare ones among them less than a name of four "
    "tokens that everybody uses.",
    "zh": "只留了双 token 短语的行。它们最常重现，但其中罕见的还不如人人都用的四 token 名字。",
}
