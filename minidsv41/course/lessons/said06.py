"""What lesson 06 says to right and wrong answers, in both languages."""

from __future__ import annotations

from minidsv41.course.language import Text

BYTE_WHY: Text = {
    "en": "The even column lies in the low nibble. In a nibble the top bit is the sign and the other three count up "
    "the grid 0, 0.5, 1, 1.5, 2, 3, 4, 6; the group's scale multiplies what they say.",
    "zh": "偶数列在低 4 位。每个 4 位码的最高位是符号，其余三位依次指向 0、0.5、1、1.5、2、3、4、6；"
    "再乘以该组的缩放因子。",
}
BYTE_HINTS: tuple[Text, ...] = (
    {"en": "Take the byte apart first: two codes of four bits.", "zh": "先把字节拆成两个 4 位码。"},
    {
        "en": "The low nibble is byte % 16 and belongs to the even column.",
        "zh": "低 4 位是 byte % 16，属于偶数列。",
    },
    {
        "en": "A code from 8 on is minus the value of code - 8. Then multiply by the scale.",
        "zh": "码 ≥ 8 时，取 code - 8 的值并加负号，然后乘以缩放因子。",
    },
)
NIBBLE: Text = {
    "en": "You read the high nibble first. The even column is stored in the low one.",
    "zh": "你先读了高 4 位。偶数列存放在低 4 位。",
}
COMPLEMENT: Text = {
    "en": "You read the sign as two's complement. A small float has a sign bit: code 9 is minus code 1.",
    "zh": "你把符号当成补码。小浮点数用的是符号位：码 9 是码 1 的负值。",
}
INTEGER: Text = {
    "en": "You count the codes as integers. That is INT4; E2M1 has an exponent, so its steps widen: 0.5, 1, 2.",
    "zh": "你把码当成整数，那是 INT4。E2M1 有指数位，步长依次变大：0.5、1、2。",
}
SUBNORMAL: Text = {
    "en": "You gave exponent 0 a leading one. It has none: codes 0 and 1 are 0 and 0.5.",
    "zh": "指数为 0 时没有隐含的 1：码 0 和 1 分别是 0 和 0.5。",
}
NO_SCALE: Text = {
    "en": "These are the values on the grid. The group's scale still has to multiply them.",
    "zh": "这只是网格上的值，还要乘以该组的缩放因子。",
}

