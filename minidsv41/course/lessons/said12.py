"""What lesson 12 says to right and wrong answers, in both languages."""

from __future__ import annotations

from minidsv41.course.language import Text

BYTES_WHY: Text = {
    "en": "n + 1 rows come in (the streams and the sublayer's output), n + 1 go out (the streams and the next input), "
    "2 bytes a number. The predictor has n(n + 2) outputs over n · width inputs in FP32, and it is read once, however "
    "many tokens there are. At one token it is 95 % of the bytes.",
    "zh": "读入 n + 1 行（各残差流和子层输出），写出 n + 1 行（各残差流和下一个输入），每个数 2 字节。"
    "系数预测器有 n(n + 2) 个输出、n · width 个输入，FP32，无论多少 token 都只读一次。"
    "只有一个 token 时，它占字节数的 95 %。",
}
BYTES_HINTS: tuple[Text, ...] = (
    {"en": "Two parts: one grows with the tokens, one does not.", "zh": "两部分：一部分随 token 增长，另一部分不变。"},
    {
        "en": "A token: (2n + 2) rows of `width` numbers in BF16, as in lesson 07.",
        "zh": "每个 token：(2n + 2) 行，每行 width 个 BF16 数，见 07 课。",
    },
    {
        "en": "tokens · (2n + 2) · width · 2 + n(n + 2) · n · width · 4",
        "zh": "tokens · (2n + 2) · width · 2 + n(n + 2) · n · width · 4",
    },
)
NO_WEIGHTS: Text = {
    "en": "You left out the predictor's weights. For many tokens that hardly shows; for one they are nearly all.",
    "zh": "你漏掉了系数预测器的权重。token 多时几乎看不出；只有一个时，它们几乎是全部。",
}
EVERY_TOKEN: Text = {
    "en": "You read the weights again for every token. From device memory they are needed once; a kernel that takes "
    "one token a program does read them again, from L2.",
    "zh": "你让每个 token 都重读一遍权重。从显存只需读一次；每个程序只处理一个 token 的 kernel 才会从 L2 反复读。",
}
SEPARATE: Text = {
    "en": "These are the rows of three launches. In one, the streams that were just updated need no second reading.",
    "zh": "这是三次启动的行数。合成一次后，刚更新的残差流不必再读。",
}
NARROW: Text = {
    "en": "You took 2 bytes a weight. Streams are BF16, the predictor is FP32.",
    "zh": "你按每个权重 2 字节计算。残差流是 BF16，系数预测器是 FP32。",
}

LIMITER_WHY: Text = {
    "en": "Three times, and the longest is the floor: bytes over the rate of a copy, FLOP over the rate of the matrix "
    "unit, and the launch. 1 GB/s is 1,000 B in a µs, 1 TFLOP/s is 1,000,000 FLOP in a µs. What changes from shape to "
    "shape is which part is small: weights weigh at few tokens, the launch weighs most when Python does it.",
    "zh": "三种时间中最长者就是下限：字节 ÷ 拷贝速率，FLOP ÷ 矩阵单元速率，以及启动时间。"
    "1 GB/s 即每 µs 1,000 B，1 TFLOP/s 即每 µs 1,000,000 FLOP。"
    "不同形状之间变化的是哪一项可以忽略：token 少时权重重要，由 Python 启动时启动时间最重要。",
}
LIMITER_HINTS: tuple[Text, ...] = (
    {"en": "Bring all three into the same unit, µs.", "zh": "把三者换算成同一单位 µs。"},
    {
        "en": "Bytes of the call: once + tokens · each. FLOP of the call: tokens · flops.",
        "zh": "一次调用的字节：once + tokens · each；FLOP：tokens · flops。",
    },
    {
        "en": "max of bytes / 4246e3, FLOP / 782e6 and launch; return the name of the largest",
        "zh": "bytes / 4246e3、FLOP / 782e6、launch 三者取最大，返回其名称",
    },
)
NO_LAUNCH: Text = {
    "en": "You forgot the launch. A call that moves little is done before the next one can begin.",
    "zh": "你忘了启动时间。数据量小的调用，在下一个启动之前早就做完了。",
}
FP32: Text = {
    "en": "You divided by the FP32 rate. Products of BF16 run on the matrix unit, 16 times as fast.",
    "zh": "你除以了 FP32 的速率。BF16 乘积在矩阵单元上运行，快 16 倍。",
}
LIMITER_NO_WEIGHTS: Text = {
    "en": "You counted tokens only. What is read once (a predictor, a state, the rows of a context) decides at few "
    "tokens.",
    "zh": "你只计了随 token 增长的部分。只读一次的部分（预测器、状态、上下文的行）在 token 少时起决定作用。",
}

