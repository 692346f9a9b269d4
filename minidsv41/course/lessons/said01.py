"""What lesson 01 says to right and wrong answers, in both languages."""

from __future__ import annotations

from minidsv41.course.language import Text

KV_WHY: Text = {
    "en": "Each layer keeps a key and a value for each KV head. Query heads share them and store nothing, so their "
    "number does not enter.",
    "zh": "每一层为每个 KV 头保存一个键和一个值。query 头共用它们，自己什么都不存，所以 heads 不出现在公式里。",
}
KV_HINTS: tuple[Text, ...] = (
    {
        "en": "What does a later query need of this token, in one layer?",
        "zh": "后面的 query 在一层里需要这个 token 的什么？",
    },
    {"en": "A key and a value, for each KV head, in every layer.", "zh": "每一层、每个 KV 头各一个键和一个值。"},
    {"en": "layers * 2 * kv_heads * head_dim * size", "zh": "layers * 2 * kv_heads * head_dim * size"},
)
KEYS_ONLY: Text = {
    "en": "You count keys only. Values are kept too; that is how a published factor of 28 became half of the true one.",
    "zh": "你只数了键，值也要存。有人就是这样把实际倍数的一半写成了“28 倍”。",
}
QUERY_HEADS: Text = {
    "en": "You count query heads. They are computed for the current token and thrown away.",
    "zh": "你数的是 query 头。query 只为当前 token 计算，用完就丢。",
}
ONE_LAYER: Text = {"en": "That is one layer. Each keeps its own.", "zh": "这只是一层。每层都各存一份。"}
NUMBERS: Text = {
    "en": "These are numbers, not bytes: multiply by the size of one.",
    "zh": "这是数的个数，不是字节：还要乘以每个数的大小。",
}

RATES_WHY: Text = {
    "en": "Every head of every query multiplies each cached row twice: 576 numbers for its score, 512 for what it "
    "reads, two FLOP each. The row itself comes from memory once, for all of them. For the article's kernel that "
    "makes 91.3 TFLOP/s, most of what an H20 has, at 0.377 TB/s, a tenth of what it could read.",
    "zh": "每个 query 的每个头对每一行缓存做两次乘法：分数用 576 个数，读取用 512 个数，每个数 2 FLOP。"
    "而这一行只从显存读一次，供所有头共用。文章里的内核因此是 91.3 TFLOP/s，接近 H20 的上限，"
    "带宽却只有 0.377 TB/s，约为可用带宽的十分之一。",
}
RATES_HINTS: tuple[Text, ...] = (
    {
        "en": "Two counts, one time: all multiply-adds of the batch, and all bytes of its rows.",
        "zh": "两笔账，一个时间：整批的乘加次数，和整批缓存行的字节数。",
    },
    {
        "en": "A head needs 576 products a row for the score and 512 for the value; the row has 576 numbers of 2 B.",
        "zh": "每个头对每行要 576 次乘加算分数、512 次乘加取值；一行是 576 个数，每个 2 B。",
    },
    {
        "en": "2 · batch · queries · heads · context · 1,088 FLOP and 2 · batch · context · 576 B, over the time",
        "zh": "2 · batch · queries · heads · context · 1088 FLOP，2 · batch · context · 576 B，再除以时间",
    },
)
SCORES_ONLY: Text = {
    "en": "You count the scores. What the weights read costs another 512 multiply-adds a row and head.",
    "zh": "你只算了分数。按权重取值时，每个头每行还要 512 次乘加。",
}
NAIVE_WIDTHS: Text = {
    "en": "These are the widths of expanded keys and values. Absorbed, a head works on the stored row: 576 and 512.",
    "zh": "这是展开后键和值的宽度。吸收之后每个头直接在缓存行上计算：576 和 512。",
}
ONE_OPERATION: Text = {
    "en": "A multiply-add is two operations; peak rates are given that way too.",
    "zh": "一次乘加算两次运算；硬件的峰值也是这样标的。",
}
READ_AGAIN: Text = {
    "en": "You read the value a second time. It is the first 512 numbers of the same row, already on the chip.",
    "zh": "你把值又读了一遍。值就是同一行的前 512 个数，已经在片上了。",
}
ROW_A_HEAD: Text = {
    "en": "You read each row once a head. All heads share it: that is what made the arithmetic win.",
    "zh": "你让每个头各读一遍缓存行。所有头共用一行，正因如此算力才成了瓶颈。",
}
ROW_A_QUERY: Text = {
    "en": "You read the prefix once for each query. Queries of one request share its rows; arithmetic doubles, bytes "
    "do not.",
    "zh": "你让每个 query 各读一遍前缀。同一请求的多个 query 共用缓存行：运算翻倍，字节不变。",
}
ONE_QUERY: Text = {
    "en": "You count one query. Each query of a step does all products again; only the rows are shared.",
    "zh": "你只算了一个 query。一步里的每个 query 都要各做一遍乘法，共用的只有缓存行。",
}
OTHER_ORDER: Text = {
    "en": "Both are right, in the other order: arithmetic first, then bytes.",
    "zh": "两个数都对，只是顺序反了：先算力，后带宽。",
}
MILLISECONDS: Text = {
    "en": "You divide by milliseconds as if they were seconds.",
    "zh": "你把毫秒当成了秒来除。",
}
ONE_REQUEST: Text = {
    "en": "That is one request. Each of the batch has a cache of its own.",
    "zh": "这只是一个请求。批中每个请求都有自己的缓存。",
}

