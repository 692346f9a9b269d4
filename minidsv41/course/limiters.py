"""Why a kernel takes longer than was aimed at: one sentence or two each, with what was tried.

Read from Nsight Compute (stalls, occupancy, busy units), from machine code, and from sweeps of tiles, on one NVIDIA
H200 on 2026-11-30, partly before the last changes to a kernel; no record holds these numbers.
"""

from __future__ import annotations

LIMITERS = {  # by how "operation shape" begins; the longest beginning that fits counts
    "engram read and gate": "The aim leaves out keys that are read and outputs that are written: with them the floor "
    "lies above the aim, and the two kernels are within 7 % of it.",
    "engram_read host table": "The link streams 55 GB/s, but answers scattered rows of 264 bytes at 25. Reading in the "
    "order of addresses helped by a quarter; more programs, larger pages and leaving out the scales did not.",
    "index_select 1 x 1M": "Of 81 µs before the last changes, 53 were scoring: decoding, weighing and adding over "
    "heads take more instructions than 68 bytes a key take time. The rest merged the candidates of 512 programs.",
    "index_select 32 x": "About 500 instructions a warp decode, multiply, weigh and add up 128 keys; registers hold "
    "occupancy at 23 %, so half of the issue slots stay empty and memory waits. More stages and other tiles gave 2 %.",
    "index_select prefill": "Four queries together need 255 registers a thread, so two programs share a multiprocessor "
    "and neither products nor issue are busy half of the time. Two queries a program were slower.",
    "kv_write main": "Packing two rows takes about 590 instructions, 10 µs of issue beside 12 µs of bytes; a program "
    "first loads and then computes, so the two overlap only in part. Seven tiles were within 2 %.",
    "seam T=128": "The second kernel waits for the sums of 80 parts, and 20 rounds of Sinkhorn follow one another. "
    "Starting it before the first has ended gained 0.4 µs at 32 tokens.",
    "seam T=4,096": "One program of 8 warps a multiprocessor: it loads, multiplies and stores in turn, and every tile "
    "of 32 tokens reads the predictor's 2 MB again through L2, which is 74 % busy. 42 tiles were tried.",
    "seam T=32,768": "With 64 tokens a tile, mixed inputs that wait for their norm no longer fit in L2, so up to 14 "
    "numbers a channel move instead of 10. 32 tokens, which fit, read the weights twice as often: 1,207 µs.",
    "sparse_attention B=32": "128 programs fill the card once, and the longest has three tiles of 64 keys where others "
    "have two; a second launch adds up the parts. Registers do not allow two programs on a multiprocessor.",
}


def limiter(name: str) -> str:
    """The sentence for a kernel at a shape, such as "seam T=1"; empty if there is none."""
    return LIMITERS.get(max((begin for begin in LIMITERS if name.startswith(begin)), key=len, default=""), "")
