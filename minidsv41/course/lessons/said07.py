"""What lesson 07 says to right and wrong answers, in both languages."""

from __future__ import annotations

from minidsv41.course.language import Text

ROUND_WHY: Text = {
    "en": "Rows are divided by their own sums, then the columns of the result by theirs. Whatever comes last is exact; "
    "the division by column sums has bent the rows again. The package's first round is the same, with a softmax in "
    "place of exp and the first division.",
    "zh": "先让每行除以自己的行和，再让所得矩阵的每列除以自己的列和。最后做的那一侧精确；按列除又把行和带偏了。"
    "代码库的第一轮与此相同，只是用 softmax 代替 exp 和第一次除法。",
}
ROUND_HINTS: tuple[Text, ...] = (
    {"en": "Two divisions, one after the other.", "zh": "两次除法，一先一后。"},
    {
        "en": "What source i hands on is the sum of row i: c.sum(1, keepdim=True).",
        "zh": "来源 i 送出的总量是第 i 行之和：c.sum(1, keepdim=True)。",
    },
    {
        "en": "Rows first, c / c.sum(1, keepdim=True); then columns of the result, / its sum(0, keepdim=True).",
        "zh": "先行：c / c.sum(1, keepdim=True)；再对结果按列除以它的 sum(0, keepdim=True)。",
    },
)
COLUMNS_FIRST: Text = {
    "en": "You divided columns first and rows last. Then rows are exact: another matrix after any number of rounds.",
    "zh": "你先除列、后除行，于是精确的是行和：无论多少轮，得到的都是另一个矩阵。",
}
AT_ONCE: Text = {
    "en": "You took both sums from the same matrix. The second division needs the sums of what the first one left.",
    "zh": "你的两个和都取自同一个矩阵。第二次除法要用第一次除完之后的和。",
}
ROWS_ONLY: Text = {
    "en": "That is half a round: rows sum to one, columns do not yet.",
    "zh": "这只是半轮：行和为 1，列和还不是。",
}
WHOLE: Text = {
    "en": "You divided by one number, the sum of all elements. Each row and each column needs its own.",
    "zh": "你只除了一个数，即所有元素之和。每行、每列都要除以各自的和。",
}

PASS_WHY: Text = {
    "en": "All that a tile of the mix needs is the same tile of the updated streams and `pre`, which is there before "
    "the loop begins. So one visit updates the tile, writes it, adds it to the sums, mixes it and writes the mix. The "
    "sums are complete after the last tile, in time for the next sublayer, and for the norm's factor.",
    "zh": "混合结果的一个分块只需要更新后残差流的同一个分块和 `pre`，而 `pre` 在循环开始前就有了。"
    "所以访问一次就能完成：更新、写回、累加、混合、写出。最后一个分块处理完时各个和也齐了，"
    "正好供下一个子层和归一化因子使用。",
}
PASS_HINTS: tuple[Text, ...] = (
    {"en": "One loop over the tiles, one read of X and of F in it.", "zh": "对分块只循环一次，每次各读一次 X 和 F。"},
    {
        "en": "What update returns is still on the chip: write it, sums.add it, and collapse it there.",
        "zh": "update 的结果还在芯片上：写回、sums.add、collapse 都当场完成。",
    },
    {
        "en": 'Last line of the loop: memory.write("x", t, sums.weigh(t, ops.collapse(X, pre))).',
        "zh": '循环最后一行：memory.write("x", t, sums.weigh(t, ops.collapse(X, pre)))。',
    },
)
PASS_VERSUS: Text = {
    "en": "yours gives {value}; wanted is {right}",
    "zh": "你的结果是 {value}；应为 {right}",
}
AGAIN: Text = {
    "en": "Right numbers, but you visit the streams twice: n rows of X' are read again, (3n + 2)d in all. `pre` was "
    "known before the first tile.",
    "zh": "数值正确，但残差流被访问了两遍：X' 的 n 行又读了一次，共 (3n + 2)d。`pre` 在第一个分块之前就已知。",
}
SEPARATE: Text = {
    "en": "Right numbers, but the mix goes out and comes back for its norm: 2d more. Weigh it while it is here.",
    "zh": "数值正确，但混合结果写出去又读回来做归一化，多了 2d。趁它还在芯片上就乘权重。",
}
STALE_STREAMS: Text = {
    "en": "You mixed the streams before the update. The next sublayer must see what the last one has just written.",
    "zh": "你混合的是更新之前的残差流。下一个子层必须看到上一个子层刚写入的内容。",
}
SUMS_OF_OLD: Text = {
    "en": "You added the streams before the update to the sums. The coefficients belong to the updated ones.",
    "zh": "你累加的是更新之前的残差流。系数应由更新后的残差流算出。",
}
PARTIAL: Text = {
    "en": "You asked the sums for coefficients inside the loop. There they have seen only the tiles so far, so that "
    "each tile was mixed by other numbers. That is the dependency which the delay removes.",
    "zh": "你在循环里就向 sums 要系数，那时它只见过前面的分块，于是每个分块用了不同的数来混合。"
    "错位要消除的正是这个依赖。",
}

