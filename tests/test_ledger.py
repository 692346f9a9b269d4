"""The books reproduce the reference numbers, describe the model that is built, and never contradict themselves."""

import ast
import io
import json
import operator
import struct
from fractions import Fraction
from math import ceil
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from minidsv41.cache import Cache
from minidsv41.cli import app
from minidsv41.config import PRESETS, ConfigError, ModelConfig
from minidsv41.ledger import bytes as kept
from minidsv41.ledger import checkpoint, flops, models, params, tensors, traffic
from minidsv41.ledger.books import as_json, books
from minidsv41.ledger.line import Line, least, lift, plain, total
from minidsv41.ledger.show import print_books
from minidsv41.ledger.storage import BF16, FP4, FP8, FP32, ROWS
from minidsv41.model.transformer import Model
from minidsv41.serve.generate import step

GOLDEN = Path(__file__).parent / "golden"
LEDGER = json.loads((GOLDEN / "ledger.json").read_text(encoding="utf-8"))
TINY = ModelConfig.from_json(GOLDEN / "v41_tiny" / "config.json")
FLASH = ModelConfig.preset("flash")
CONFIGS = {name: ModelConfig.preset(name) for name in PRESETS} | {"tiny": TINY}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)

GIVEN = {
    "d": "hidden_size",
    "vocab": "vocab_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "head_dim": "head_dim",
    "q_lora": "q_lora_rank",
    "o_groups": "o_groups",
    "o_lora": "o_lora_rank",
    "experts": "n_routed_experts",
    "topk_e": "num_experts_per_tok",
    "inter": "moe_intermediate_size",
    "hc": "hc_mult",
    "idx_heads": "index_n_heads",
    "idx_dim": "index_head_dim",
    "idx_topk": "index_topk",
    "window": "sliding_window",
    "eng_dim": "engram_head_dim",
    "eng_cols": "engram_columns",
    "draft_blocks": "num_nextn_predict_layers",
    "draft_experts": "dspark_n_routed_experts",
    "draft_topk": "dspark_num_experts_per_tok",
    "markov_rank": "dspark_markov_rank",
}

COMPUTED = {
    "cand_positions": flops.cand_positions,
    "main_entry_bytes": kept.main_entry_bytes,
    "index_entry_bytes": kept.index_entry_bytes,
    "swa_entry_bytes": kept.window_row_bytes,
    "entries_per_token": kept.entries_per_token,
    "main_bytes_per_token": kept.main_bytes_per_token,
    "index_bytes_per_token": kept.index_bytes_per_token,
    "kv_bytes_per_token": kept.kv_bytes_per_token,
    "kv_bytes_per_token_bf16": lambda c: kept.kv_bytes_per_token(c, kept.BF16),
    "kv_bytes_per_token_fp8": lambda c: kept.kv_bytes_per_token(c, kept.FP8),
    "kv_bytes_per_token_no_sharing": kept.kv_bytes_per_token_no_sharing,
    "ratio_vs_V1_67B": lambda c: models.ratio_vs(c, models.V1_67B),
    "ratio_vs_V4_Flash": lambda c: models.ratio_vs(c, models.V4_FLASH),
    "swa_bytes_per_sequence": kept.swa_bytes_per_sequence,
    "swa_bytes_per_sequence_with_draft": kept.swa_bytes_per_sequence_with_draft,
    "compressor_state_bytes_per_sequence": kept.compressor_state_bytes_per_sequence,
    "kv_bytes_at_1M": lambda c: kept.kv_bytes_at(c, 1 << 20),
    "expert_params": params.expert_params,
    "attn_matrices": params.attn_matrices,
    "attn_params": params.attn_params,
    "mhc_params_per_sublayer": params.mhc_params_per_sublayer,
    "gate_params": params.gate_params,
    "block_params": params.block_params,
    "compressor_params": params.compressor_params,
    "indexer_params": params.indexer_params,
    "embed_head_params": params.embed_head_params,
    "backbone_params": params.backbone_params,
    "backbone_params_matrices": params.backbone_params_matrices,
    "engram_table_params": params.engram_table_params,
    "engram_wkv_params": params.engram_wkv_params,
    "engram_params": params.engram_params,
    "draft_gate_params": params.draft_gate_params,
    "draft_block_params": params.draft_block_params,
    "draft_params": params.draft_params,
    "active_per_layer_matrices": params.active_per_layer_matrices,
    "active_prefill_encoder": params.active_prefill_encoder,
    "active_decode_with_head": params.active_decode_with_head,
    "active_decode_full": params.active_decode_full,
    "total_params": params.total_params,
    "expert_bytes": checkpoint.expert_bytes,
    "fp8_rate": lambda c: lift(FP8.rate),
    "block_other_bytes": checkpoint.block_other_bytes,
    "checkpoint_bytes": checkpoint.release_bytes,
    **{
        line.name: (lambda c, name=line.name: next(x for x in flops.weight_lines(c) if x.name == name))
        for line in flops.weight_lines(FLASH)
    },
    "flop_weights": flops.flop_weights,
    "flop_attention_core": lambda c: flops.flop_attention_core(c, 4096),
    **{f"flop_indexer_{flops.label(n)}": (lambda c, n=n: flops.flop_indexer(c, n)) for n in flops.CONTEXTS},
    **{f"flop_decode_{flops.label(n)}": (lambda c, n=n: flops.flop_decode(c, n)) for n in flops.CONTEXTS},
    "flop_decode_1M_without_pool": lambda c: flops.flop_decode(c, 1 << 20, pool=False),
    "mhc_bytes_per_token_multi_kernel": lambda c: traffic.mhc_bytes_per_token(c, "multi_kernel"),
    "mhc_bytes_per_token_single_pass": lambda c: traffic.mhc_bytes_per_token(c, "single_pass"),
    "engram_bytes_per_token": traffic.engram_bytes_per_token,
}