RACE_WHY: Text = {
    "en": "Between a load and the store that depends on it another program can come: sums and maxima are lost. An "
    "atomic step cannot be parted, so whole numbers are safe; floats are added in another order each time, and "
    "(1e16 + 1) − 1e16 is not (1e16 − 1e16) + 1. Programs that count themselves in are safe if what they brought is "
    "written before they count: then the last one adds all parts, always in the same order.",
    "zh": "在读取和依赖它的写入之间，别的程序可能插进来：和、最大值因此丢失。原子步骤不可分割，所以整数安全；"
    "但浮点数每次相加顺序不同，而 (1e16 + 1) − 1e16 ≠ (1e16 − 1e16) + 1。"
    "用计数器报到的程序，只要先写好自己的部分再计数就安全：最后一个总按同一顺序把各部分相加。",
}
RACE_HINTS: tuple[Text, ...] = (
    {
        "en": "Put another program between two steps of the first. Does anyone miss anything?",
        "zh": "在第一个程序的两步之间插入另一个程序。有谁漏掉了什么吗？",
    },
    {
        "en": "One step is not always enough: is the sum of f the same in every order?",
        "zh": "只有一步也未必够：f 按任何顺序相加都一样吗？",
    },
    {
        "en": "races.outcomes(program) gives every result that is possible. Four of the eight have more than one.",
        "zh": "races.outcomes(program) 给出所有可能的结果。八个中有四个不止一种。",
    },
)
ATOMICS_ROUND: Text = {
    "en": "You trust atomics with floats. Nothing is lost, yet each order rounds differently.",
    "zh": "你相信原子操作对浮点数也安全。确实没有丢失，但每种顺序舍入不同。",
}
COUNTED_EARLY: Text = {
    "en": "You trust the counter. A program counts before it writes, and the last to count may add a part that is "
    "not there yet.",
    "zh": "你相信了计数器。有程序先计数、后写入，最后计数的程序可能加上还没写好的部分。",
}
LOST_MAXIMUM: Text = {
    "en": "A maximum is lost like a sum: two programs read 0, and the one that writes last wins, large or small.",
    "zh": "最大值和求和一样会丢：两个程序都读到 0，后写的那个获胜，不论大小。",
}
SAME_VALUE: Text = {
    "en": "All three write the same number there. Whoever comes last, nobody can tell.",
    "zh": "三个程序写的是同一个数。谁最后写都看不出来。",
}
LAST_IS_SAFE: Text = {
    "en": "There every part is written before its program counts, and one program alone adds them, in a fixed order.",
    "zh": "那里每个部分都在计数之前写好，并且只由一个程序按固定顺序相加。",
}

TILE_VERSUS: Text = {
    "en": "your tiles: {value}; accepted is {right}",
    "zh": "你的分块：{value}；可接受：{right}",
}
TILE_WHY: Text = {
    "en": "Three forces. Large tiles read the predictor's weights from L2 less often; small ones, or tiles whose "
    "channels are split, give all multiprocessors something to do; and programs come in waves, so that one more than "
    "fits costs as much as a whole wave. At one token only splitting helps, at 32,768 only size.",
    "zh": "三种力量：分块大，从 L2 重读预测器权重的次数就少；分块小或把通道切开，才能让所有多处理器有事可做；"
    "程序成波执行，多出一个就等于多一整波。一个 token 时只有切分有用，32,768 个时只有大小有用。",
}
TILE_HINTS: tuple[Text, ...] = (
    {
        "en": "How many programs are there, and how many multiprocessors? The record says 132.",
        "zh": "有多少程序？多少多处理器？记录中是 132。",
    },
    {
        "en": "The busiest multiprocessor walks ceil(programs / 132) times ceil(80 / splits) blocks of channels.",
        "zh": "最忙的多处理器要走 ceil(程序数 / 132) × ceil(80 / splits) 个通道块。",
    },
    {
        "en": "Try all tiles on that count, weighted by max(streams / 4246e3, (streams + weights) / 5500e3); or ask "
        "tiling.microseconds.",
        "zh": "对所有分块算这个数，乘以 max(残差流 / 4246e3, (残差流 + 权重) / 5500e3)；或直接用 tiling.microseconds。",
    },
)
IDLE: Text = {
    "en": "One program walks over all channels while 131 multiprocessors wait.",
    "zh": "一个程序走完所有通道，另外 131 个多处理器在等待。",
}
REREAD: Text = {
    "en": "Good for a few tokens. For many, every 16 tokens read the weights again, 2 MB from L2.",
    "zh": "token 少时很好。多的时候，每 16 个 token 就要从 L2 重读一遍 2 MB 权重。",
}
FEW: Text = {
    "en": "Good for many tokens. For 128 that is one program, and one multiprocessor.",
    "zh": "token 多时很好。128 个 token 时却只有一个程序、一个多处理器。",
}
TOO_LARGE: Text = {
    "en": "The accumulators of 256 tokens do not fit into the registers: they would spill.",
    "zh": "256 个 token 的累加器放不进寄存器，会溢出。",
}