ENCODE_WHY: Text = {
    "en": "One rule of rounding does both jobs. The largest magnitude over 6 is rounded to E4M3, so that the scale "
    "fits a byte; the floor, the smallest E4M3 number, keeps it from becoming zero. Then each quotient goes to its "
    "nearest code, the even one on a tie. Where the scale was rounded down the largest quotient is a little over 6 "
    "and saturates. VALUES, SCALES and nearest are those of the lesson.",
    "zh": "同一条舍入规则用两次。最大绝对值除以 6，舍入到 E4M3，缩放因子正好占一个字节；"
    "下限是最小的 E4M3 正数，避免缩放因子变成零。然后每个商取最近的码，平局取偶数码。"
    "缩放因子被向下舍入时，最大的商略大于 6，会饱和。VALUES、SCALES、nearest 与课文中相同。",
}
ENCODE_HINTS: tuple[Text, ...] = (
    {
        "en": "Scale first, from the largest magnitude of the group alone.",
        "zh": "先求缩放因子，它只取决于组内最大绝对值。",
    },
    {
        "en": "scale = SCALES[nearest(largest / 6, SCALES)]. What if the group is all zeros?",
        "zh": "scale = SCALES[nearest(largest / 6, SCALES)]。如果整组都是零呢？",
    },
    {
        "en": "max(largest / 6, 2**-9) before rounding; then nearest(abs(x) / scale, VALUES), plus 8 for a negative x",
        "zh": "舍入之前取 max(largest / 6, 2**-9)；然后 nearest(abs(x) / scale, VALUES)，x 为负时加 8",
    },
)
POWER: Text = {
    "en": "Your scale is a power of two. That is MXFP4, which stores index keys and experts. A main entry's scale is "
    "an E4M3 number with eight steps from one power of two to the next, and wastes less of the grid.",
    "zh": "你的缩放因子是 2 的幂，那是 MXFP4（索引键和专家权重的格式）。"
    "主 KV 条目的缩放因子是 E4M3 数，每两个 2 的幂之间有八级，网格浪费更少。",
}
FLOOR: Text = {
    "en": "The floor is missing. Below 2^-10 the scale rounds to zero, and you divide by it. The scale is at least "
    "2^-9, the smallest E4M3 number.",
    "zh": "缺少下限。小于 2^-10 时缩放因子会舍入为零，接着就除以零。缩放因子至少是 2^-9，即最小的 E4M3 正数。",
}
EXACT: Text = {
    "en": "Your scale is not rounded, and does not fit a byte. The reader will multiply by the E4M3 number next to it.",
    "zh": "你的缩放因子没有舍入，一个字节放不下。读取时用的是离它最近的 E4M3 数。",
}
AWAY: Text = {
    "en": "You round ties away from zero. Ties go to the even code: 0.25 becomes 0, 2.5 becomes 2, 5 becomes 4.",
    "zh": "你把平局向远离零的方向舍入。平局应取偶数码：0.25 变 0，2.5 变 2，5 变 4。",
}
DOWN: Text = {
    "en": "You always round down. Every magnitude shrinks, and all that is below 0.5 dies, twice as much as need be.",
    "zh": "你总是向下舍入。所有绝对值都变小，小于 0.5 的全部归零，是必要范围的两倍。",
}
STEPS: Text = {
    "en": "You cut the range into seven equal steps. That is INT4. The largest E2M1 value is 6, and steps widen "
    "upwards.",
    "zh": "你把范围分成七个等距的台阶，那是 INT4。E2M1 的最大值是 6，越往上台阶越宽。",
}
UP: Text = {
    "en": "You round the scale up so that nothing saturates. It is rounded to the nearest; the largest value may lose "
    "a sixteenth, and the others gain.",
    "zh": "你把缩放因子向上取，使任何值都不饱和。实际上是取最近的：最大值最多损失十六分之一，其余的值受益。",
}

SCALE_VERSUS: Text = {
    "en": "your error is {value} % of the norm, the package's {right} % (be 3 % below it)",
    "zh": "你的误差是范数的 {value}%，代码库的是 {right}%（请比它低 3%）",
}
SCALE_WHY: Text = {
    "en": "Between 4 and 6 the grid has a gap two wide, and the largest value always falls beside it. With the "
    "largest at 4 instead of 6 some groups fit better. Trying both and keeping the better one costs a second rounding "
    "when a row is written, no byte and nothing when it is read.",
    "zh": "网格在 4 和 6 之间有一个宽为 2 的空隙。把最大值放在 4 而不是 6，有些组会更合适。"
    "两种都试、取误差小的，写入时多舍入一次，不多占字节，读取时没有任何代价。",
}
SCALE_HINTS: tuple[Text, ...] = (
    {
        "en": "The largest value need not sit at 6. Where are the gaps of the grid?",
        "zh": "最大值不一定要落在 6。网格的空隙在哪里？",
    },
    {"en": "No single divisor is best for all groups. Try two for each.", "zh": "没有一个除数适合所有组，每组试两个。"},
    {
        "en": "Squared error with largest / 4 and with largest / 6; torch.where takes the smaller",
        "zh": "分别用 largest / 4 和 largest / 6 求平方误差，用 torch.where 取较小者",
    },
)
SAME: Text = {"en": "That is the package's own rule.", "zh": "这就是代码库自己的规则。"}
FOUR: Text = {
    "en": "With the largest at 4 in every group, the values 6 are never used and small ones die sooner.",
    "zh": "每组都把最大值放在 4，6 就从不使用，小的值也更早归零。",
}
AVERAGE: Text = {
    "en": "You scale by the average, and the largest values of many groups saturate.",
    "zh": "你按平均大小缩放，许多组的最大值会饱和。",
}