def split(model: str) -> tuple[dict, dict]:
    """{key: value} that are given and that are computed."""
    entries = LEDGER[model]
    inputs = {k: e["value"] for k, e in entries.items() if e["formula"] == "given"}
    return inputs, {k: e["value"] for k, e in entries.items() if k not in inputs}


def test_every_number_of_the_release():
    inputs, computed = split("V4.1-Flash")
    special = {
        "eng_rows_1": FLASH.engram_num_embeddings[0],
        "eng_rows_14": FLASH.engram_num_embeddings[1],
        "vision_params": params.VISION_PARAMS.value,
    }
    assert {k: getattr(FLASH, field) for k, field in GIVEN.items()} | special == inputs
    assert COMPUTED.keys() == computed.keys()
    assert {k: plain(call(FLASH).value) for k, call in COMPUTED.items()} == computed


@pytest.mark.parametrize("model", models.ANCESTORS, ids=lambda m: m.name)
def test_every_number_of_the_ancestors(model):
    inputs, computed = split(model.name)
    assert {k: getattr(model, k) for k in inputs} == inputs
    assert {k: plain(model.books()[k].value) for k in computed} == computed


def test_exact_counts_of_the_release():
    assert params.parameter_count(FLASH).value == 762_720_047_314
    assert params.total_params(FLASH).value - params.parameter_count(FLASH).value == 485_268_480
    assert sum(t.files for t in tensors.tensors(FLASH)) == 96_085 - 266
    assert kept.kv_bytes_per_token(FLASH, kept.V4_RECORD).value == 1_630
    assert [traffic.mhc_rows_per_sublayer(FLASH, form).value for form in traffic.FORMS] == [20, 14, 10]