WORST_WHY: Text = {
    "en": "The error itself is a differentiable function of the logits, so gradient ascent finds bad ones in a few "
    "hundred steps. From different starts it ends at the same matrix with rows and columns exchanged, and stops at "
    "0.0850. What it builds is a chain of nearly closed groups: what is handed on too much leaks to where too little "
    "is handed on, slowly, through entries of about a tenth.",
    "zh": "误差是 logits 的可微函数，所以梯度上升几百步就能找到很坏的 logits。从不同起点出发，得到的是同一个矩阵的"
    "行列置换，并停在 0.0850。它构造的是一串几乎封闭的小组：送出过多的部分只能经由约 0.1 的元素，"
    "慢慢流向送出不足的部分。",
}
WORST_HINTS: tuple[Text, ...] = (
    {
        "en": "Sinkhorn is fast where every element is of some size, and slow where the matrix nearly falls apart.",
        "zh": "元素大小相近时 Sinkhorn 收敛快；矩阵几乎可以分块时收敛慢。",
    },
    {
        "en": "A search will do: the package's sinkhorn is differentiable, and drawn(8, n) gives random logits.",
        "zh": "用搜索就行：代码库的 sinkhorn 可微，drawn(8, n) 给出随机起点。",
    },
    {
        "en": "z.requires_grad_(); 300 steps of Adam with lr 0.3 on -errors(sinkhorn(z, 20, 1e-6))[1].sum(), for "
        "several z at once; return the worst.",
        "zh": "z.requires_grad_()；用 Adam（lr 0.3）对 -errors(sinkhorn(z, 20, 1e-6))[1].sum() 走 300 步，"
        "多个 z 同时进行，返回最坏的一个。",
    },
)
WORST_VERSUS: Text = {
    "en": "the inexact side of yours is off by {value}; 1,000 random draws reach {right}",
    "zh": "你的矩阵不精确一侧的误差为 {value}；随机抽取 1,000 次最大为 {right}",
}
FLAT: Text = {
    "en": "Equal logits are balanced before the first round. Nothing is left to do.",
    "zh": "logits 全相等时，第一轮之前就已平衡，没有误差可言。",
}
LONE: Text = {
    "en": "One large logit empties the rest of one row and of one column. More of it can be made slow than that.",
    "zh": "单独一个很大的 logit 只会压空一行和一列的其余部分。矩阵中还有更多部分可以变慢。",
}
TRIANGLE: Text = {
    "en": "A triangle is the classic bad case: only its diagonal can be balanced, and the rest dies off like one over "
    "the rounds. But there is worse.",
    "zh": "三角矩阵是经典的坏例子：只有对角线能平衡，其余部分按轮数的倒数衰减。但还有更坏的。",
}
