"""Minimal models for the consumers of this folder, so that no test downloads a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = list[int | str]

VOCABULARY = 32
HEADS = 2
WIDTH = 4


def _value(name: str, kind: int, shape: Shape) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _save(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any]) -> Path:
    graph = helper.make_graph(
        nodes, "tiny", inputs, outputs, [numpy_helper.from_array(array, name) for name, array in weights.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def _table() -> Any:
    return np.random.default_rng(0).normal(size=(VOCABULARY, HEADS * WIDTH)).astype(np.float32)


def make_embedder(path: Path) -> Path:
    """Write a model with the inputs and the output of BERT, for fastembed and Optimum."""
    ids: Shape = ["batch", "sequence"]
    return _save(
        path,
        [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])],
        [_value(name, TensorProto.INT64, ids) for name in ("input_ids", "attention_mask", "token_type_ids")],
        [_value("last_hidden_state", TensorProto.FLOAT, [*ids, HEADS * WIDTH])],
        {"table": _table()},
    )


def make_text_model(folder: Path) -> Path:
    """Write a model of that kind with its configuration and tokenizer, as on Hugging Face. Return the ONNX file."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world"]
    tokens = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    special = [
        {"id": number, "content": word, "special": True, **dict.fromkeys(("single_word", "lstrip", "rstrip"), False)}
        | {"normalized": False}
        for number, word in enumerate(words)
        if word.startswith("[")
    ]
    parts = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    parts.append({"SpecialToken": {"id": "[SEP]", "type_id": 0}})
    documents: dict[str, Any] = {
        "config.json": {
            "model_type": "bert",
            "architectures": ["BertModel"],
            "hidden_size": HEADS * WIDTH,
            "num_attention_heads": HEADS,
            "num_hidden_layers": 1,
            "intermediate_size": WIDTH,
            "vocab_size": VOCABULARY,
            "pad_token_id": 0,
        },
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "model_max_length": 16, **tokens},
        "special_tokens_map.json": tokens,
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": special,
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": True,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": parts,
                "pair": [*parts, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {
                    word: {"id": word, "ids": [words.index(word)], "tokens": [word]} for word in ("[CLS]", "[SEP]")
                },
            },
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": "[UNK]",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": {word: number for number, word in enumerate(words)},
            },
        },
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    (folder / "onnx").mkdir()
    return make_embedder(folder / "onnx" / "model.onnx")


def make_decoder(path: Path) -> Path:
    """Write a decoder of one layer with a key-value cache, for onnxruntime-genai."""
    table = _table()
    cache: Shape = ["batch", HEADS, "past", WIDTH]
    total: Shape = ["batch", HEADS, "total", WIDTH]
    return _save(
        path,
        [
            helper.make_node("Gather", ["table", "input_ids"], ["x"]),
            helper.make_node("MatMul", ["x", "weights"], ["logits"]),
            helper.make_node("Reshape", ["x", "shape"], ["heads"]),
            helper.make_node("Transpose", ["heads"], ["new"], perm=[0, 2, 1, 3]),
            helper.make_node("Concat", ["past_key_values.0.key", "new"], ["present.0.key"], axis=2),
            helper.make_node("Concat", ["past_key_values.0.value", "new"], ["present.0.value"], axis=2),
        ],
        [
            _value("input_ids", TensorProto.INT64, ["batch", "sequence"]),
            _value("attention_mask", TensorProto.INT64, ["batch", "length"]),
            _value("past_key_values.0.key", TensorProto.FLOAT, cache),
            _value("past_key_values.0.value", TensorProto.FLOAT, cache),
        ],
        [
            _value("logits", TensorProto.FLOAT, ["batch", "sequence", VOCABULARY]),
            _value("present.0.key", TensorProto.FLOAT, total),
            _value("present.0.value", TensorProto.FLOAT, total),
        ],
        {"table": table, "weights": table.T.copy(), "shape": np.array([0, 0, HEADS, WIDTH])},
    )


def make_voice_detector(path: Path) -> Path:
    """Write a model with the inputs and outputs of Silero VAD 5, for sherpa-onnx."""
    state: Shape = [2, "batch", 128]
    return _save(
        path,
        [
            helper.make_node("Sigmoid", ["input"], ["likely"]),
            helper.make_node("ReduceMean", ["likely"], ["output"], axes=[1]),
            helper.make_node("Identity", ["state"], ["stateN"]),
        ],
        [
            _value("input", TensorProto.FLOAT, ["batch", "samples"]),
            _value("state", TensorProto.FLOAT, state),
            _value("sr", TensorProto.INT64, []),
        ],
        [_value("output", TensorProto.FLOAT, ["batch", 1]), _value("stateN", TensorProto.FLOAT, state)],
        {},
    )


def genai_config(path: Path, model: Path) -> Path:
    """Write the genai_config.json of the decoder, without session options."""
    decoder = {
        "filename": model.name,
        "head_size": WIDTH,
        "hidden_size": HEADS * WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "num_hidden_layers": 1,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    document = {
        "model": {"type": "llama", "vocab_size": VOCABULARY, **tokens, "context_length": 32, "decoder": decoder},
        "search": {"max_length": 8},
    }
    path.write_text(json.dumps(document))
    return path