def test_tensor_list_is_the_file():
    """Names, types, shapes and the bytes of a checkpoint in the released layout."""
    raw = (GOLDEN / "v41_tiny" / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    types = {FP4: "I8", FP8: "F8_E4M3", ROWS: "F8_E4M3", BF16: "BF16", FP32: "F32"}
    expected = {}
    for t in tensors.tensors(TINY):
        shape = [int(n) for n in t.shape]
        for e in range(int(t.copies)):
            name = t.name.format(e=e)
            stored = [shape[0], shape[1] // 2] if t.storage is FP4 else shape
            expected[name] = (types[t.storage], stored)
            if t.storage.tile:
                scale = name.removesuffix("weight") + "scale"
                expected[scale] = ("F8_E8M0", list(t.storage.scale_shape(*shape)))
    assert {name: (e["dtype"], e["shape"]) for name, e in header.items()} == expected
    assert sum(t.files for t in tensors.tensors(TINY)) == len(header)
    assert checkpoint.checkpoint_bytes(TINY).value == len(raw) - 8 - size


def built(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in Model(config).named_parameters()}


def listed(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensor list with routed experts stacked, as the model holds them."""
    out = {}
    for t in tensors.tensors(config):
        shape = tuple(int(n) for n in t.shape)
        if "{e}" in t.name:
            out[t.name.replace(".{e}", "").removesuffix(".weight")] = (int(t.copies), *shape)
        else:
            out[t.name] = shape
    return out


@EACH
def test_counts_are_those_of_the_model(config):
    shapes = built(config)
    assert shapes == listed(config)
    assert params.parameter_count(config).value == sum(torch.Size(s).numel() for s in shapes.values())


KINDS = {
    "window": ("window_bytes",),
    "draft window": ("draft_window_bytes",),
    "entry": ("main_bytes",),
    "index": ("index_bytes",),
    "open pair": ("open_pair_bytes",),
    "engram history": ("engram_history_bytes",),
}


@pytest.mark.parametrize("config", [TINY, CONFIGS["toy"], FLASH], ids=["tiny", "toy", "flash"])
def test_state_bytes_are_those_of_the_cache(config):
    cache = Cache(config, cache_format="packed")
    state = cache.new()
    window = config.sliding_window
    for state.length in (0, 1, 2, 3, window - 1, window, window + 1, 2 * window, 1000, 1001):
        lines = {line.name: line.value for line in kept.state_lines(config, state.length)}
        layers = [f"layer_{owner}_" for owner in config.kv_source_layer_ids]
        ledger = {
            kind: sum(lines.pop(p + name) for p in (layers if kind in ("entry", "index") else [""]))
            for kind, (name,) in KINDS.items()
        }
        assert not lines
        assert ledger == cache.nbytes(state), f"length {state.length}"


def by_kind(config, lines: list[Line]) -> dict[str, int]:
    values = {line.name: line.value for line in lines}
    layers = [f"layer_{owner}_" for owner in config.kv_source_layer_ids]
    return {
        kind: sum(values[p + name] for p in (layers if kind in ("entry", "index") else [""]))
        for kind, (name,) in KINDS.items()
    }


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1000))
def test_a_running_sequence_holds_what_the_ledger_says_live_and_allocated(seed):
    """Through pieces of 1 to 2 W + 1 tokens up to 220: window and page borders, odd and even."""
    g = torch.Generator().manual_seed(seed)
    model = Model(TINY).initialise(g)
    cache = Cache(TINY, cache_format="packed")
    state = cache.new()
    while state.length < 220:
        size = int(torch.randint(1, 2 * TINY.sliding_window + 2, (1,), generator=g))
        step(model, cache, state, torch.randint(0, TINY.vocab_size, (size,), generator=g))
        assert cache.nbytes(state, "live") == by_kind(TINY, kept.state_lines(TINY, state.length)), state.length
        assert cache.nbytes(state, "allocated") == by_kind(TINY, kept.allocated_lines(TINY, state.length)), state.length


def evaluated(line: Line) -> Fraction:
    """The formula's text, computed afresh from the values of its parts, in exact numbers."""

    class Exact(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            return exact(node)

        def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
            self.generic_visit(node)
            return exact(node) if isinstance(node.op, ast.FloorDiv) else node  # a quotient of two such were a float

    def exact(node: ast.expr) -> ast.Call:
        return ast.Call(ast.Name("Fraction", ast.Load()), [node], [])

    tree = ast.fix_missing_locations(Exact().visit(ast.parse(line.formula, mode="eval")))
    names = {part.name: Fraction(part.value) for part in line.parts}
    scope = {"Fraction": Fraction, "min": min, "ceil": lambda x: Fraction(ceil(x)), "__builtins__": {}}
    return eval(compile(tree, line.name, "eval"), scope, names)


def check_formulas(lines: list[Line], *records: object) -> None:
    """Formulas give their values; what carries the name of a field has that field's value in one of the records."""
    for _, line in [pair for top in lines for pair in top.tree()]:
        if line.parts:
            assert evaluated(line) == line.value, line
        elif not line.formula and any(hasattr(record, line.name) for record in records):
            assert line.value in [getattr(record, line.name, None) for record in records], line


def all_lines(config: ModelConfig) -> list[Line]:
    return [line for book in books(config) for line in book.lines] + kept.state_lines(config, 1001)


@EACH
def test_every_printed_formula_gives_its_value(config):
    check_formulas(all_lines(config), config, *(models.ANCESTORS if config == FLASH else ()))


@pytest.mark.parametrize("model", models.ANCESTORS, ids=lambda m: m.name)
def test_every_formula_of_the_ancestors_gives_its_value(model):
    check_formulas(list(model.books().values()), model)


def test_a_wrong_formula_would_be_caught():
    line = kept.kv_bytes_per_token(FLASH)
    swapped = Line(line.name, line.value, line.unit, line.formula.replace("+", "-"), line.parts)
    with pytest.raises(AssertionError):
        check_formulas([swapped], FLASH)


def test_brackets_only_where_they_change_the_value():
    a, b, c = (Line(name, value) for name, value in (("a", 7), ("b", 3), ("c", 2)))
    for line, text, value in (
        (a - (b - c), "a - (b - c)", 6),
        ((a - b) - c, "a - b - c", 2),
        (a * (b + c), "a * (b + c)", 35),
        (a // (b * c), "a // (b * c)", 1),
        ((a // b) * c, "(a // b) * c", 4),
        (a * (b // c), "a * (b // c)", 7),
        (a * (b / c), "a * b / c", Fraction(21, 2)),
        (total([a * b, c, a * b]), "2 * a * b + c", 44),
    ):
        assert (line.formula, line.value) == (text, value)
        assert evaluated(line) == value


def combined(operands: st.SearchStrategy) -> st.SearchStrategy:
    signs = st.sampled_from([operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, least])
    return st.tuples(signs, operands, operands)


@example((operator.truediv, (operator.floordiv, 1, 1), (operator.floordiv, 3, 1)))
@settings(max_examples=300, deadline=None)
@given(combined(st.recursive(st.integers(0, 9) | st.sampled_from("abc"), combined, max_leaves=12)))
def test_any_arithmetic_reads_as_it_was_computed(tree):
    def build(node: object) -> Line:
        if isinstance(node, tuple):
            return node[0](build(node[1]), build(node[2]))
        return Line(node, 2 + ord(node) - ord("a")) if isinstance(node, str) else lift(node)

    try:
        line = build(tree)
    except ZeroDivisionError:
        reject()
    assert evaluated(Line("", line.value, formula=line.within(0), parts=line.operands)) == line.value


@st.composite
def configs(draw) -> ModelConfig:
    """Valid shapes with any schedule of owners, ratios and index sources, and widths that do not fit the tiles."""
    layers = 2 * draw(st.integers(1, 4))
    owners = sorted(draw(st.sets(st.integers(0, layers - 1), min_size=1, max_size=4)))
    ratio_of = {owner: draw(st.sampled_from([1, 2])) for owner in owners}
    ratios = [0] * owners[0]
    for layer in range(owners[0], layers):
        ratios.append(ratio_of[max(o for o in owners if o <= layer)])
    extra = draw(st.sets(st.integers(owners[-1], layers - 1), max_size=3))
    stages = draw(st.integers(1, 3))
    shape = PRESETS["toy"] | dict(
        num_hidden_layers=layers,
        num_nextn_predict_layers=stages,
        compress_ratios=tuple(ratios) + (0,) * stages,
        kv_source_layer_ids=tuple(owners),
        index_source_layer_ids=tuple(sorted(extra | set(owners))),
        candidate_source_layer_id=owners[-1],
        hidden_size=32 * draw(st.integers(1, 5)),
        head_dim=32 * draw(st.integers(1, 4)),
        q_lora_rank=draw(st.integers(1, 100)),
        o_lora_rank=draw(st.integers(1, 100)),
        hc_mult=draw(st.integers(1, 5)),
        sliding_window=draw(st.integers(1, 40)),
        n_routed_experts=draw(st.integers(2, 9)),
        engram_layer_ids=tuple(sorted(draw(st.sets(st.integers(0, layers - 1), max_size=2)))),
        engram_vocab_size=50,
        dspark_target_layer_ids=tuple(range(layers - draw(st.integers(1, 2)), layers)),
    )
    return ModelConfig(**shape, engram_num_embeddings=()).with_engram_rows()


@settings(max_examples=25, deadline=None)
@given(configs())
def test_any_shape_has_books_that_agree(config):
    assert built(config) == listed(config)
    assert params.parameter_count(config).value == total(t.count for t in tensors.tensors(config)).value
    assert checkpoint.checkpoint_bytes(config).value == sum(t.stored for t in tensors.tensors(config))
    check_formulas(all_lines(config), config)
    for layout in kept.LAYOUTS:
        owners = total(kept.owner_bytes_per_token(config, layout))
        assert owners.value == kept.kv_bytes_per_token(config, layout).value


@settings(max_examples=50, deadline=None)
@given(configs(), st.integers(0, 200))
def test_bytes_of_any_shape_grow_by_its_rate(config, length):
    def at(n: int) -> int:
        return kept.state_bytes(config, n).value

    assert at(length) == sum(line.value for line in kept.state_lines(config, length))
    assert at(length) <= at(length + 1)
    past = config.sliding_window + length
    assert at(past + 2) - at(past) == kept.kv_bytes_at(config, 2).value
    assert (
        at(past) - at(0) <= kept.kv_bytes_at(config, past).value + kept.swa_bytes_per_sequence_with_draft(config).value
    )


@settings(max_examples=50, deadline=None)
@given(configs(), st.integers(1, 5000))
def test_flops_of_any_shape_grow_with_the_context(config, context):
    def cost(n: int, **how) -> int:
        return flops.flop_decode(config, n, **how).value

    assert flops.flop_weights(config).value < cost(context) <= cost(context + 1)
    assert cost(context) <= cost(context, pool=False)
    within = min(context, flops.cand_positions(config).value)
    assert cost(within) == cost(within, pool=False)


def test_a_negative_length_is_refused():
    with pytest.raises(ValueError, match="length = -1"):
        kept.state_bytes(FLASH, -1)


@pytest.mark.parametrize("width", [80, 160])
def test_the_page(width):
    out = io.StringIO()
    print_books(FLASH, Console(file=out, width=width))
    text = out.getvalue()
    for expected in (
        "890",
        "B/token, FP4 main + FP4 index",
        "2,703,360",
        "551,566,180,464",
        "510,286,023,000",
        "510.29 GB",
    ):
        assert expected in text
    assert ("entries_per_token * main_entry_bytes" in text) == (width == 160)
    assert "…" not in text


def test_a_model_without_vision_tower_does_not_claim_one():
    names = {line.name for book in books(TINY) for line in book.lines}
    assert "parameter_count" in names
    assert not names & {"vision_tower_params", "total_params", "checkpoint_bytes", "ratio_vs_V4_Flash"}


def test_the_command():
    run = CliRunner().invoke
    flash = json.loads(run(app, ["ledger", "--preset", "flash", "--json"]).stdout)
    entry = flash["Kept for each token"]["kv_bytes_per_token"]
    assert entry == {
        "value": 890,
        "unit": "B/token, FP4 main + FP4 index",
        "formula": "main_bytes_per_token + index_bytes_per_token",
        "parts": {"main_bytes_per_token": 720, "index_bytes_per_token": 170},
    }
    assert flash == as_json(FLASH)
    tiny = run(app, ["ledger", "--config", str(GOLDEN / "v41_tiny" / "config.json"), "--json"])
    assert json.loads(tiny.stdout) == as_json(TINY)
    assert "Kept for each token" in run(app, ["ledger", "--preset", "toy"]).stdout
    assert isinstance(run(app, ["ledger", "--preset", "huge"]).exception, ConfigError)
    assert run(app, ["ledger", "--config", "missing.json"]).exit_code == 2