THIRD_VERSUS: Text = {
    "en": "yours takes {value} million FLOP, the better of the package's two forms {right}",
    "zh": "你的写法 {value} 百万 FLOP，代码库两种形式中较省的一种 {right}",
}
THIRD_WHY: Text = {
    "en": "Keys and values break even apart. An expanded key is 24 wide, an expanded value 32, and both save against "
    "64: expanding keys pays from 29.5 queries on, expanding values from 42.7. With 36 queries keys should be "
    "expanded and values should not. In V3 both are 128 wide, so both break even at the same number and nobody looks "
    "for a third form.",
    "zh": "键和值的平衡点并不相同。展开后的键宽 24，值宽 32，都比 64 省：query 数超过 29.5 时展开键划算，"
    "超过 42.7 时展开值才划算。36 个 query 时应当展开键、不展开值。V3 里两者都宽 128，平衡点相同，"
    "所以没有人去找第三种形式。",
}
THIRD_HINTS: tuple[Text, ...] = (
    {
        "en": "Absorption moves two matrices, one on each side of the softmax. Must both move?",
        "zh": "吸收移动了两个矩阵，softmax 前后各一个。两个都必须移动吗？",
    },
    {
        "en": "Expanding costs ROWS · width · 64 a head once and saves (64 - width) for each pair. Keys are narrower.",
        "zh": "展开的代价是每个头 ROWS · width · 64 一次，每对节省 64 - width。键更窄。",
    },
    {
        "en": "k from up_k, scores with k and with the rotated key; then sum latents, and apply up_v last",
        "zh": "用 up_k 得到 k，与旋转部分一起算分数；然后对 latent 求和，最后乘 up_v",
    },
)
EXPANDED: Text = {
    "en": "That is the expanded form. It pays for keys, and not yet for values.",
    "zh": "这是展开形式。对键已经划算，对值还不划算。",
}
MOVED: Text = {
    "en": "That is the absorbed form. With this many queries its wide scores cost more than expanding the keys.",
    "zh": "这是吸收形式。query 这么多时，它的宽分数比展开键更贵。",
}
WRONG_HALF: Text = {
    "en": "You expanded values and left keys absorbed. It is the keys that are narrower.",
    "zh": "你展开了值、吸收了键。更窄的是键。",
}
