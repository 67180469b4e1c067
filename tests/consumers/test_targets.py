"""Exports in the systems that they are for: the settings are read back from the live session.

They are read from ONNX Runtime's own log if possible, so that the tests do not depend on what a consumer reports.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pytest

from ortune import Config, Export
from ortune.export import export, render
from ortune.export.comments import make_comment
from ortune.export.literals import KOTLIN
from ortune.export.provider_names import PLUGIN_LIBRARY
from ortune.export.transformers_js import DTYPES
from ortune.knobs import DEFAULT
from ortune.knobs.config import Plugin, alias_of
from ortune.knobs.plugin_options import spell_for_plugins
from ortune.knobs.providers import chain_of
from tests.conftest import TINY_CNN
from tests.consumers import tiny
from tests.consumers.fetch import TRANSFORMERS_JS, UNITY, find_node
from tests.consumers.running import TIMEOUT_S, consumers, draw_text, need, run, run_python
from tests.consumers.trace import read_sessions
from tests.records import make_record
from tests.test_export import CONFIGS
from tests.test_export_providers import NAMES, PLUGIN, RAPIDOCR
from tests.test_hostile_exports import LITERAL_TEXTS

pytestmark = pytest.mark.consumers

KOTLIN_COMPILER = "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler"

TUNED = Config(
    session_options={
        "intra_op_num_threads": 2,
        "inter_op_num_threads": 3,
        "execution_mode": "ORT_PARALLEL",
        "graph_optimization_level": "ORT_ENABLE_EXTENDED",
        "enable_mem_pattern": False,
        "enable_cpu_mem_arena": False,
        "use_deterministic_compute": True,
        "log_severity_level": 0,
    },
    session_config={
        "session.intra_op.allow_spinning": "0",
        "session.dynamic_block_base": "4",
        "session.use_device_allocator_for_initializers": "1",
    },
)
"""No setting is a default of ONNX Runtime or of a consumer. The log severity makes them readable from the log."""

LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_LAYOUT", "ORT_ENABLE_ALL"]

EVERY_OPTION = Config(
    session_options={
        **TUNED.session_options,
        "logid": "app",
        "log_verbosity_level": 1,
        "optimized_model_filepath": "optimized.onnx",
        "profile_file_prefix": "profile",
        "enable_profiling": True,
    },
    session_config=TUNED.session_config,
    run_config={"memory.enable_memory_arena_shrinkage": "cpu:0"},
    io_binding=True,
)
"""All options that any language has a setter for, except those in `CONFIGS`."""

CODE = {
    **CONFIGS,
    "every_option": EVERY_OPTION,
    "plugin": Config(
        providers=(("OpenVINOExecutionProvider", {"num_streams": "2"}), ("CPUExecutionProvider", {})),
        plugins={
            "OpenVINOExecutionProvider": Plugin(package="onnxruntime-ep-openvino", device_type="gpu", vendor="Intel")
        },
    ),
    **{level: Config(session_options={"graph_optimization_level": level}) for level in LEVELS},
}


def of(name: str, config: Config, model: Path = TINY_CNN) -> Export:
    return render(name, make_record(model, config), str(model))


def unsupported(done: Export) -> set[str]:
    return {line.split("=")[0] for line in done.unsupported}


def wanted(config: Config, done: Export) -> dict[str, Any]:
    """Return the settings that the consumer must have: all that the target supports."""
    settings = spell_for_plugins(config).settings
    return {name: value for name, value in settings.items() if name not in unsupported(done)}


def check_log(done: subprocess.CompletedProcess[str], expected: dict[str, Any]) -> None:
    """Check that a consumer created sessions, and that all have the expected options."""
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    sessions = read_sessions(done.stdout + done.stderr)
    assert sessions
    for read in sessions:
        assert {name: read.get(name) for name in expected} == expected


class TestTriton:
    @pytest.mark.parametrize("case", CODE)
    def test_the_model_config_holds_it(self, case: str) -> None:
        need("tritonclient.grpc")
        need("grpc")
        from google.protobuf import text_format
        from tritonclient.grpc.model_config_pb2 import ModelConfig

        config = CODE[case]
        done = of("triton", config)
        # The text is added to a file of the user.
        parsed = text_format.Parse('name: "m"\nmax_batch_size: 8\n' + done.text, ModelConfig())
        assert parsed.backend == "onnxruntime"
        parameters = {key: value.string_value for key, value in parsed.parameters.items()}
        found: dict[str, Any] = {}
        for name, key in {
            "intra_op_num_threads": "intra_op_thread_count",
            "inter_op_num_threads": "inter_op_thread_count",
        }.items():
            if key in parameters:
                found[name] = int(parameters.pop(key))
        for name, key in {
            "enable_cpu_mem_arena": "enable_mem_arena",
            "enable_mem_pattern": "enable_mem_pattern",
        }.items():
            if key in parameters:
                found[name] = parameters.pop(key) == "1"
        if "execution_mode" in parameters:
            found["execution_mode"] = ["ORT_SEQUENTIAL", "ORT_PARALLEL"][int(parameters.pop("execution_mode"))]
        found |= parameters
        level = parsed.optimization.graph.level
        if level:
            found["graph_optimization_level"] = {
                -1: "ORT_ENABLE_BASIC",
                1: "ORT_ENABLE_EXTENDED",
                2: "ORT_DISABLE_ALL",
            }[level]
        found |= self.read_devices(parsed, config, found)
        expected = wanted(config, done)
        # Without a level, Triton uses ORT_ENABLE_ALL.
        if expected.get("graph_optimization_level") == "ORT_ENABLE_ALL":
            del expected["graph_optimization_level"]
        expected.pop("providers", None)
        assert found == expected

    def read_devices(self, parsed: Any, config: Config, found: dict[str, Any]) -> dict[str, Any]:
        """Return the options of providers, from the accelerators, the instances and the parameters."""
        read: dict[str, Any] = {}
        groups = parsed.optimization.execution_accelerators
        for accelerator in groups.gpu_execution_accelerator:
            read |= {f"{accelerator.name}.{key}": value for key, value in accelerator.parameters.items()}
        if read.pop("tensorrt.precision_mode", "") == "FP16":
            read["tensorrt.trt_fp16_enable"] = "True"
        if number := found.pop("cudnn_conv_algo_search", ""):
            read["cuda.cudnn_conv_algo_search"] = ["EXHAUSTIVE", "HEURISTIC", "DEFAULT"][int(number)]
        (instances,) = parsed.instance_group
        assert instances.kind == (instances.KIND_GPU if instances.gpus else instances.KIND_CPU)
        used = [alias_of(name) for name, _ in config.providers if name != "CPUExecutionProvider"]
        read |= {f"{alias}.device_id": str(instances.gpus[0]) for alias in used if instances.gpus}
        if any(cpu_accelerator.name == "openvino" for cpu_accelerator in groups.cpu_execution_accelerator):
            read["openvino.device_type"] = "CPU"
        return read


class TestRapidOCR:
    PROGRAM = """
        import json, sys, yaml
        from pathlib import Path
        import rapidocr

        document = yaml.safe_load((Path(rapidocr.__file__).parent / "config.yaml").read_text())
        for number, part in enumerate(sys.argv[2:]):
            tuned = yaml.safe_load(Path(part).read_text())
            document["EngineConfig"]["onnxruntime"] = tuned["EngineConfig"]["onnxruntime"]
            path = Path(part).with_suffix(".whole.yaml")
            path.write_text(yaml.safe_dump(document))
            engine = rapidocr.RapidOCR(config_path=str(path))
            texts = engine(sys.argv[1]).txts
            for name in ("text_det", "text_cls", "text_rec"):
                options = getattr(engine, name).session.session.get_session_options()
                names = ("intra_op_num_threads", "inter_op_num_threads", "enable_cpu_mem_arena")
                read = {option: getattr(options, option) for option in names}
                print("READ", json.dumps({"config": number, "texts": texts, "read": read}))
        """

    def test_live_sessions_have_it(self, tmp_path: Path) -> None:
        """Thread counts are 1: RapidOCR ignores counts above the number of CPUs."""
        need("rapidocr")
        image = draw_text(tmp_path / "image.png", "HELLO")
        configs = [
            Config(session_options={"intra_op_num_threads": 1, "inter_op_num_threads": 1}),
            Config(session_options={"enable_cpu_mem_arena": False, "inter_op_num_threads": 1}),
            Config(session_options={"intra_op_num_threads": 1}, providers=chain_of("CUDAExecutionProvider")),
        ]
        paths = []
        for number, config in enumerate(configs):
            written = of("rapidocr", config)
            assert not written.unsupported
            paths.append(tmp_path / f"{number}.yaml")
            paths[-1].write_text(written.text)
        done = run_python(self.PROGRAM, image, *paths)
        assert done.returncode == 0, done.stderr
        answers = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("READ ")]
        assert len(answers) == 3 * len(configs)
        defaults = {"intra_op_num_threads": 0, "inter_op_num_threads": 0, "enable_cpu_mem_arena": True}
        for answer in answers:
            assert answer["texts"] == ["HELLO"]
            assert answer["read"] == {**defaults, **configs[answer["config"]].session_options}

    CHOICE = """
        import json, platform, sys, yaml
        from pathlib import Path
        import rapidocr
        from rapidocr.inference_engine.onnxruntime import provider_config
        from rapidocr.utils.parse_parameters import ParseParams

        document = yaml.safe_load((Path(rapidocr.__file__).parent / "config.yaml").read_text())
        # Each provider is available, on its own system.
        provider_config.get_device = lambda: "GPU"
        platform.version = lambda: "10.0.22631"
        for part in sys.argv[1:]:
            path = Path(part)
            document["EngineConfig"]["onnxruntime"] = yaml.safe_load(path.read_text())["EngineConfig"]["onnxruntime"]
            path.with_suffix(".whole.yaml").write_text(yaml.safe_dump(document))
            config = ParseParams.load(path.with_suffix(".whole.yaml")).EngineConfig.onnxruntime
            provider_config.get_available_providers = lambda: [path.stem, "CPUExecutionProvider"]
            systems = {"DmlExecutionProvider": "Windows", "CoreMLExecutionProvider": "Darwin"}
            platform.system = lambda: systems.get(path.stem, "Linux")
            print(json.dumps([[name, dict(own)] for name, own in provider_config.ProviderConfig(config).get_ep_list()]))
        """

    def test_it_requests_each_provider_with_its_options(self, tmp_path: Path) -> None:
        need("rapidocr")
        options = {"device_id": "1", "mode": "fast"}
        paths = []
        for name in RAPIDOCR:
            written = of("rapidocr", Config(providers=((name, options), ("CPUExecutionProvider", {}))))
            assert not written.unsupported
            paths.append(tmp_path / f"{name}.yaml")
            paths[-1].write_text(written.text)
        done = run_python(self.CHOICE, *paths)
        assert done.returncode == 0, done.stderr
        for name, line in zip(RAPIDOCR, done.stdout.splitlines(), strict=True):
            assert json.loads(line) == [
                [name, {"device_id": 1, "mode": "fast"}],
                ["CPUExecutionProvider", {"arena_extend_strategy": "kNextPowerOfTwo"}],
            ]


class TestFastembed:
    PROGRAM = """
        import sys
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType
        from tokenizers import Tokenizer, models, pre_tokenizers

        folder = sys.argv[1]
        words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "hello", "world"])}
        tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.save(folder + "/tokenizer.json")
        source = ModelSource(hf="local/tiny")
        TextEmbedding.add_custom_model(
            "local/tiny", PoolingType.MEAN, True, source, dim=8, model_file="model.onnx"
        )
        exec(open(sys.argv[2]).read())
        import json
        session = model.model.model
        options = session.get_session_options()
        names = ("intra_op_num_threads", "inter_op_num_threads", "enable_cpu_mem_arena")
        read = {name: getattr(options, name) for name in names}
        print(json.dumps([len(next(iter(model.embed(["hello world"])))), session.get_providers(), read]))
        """

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"intra_op_num_threads": 1, "inter_op_num_threads": 1}, {}),
            ({"intra_op_num_threads": 2, "enable_cpu_mem_arena": False}, {"inter_op_num_threads": 2}),
        ],
    )
    def test_the_code_runs(self, options: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
        need("fastembed")
        tiny.make_embedder(tmp_path / "model.onnx")
        (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 16, "pad_token": "[PAD]"}')
        (tmp_path / "config.json").write_text('{"pad_token_id": 0}')
        (tmp_path / "special_tokens_map.json").write_text("{}")
        written = of("fastembed", Config(session_options=options))
        assert not written.unsupported
        code = written.text.replace('"MODEL",', f'"local/tiny", specific_model_path={str(tmp_path)!r},')
        (tmp_path / "code.py").write_text(code)
        done = run_python(self.PROGRAM, tmp_path, tmp_path / "code.py")
        assert done.returncode == 0, done.stderr
        width, providers, read = json.loads(done.stdout)
        assert (width, providers) == (8, ["CPUExecutionProvider"])
        assert read == {"enable_cpu_mem_arena": True, **options, **expected}


class TestSherpaOnnx:
    PROGRAM = """
        import sys
        import numpy
        import sherpa_onnx

        config = sherpa_onnx.VadModelConfig()
        config.silero_vad.model, config.num_threads, config.provider = sys.argv[1], int(sys.argv[2]), sys.argv[3]
        detector = sherpa_onnx.VoiceActivityDetector(config, buffer_size_in_seconds=10)
        detector.accept_waveform(numpy.zeros(16000, dtype=numpy.float32))
        """

    def run(self, config: Config, folder: Path) -> tuple[subprocess.CompletedProcess[str], Export]:
        """Write the file, and run a program with the arguments in the comment of the file."""
        need("sherpa_onnx")
        model = tiny.make_voice_detector(folder / "model.onnx")
        written = export("sherpa-onnx", make_record(TINY_CNN, config), str(model), "r.json", folder / "provider.txt")
        said = re.search(r"num_threads=(\d+), provider=(\S+)", written.text)
        assert said
        return run_python(self.PROGRAM, model, said[1], said[2]), written

    def test_the_live_session_has_it(self, tmp_path: Path) -> None:
        done, written = self.run(TUNED, tmp_path)
        assert unsupported(written) == {"inter_op_num_threads", "execution_mode", "use_deterministic_compute"}
        check_log(done, wanted(TUNED, written))

    @pytest.mark.parametrize("level", LEVELS)
    def test_every_level(self, level: str, tmp_path: Path) -> None:
        config = Config(session_options={"graph_optimization_level": level, "log_severity_level": 0})
        done, written = self.run(config, tmp_path)
        assert not written.unsupported
        check_log(done, config.session_options)

    def test_a_thread_count_that_was_not_tuned(self, tmp_path: Path) -> None:
        """Voice detection takes any count. Recognition and speech check it at the start."""
        need("sherpa_onnx")
        for name in ("model.onnx", "tokens.txt"):
            (tmp_path / name).write_text("")
        said = re.search(r"num_threads=(\d+)", of("sherpa-onnx", DEFAULT).text)
        assert said
        code = """
            import sys
            import sherpa_onnx as sherpa

            voice = sherpa.OfflineTtsVitsModelConfig(model="model.onnx", tokens="tokens.txt", data_dir="")
            model = sherpa.OfflineTtsModelConfig(vits=voice, num_threads=int(sys.argv[1]))
            print(sherpa.OfflineTtsConfig(model=model).validate())
            """
        assert run_python(code, 1, cwd=tmp_path).stdout == "True\n"
        assert run_python(code, said[1], cwd=tmp_path).stdout == "True\n"


class TestGenai:
    PROGRAM = """
        import sys
        import numpy
        import onnxruntime_genai as og

        model = og.Model(og.Config(sys.argv[1]))
        parameters = og.GeneratorParams(model)
        parameters.set_search_options(max_length=6)
        generator = og.Generator(model, parameters)
        generator.append_tokens(numpy.array([[3, 4]], dtype=numpy.int32))
        while not generator.is_done():
            generator.generate_next_token()
        print("TOKENS", len(generator.get_sequence(0)))
        """

    def write(self, config: Config, folder: Path) -> Export:
        """Write a model and its genai_config.json, and add the tuned settings."""
        need("onnxruntime_genai")
        model = tiny.make_decoder(folder / "model.onnx")
        path = tiny.genai_config(folder / "genai_config.json", model)
        return export("genai", make_record(TINY_CNN, config), str(model), "r.json", path)

    @pytest.mark.parametrize("case", CODE)
    def test_it_is_accepted(self, case: str, tmp_path: Path) -> None:
        self.write(CODE[case], tmp_path)
        code = "import sys, onnxruntime_genai; onnxruntime_genai.Config(sys.argv[1]); print('read')"
        assert run_python(code, tmp_path).stdout == "read\n"

    def test_the_live_session_has_it(self, tmp_path: Path) -> None:
        written = self.write(TUNED, tmp_path)
        assert unsupported(written) == {"execution_mode", "use_deterministic_compute"}
        done = run_python(self.PROGRAM, tmp_path)
        check_log(done, wanted(TUNED, written))
        assert "TOKENS 6" in done.stdout

    def test_the_default_thread_count_is_that_of_onnxruntime(self, tmp_path: Path) -> None:
        self.write(Config(session_options={"log_severity_level": 0}), tmp_path)
        check_log(run_python(self.PROGRAM, tmp_path), {"intra_op_num_threads": 0})

    @pytest.mark.parametrize("level", [level for level in LEVELS if level != "ORT_ENABLE_LAYOUT"])
    def test_every_level(self, level: str, tmp_path: Path) -> None:
        config = Config(session_options={"graph_optimization_level": level, "log_severity_level": 0})
        assert not self.write(config, tmp_path).unsupported
        check_log(run_python(self.PROGRAM, tmp_path), config.session_options)

    def test_run_options_arrive(self, tmp_path: Path) -> None:
        """An invalid entry fails, which shows that the entry reaches ONNX Runtime."""
        for text, fault in (("cpu:0", ""), ("nonsense:0", "Unsupported device")):
            written = self.write(Config(run_config={"memory.enable_memory_arena_shrinkage": text}), tmp_path)
            assert not written.unsupported
            done = run_python(self.PROGRAM, tmp_path)
            assert (done.returncode == 0) == (not fault), done.stderr
            assert fault in done.stderr

    @pytest.mark.parametrize("provider", NAMES)
    def test_providers_go_by_its_names(self, provider: str, tmp_path: Path) -> None:
        """The error for a provider that is not in the build differs from that for an unknown name."""
        written = self.write(Config(providers=((provider, {}), ("CPUExecutionProvider", {}))), tmp_path)
        done = run_python(self.PROGRAM, tmp_path)
        assert "Unknown provider name" not in done.stderr
        if provider != "AzureExecutionProvider":  # which is in onnxruntime's CPU package
            assert ("providers" in unsupported(written)) == (done.returncode == 0)


@functools.cache
def read_vespa_tags() -> frozenset[str]:
    """Return the names of the elements that pyvespa knows."""
    code = "import json; from vespa.configuration import services; print(json.dumps(services.services_tags))"
    return frozenset(json.loads(run_python(code).stdout))


class TestVespa:
    @pytest.mark.parametrize("case", CODE)
    def test_its_names_are_those_of_pyvespa(self, case: str) -> None:
        """Only Vespa itself checks a whole file: pyvespa has the names of its elements."""
        need("vespa")
        root = ElementTree.fromstring(of("vespa", CODE[case]).text)
        names = {element.tag for element in root.iter()}
        known = read_vespa_tags()
        assert names - {"transformer-model", "tokenizer-model"} <= known, names - known


class TestOptimum:
    def read_function(self, file: str, name: str) -> ast.FunctionDef:
        """Return a function of the package, which cannot be imported without torch."""
        module = ast.parse((need("optimum.onnxruntime") / file).read_text())
        return next(node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name == name)

    @pytest.mark.parametrize("name", ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"])
    @pytest.mark.parametrize("io_binding", [False, True])
    def test_its_arguments_are_those_of_the_source(self, name: str, io_binding: bool) -> None:
        """The function of the package that reads the providers returns those of the config."""
        known = {argument.arg for argument in self.read_function("modeling.py", "from_pretrained").args.args}
        chain = tuple((provider, {"device_id": "0"} if provider == name else {}) for provider, _ in chain_of(name))
        text = of("optimum", Config(providers=chain, io_binding=io_binding)).text
        (call,) = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and len(node.keywords) > 2]
        used = {str(keyword.arg): keyword.value for keyword in call.keywords}
        # The classes pass file_name on to the functions that find the model.
        assert set(used) - {"file_name"} <= known
        names: dict[str, Any] = {"validate_provider_availability": lambda provider: None}
        function = self.read_function("utils.py", "prepare_providers_and_provider_options")
        source = ast.unparse(ast.Module([function], []))
        exec("from __future__ import annotations\n" + source, names)  # a function of the consumer, unchanged
        arguments = {key: ast.literal_eval(value) for key, value in used.items() if key.startswith("provider")}
        providers, options = names[function.name](**arguments)
        assert list(zip(providers, options, strict=True)) == [*chain][: len(providers)]
        assert len(providers) >= len(chain) - 1  # ONNX Runtime adds the CPU provider
        assert ("use_io_binding" in used) == (io_binding or name == "CUDAExecutionProvider")
        if "use_io_binding" in used:
            assert ast.literal_eval(used["use_io_binding"]) == io_binding

    def test_the_code_runs(self, tmp_path: Path) -> None:
        need("optimum.onnxruntime")
        pytest.importorskip("torch")
        model = tiny.make_embedder(tmp_path / "model.onnx")
        (tmp_path / "config.json").write_text(
            json.dumps({"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8, "vocab_size": 32})
        )
        written = of("optimum", TUNED, model)
        assert not written.unsupported
        after = """
import numpy
ids = numpy.ones((1, 4), dtype=numpy.int64)
assert model(input_ids=ids, attention_mask=ids, token_type_ids=ids).last_hidden_state.shape == (1, 4, 8)
"""
        check_log(run([sys.executable, "-P", "-c", written.text + after]), wanted(TUNED, written))


class TestSentenceTransformers:
    @pytest.mark.parametrize("name", ["model.onnx", "other.onnx"])
    def test_the_code_runs(self, name: str, tmp_path: Path) -> None:
        """The file may be in the folder of the configuration, or in its folder `onnx`."""
        need("sentence_transformers")
        need("optimum.onnxruntime")
        model = tiny.make_text_model(tmp_path)
        if name != model.name:
            model = model.rename(tmp_path / name)
        written = of("sentence-transformers", TUNED, model)
        assert not written.unsupported
        after = """
assert model.encode(["hello world", "hello"]).shape == (2, 8)
"""
        check_log(run([sys.executable, "-P", "-c", written.text + after]), wanted(TUNED, written))

    def test_io_binding(self, tmp_path: Path) -> None:
        need("sentence_transformers")
        need("optimum.onnxruntime")
        config = Config(session_options={"intra_op_num_threads": 2, "log_severity_level": 0}, io_binding=True)
        written = of("sentence-transformers", config, tiny.make_text_model(tmp_path))
        assert not written.unsupported
        after = """
assert model.encode(["hello world", "hello"]).shape == (2, 8)
assert model[0].auto_model.use_io_binding
"""
        check_log(run([sys.executable, "-P", "-c", written.text + after]), config.session_options)

    def test_several_providers(self, tmp_path: Path) -> None:
        """Optimum gets all of them with their options. None is in ONNX Runtime's package for CPUs."""
        need("sentence_transformers")
        need("optimum.onnxruntime")
        written = of("sentence-transformers", CONFIGS["cuda"], tiny.make_text_model(tmp_path))
        assert not written.unsupported
        before = """
from unittest import mock
from optimum.onnxruntime import ORTModelForFeatureExtraction
function = mock.patch.object(ORTModelForFeatureExtraction, "from_pretrained", side_effect=KeyboardInterrupt)
called = function.start()
"""
        after = """
except KeyboardInterrupt:
    import json
    given = called.call_args.kwargs
    print(json.dumps([*zip(given["providers"], given["provider_options"])]))
"""
        code = written.text.replace("ort.preload_dlls()", "pass").replace("\nmodel = ", "\ntry:\n  model = ")
        done = run([sys.executable, "-P", "-c", before + code + after])
        assert done.returncode == 0, done.stderr
        providers = json.loads(done.stdout.splitlines()[-1])
        assert [(name, own) for name, own in providers] == list(CONFIGS["cuda"].providers)

    def test_another_file_is_not_made(self, tmp_path: Path) -> None:
        need("sentence_transformers")
        need("optimum.onnxruntime")
        model = tiny.make_text_model(tmp_path)
        written = of("sentence-transformers", DEFAULT, model)
        done = run([sys.executable, "-P", "-c", written.text.replace("model.onnx", "gone.onnx")])
        assert done.returncode != 0
        assert "gone.onnx" in done.stderr


class TestJavaScript:
    def run(self, config: Config, folder: Path) -> tuple[subprocess.CompletedProcess[str], Export]:
        """Run the file with an additional line that calls its function."""
        modules = consumers() / "node_modules"
        if not (modules / "onnxruntime-node").is_dir():
            pytest.skip(f"onnxruntime-node is not in {modules}")
        node = find_node()
        if node is None:
            pytest.skip("node is not installed")
        written = of("javascript", config)
        path = folder / "session.js"
        path.write_text(written.text + "createSession().then(session => console.log(session.inputNames[0]));\n")
        return run([*node, path], NODE_PATH=str(modules)), written

    def test_the_live_session_has_it(self, tmp_path: Path) -> None:
        done, written = self.run(TUNED, tmp_path)
        assert unsupported(written) == {"use_deterministic_compute"}
        check_log(done, wanted(TUNED, written))
        assert done.stdout == "image\n"

    @pytest.mark.parametrize("level", LEVELS)
    def test_every_level(self, level: str, tmp_path: Path) -> None:
        config = Config(session_options={"graph_optimization_level": level, "log_severity_level": 0})
        check_log(self.run(config, tmp_path)[0], config.session_options)

    def test_an_invalid_entry_fails(self, tmp_path: Path) -> None:
        """This shows that the entry reaches ONNX Runtime."""
        config = Config(
            session_options={"intra_op_num_threads": 2},
            session_config={"session.intra_op_thread_affinities": "nonsense"},
        )
        done, _ = self.run(config, tmp_path)
        assert done.returncode != 0
        assert "affinity" in done.stderr.lower()


class TestCpp:
    def headers(self) -> Path:
        path = consumers() / UNITY / "headers"
        if not path.is_dir():
            pytest.skip(f"there are no C++ headers in {path}")
        if shutil.which("g++") is None:
            pytest.skip("g++ is not installed")
        return path

    def source(self, configs: dict[str, Config], path: Path) -> Path:
        # With its include guard, the header is empty inside the functions.
        functions = [f"void make_{case}() {{\n{of('cpp', config).text}}}\n" for case, config in configs.items()]
        calls = "".join(f"make_{case}();" for case in configs)
        path.write_text(f"#include <onnxruntime_cxx_api.h>\n{''.join(functions)}int main() {{ {calls} }}\n")
        return path

    def test_it_compiles(self, tmp_path: Path) -> None:
        headers = self.headers()
        source = self.source(CODE, tmp_path / "all.cpp")
        done = run(["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{headers}", source])
        assert done.returncode == 0, done.stderr

    def compile(self, source: Path, folder: Path) -> Path:
        """Compile and link with the library of the Python package."""
        if sys.platform != "linux":
            pytest.skip("the library has its name on Linux")
        libraries = sorted((need("onnxruntime") / "capi").glob("libonnxruntime.so.*"))
        if not libraries:
            pytest.skip("this onnxruntime has no shared library")
        library = folder / "libonnxruntime.so.1"
        library.symlink_to(libraries[0])
        flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{self.headers()}", f"-Wl,-rpath,{folder}"]
        done = run(["g++", source, library, *flags, "-o", folder / "program"])
        assert done.returncode == 0, done.stderr
        return folder / "program"

    def test_the_live_session_has_it(self, tmp_path: Path) -> None:
        self.headers()
        program = self.compile(self.source({"tuned": TUNED}, tmp_path / "tuned.cpp"), tmp_path)
        written = of("cpp", TUNED)
        assert not written.unsupported
        check_log(run([program]), wanted(TUNED, written))

    @pytest.mark.parametrize("options", [{}, {"device_id": "0"}], ids=["without_options", "with_options"])
    def test_the_library_knows_each_provider(self, options: dict[str, str], tmp_path: Path) -> None:
        """Its error for a provider that is not in the build differs from that for a name that it does not know."""
        self.headers()
        functions, calls = "", ""
        for number, name in enumerate(NAMES):
            config = Config(providers=((name, options), ("CPUExecutionProvider", {})))
            functions += f"void make_{number}() {{\n{of('cpp', config).text}}}\n"
            calls += f"    run({number}, make_{number});\n"
        source = tmp_path / "providers.cpp"
        source.write_text(
            "#include <onnxruntime_cxx_api.h>\n#include <iostream>\n"
            f"{functions}void run(int number, void (*make)()) {{\n"
            '    std::cout << number << " ";\n'
            '    try { make(); std::cout << "created\\n"; }\n'
            '    catch (const Ort::Exception& error) { std::cout << error.what() << "\\n"; }\n'
            f"}}\nint main() {{\n{calls}}}\n"
        )
        done = run([self.compile(source, tmp_path)])
        assert done.returncode == 0, done.stderr
        answers = dict(line.split(" ", 1) for line in done.stdout.splitlines() if re.match(r"\d+ ", line))
        assert len(answers) == len(NAMES)
        absent = re.compile(r"not (supported|enabled) in this build|Failed to load (shared )?library")
        for number, name in enumerate(NAMES):
            answer = answers[str(number)]
            assert answer == "created" or absent.search(answer), (name, answer)
        assert "Failed to load library" in answers[str(NAMES.index(PLUGIN))]

    def test_the_code_for_plugins_adds_a_plugin(self, tmp_path: Path) -> None:
        """QNN has a backend for the CPU. Without the option, it does not find one, which shows that options arrive."""
        library = next(need("onnxruntime_qnn").glob("libonnxruntime_providers_qnn.so"), None)
        if library is None:
            pytest.skip("this onnxruntime_qnn has no library for Linux")
        functions = ""
        for number, options in enumerate(({"backend_type": "htp"}, {})):
            text = of("cpp", Config(providers=((PLUGIN, options), ("CPUExecutionProvider", {})))).text
            text = text.replace(PLUGIN, "QNNExecutionProvider").replace(PLUGIN_LIBRARY, str(library))
            functions += f"void make_{number}() {{\n{text}}}\n"
        source = tmp_path / "plugin.cpp"
        source.write_text(
            f"#include <onnxruntime_cxx_api.h>\n#include <iostream>\n{functions}"
            "int main(int n, char**) {\n"
            '    try { n > 1 ? make_1() : make_0(); std::cout << "created\\n"; }\n'
            '    catch (const Ort::Exception& error) { std::cout << error.what() << "\\n"; }\n'
            "}\n"
        )
        program = self.compile(source, tmp_path)
        assert run([program]).stdout.endswith("created\n")
        assert "backend path" in run([program, "without"]).stdout


class TestTransformersJs:
    """In Node.js. `test_browser_targets.py` runs it in a browser."""

    def run(self, config: Config, folder: Path) -> tuple[subprocess.CompletedProcess[str], Export]:
        """Run the module with additional lines that create the pipeline and use it."""
        modules, node = consumers() / "node_modules", find_node()
        if not (modules / TRANSFORMERS_JS).is_dir():
            pytest.skip(f"{TRANSFORMERS_JS} is not in {modules}")
        if node is None:
            pytest.skip("node is not installed")
        (folder / "tiny").mkdir()
        model = tiny.make_text_model(folder / "tiny")
        for path in modules.iterdir():
            (folder / "node_modules").mkdir(exist_ok=True)
            (folder / "node_modules" / path.name).symlink_to(path)
        # A package for images, with native code.
        (folder / "node_modules" / "sharp").mkdir()
        (folder / "node_modules" / "sharp" / "index.mjs").write_text("export default () => null;")
        (folder / "node_modules" / "sharp" / "package.json").write_text('{"exports": "./index.mjs"}')
        written = of("transformers-js", config, model)
        code = written.text.replace('"MODEL"', '"tiny"') + (
            "env.allowRemoteModels = false;\n"
            f"env.localModelPath = {json.dumps(str(folder) + '/')};\n"
            "const extract = await createPipeline();\n"
            'console.log(JSON.stringify((await extract("hello world")).dims));\n'
        )
        path = folder / "pipeline.mjs"
        path.write_text(code if "env, pipeline" in code else code.replace("{ pipeline }", "{ env, pipeline }"))
        return run([*node, "--preserve-symlinks", "--preserve-symlinks-main", path]), written

    def test_the_live_session_has_it(self, tmp_path: Path) -> None:
        done, written = self.run(TUNED, tmp_path)
        assert unsupported(written) == {"use_deterministic_compute"}
        check_log(done, wanted(TUNED, written))
        assert "[1,4,8]" in done.stdout

    @pytest.mark.parametrize("level", LEVELS)
    def test_every_level(self, level: str, tmp_path: Path) -> None:
        config = Config(session_options={"graph_optimization_level": level, "log_severity_level": 0})
        check_log(self.run(config, tmp_path)[0], config.session_options)

    @pytest.mark.parametrize(("name", "dtype"), [("model_quantized", "q8"), ("model_q4f16", "q4f16"), ("m", "fp32")])
    def test_the_dtype_is_that_of_the_file(self, name: str, dtype: str) -> None:
        """Without one, browsers would load the file with 8-bit weights, and Node.js that with 32 bits."""
        text = render("transformers-js", make_record(TINY_CNN, DEFAULT), f"onnx/{name}.onnx").text
        assert f'dtype: "{dtype}"' in text
        sources = consumers() / "node_modules" / TRANSFORMERS_JS / "dist"
        ends = re.findall(r"\[DATA_TYPES\.(\w+)\]: \"(\w*)\"", (sources / "transformers.node.mjs").read_text())
        assert dict(ends).items() >= {dtype: end for end, dtype in DTYPES.items()}.items()
        assert dict(ends)["fp32"] == ""


class TestJava:
    def test_it_compiles(self, tmp_path: Path) -> None:
        classes = consumers() / UNITY / "classes.jar"
        if not classes.is_file():
            pytest.skip(f"there is no {classes}")
        if shutil.which("javac") is None:
            pytest.skip("javac is not installed")
        imports: set[str] = set()
        methods = []
        providers = {
            f"provider_{number}": Config(providers=((name, {"device_id": "1"}), ("CPUExecutionProvider", {})))
            for number, name in enumerate(NAMES)
        }
        many = {f"option_{number}": "1" for number in range(11)}
        providers["many"] = Config(providers=(("QNNExecutionProvider", many), ("CPUExecutionProvider", {})))
        for case, config in {**CODE, **providers}.items():
            lines = of("java", config).text.splitlines()
            imports |= {line for line in lines if line.startswith("import ")}
            body = "\n".join(line for line in lines if not line.startswith("import "))
            methods.append(f"static void _{case}() throws OrtException {{\n{body}\n}}\n")
        source = tmp_path / "Sessions.java"
        source.write_text("\n".join(sorted(imports)) + "\nclass Sessions {\n" + "".join(methods) + "}\n")
        done = run(["javac", "-Xlint:all", "-Werror", "-cp", classes, "-d", tmp_path, source])
        assert done.returncode == 0, done.stderr


class TestKotlin:
    def compile(self, source: Path) -> subprocess.CompletedProcess[str]:
        """Compile a file into its folder. Warnings are errors."""
        classes, library = consumers() / UNITY / "classes.jar", consumers() / "kotlin-compiler" / "lib"
        for path in (classes, library):
            if not path.exists():
                pytest.skip(f"there is no {path}")
        if shutil.which("java") is None:
            pytest.skip("java is not installed")
        compiler = ["java", "-cp", os.pathsep.join(map(str, library.iterdir())), KOTLIN_COMPILER]
        options = ["-no-stdlib", "-no-reflect", "-Werror", "-d", source.parent]
        return run([*compiler, *options, "-cp", f"{classes}{os.pathsep}{library / 'kotlin-stdlib.jar'}", source])

    def test_it_compiles(self, tmp_path: Path) -> None:
        imports: set[str] = set()
        functions = []
        providers = {
            f"provider_{number}_{len(options)}": Config(providers=((name, options), ("CPUExecutionProvider", {})))
            for number, name in enumerate(NAMES)
            for options in ({}, {"an_option": "$1"})
        }
        for case, config in {**CODE, **providers}.items():
            lines = of("kotlin", config).text.splitlines()
            imports |= {line for line in lines if line.startswith("import ")}
            body = "\n".join(line for line in lines if not line.startswith("import "))
            # Each new value of the snippet is for the program, and the compiler warns if nothing uses it.
            names = re.findall(r"^val (\w+) = ", body, re.MULTILINE)
            functions.append(f"fun _{case}(): List<Any> {{\n{body}\nreturn listOf({', '.join(names)})\n}}\n")
        source = tmp_path / "Sessions.kt"
        source.write_text("\n".join(sorted(imports)) + "\n" + "".join(functions))
        done = self.compile(source)
        assert done.returncode == 0, done.stderr

    def test_it_reads_literals_and_comments(self, tmp_path: Path) -> None:
        source = tmp_path / "Texts.kt"
        lines = [f"put({KOTLIN.quote(text)}) {make_comment('//', text)}\nn++" for text in LITERAL_TEXTS]
        put = 'fun put(text: String) = System.out.write((text + "\\u0000").toByteArray())\n'
        source.write_text(f"{put}fun main() {{\nvar n = 0\n" + "\n".join(lines) + "\nput(n.toString())\n}\n")
        done = self.compile(source)
        assert done.returncode == 0, done.stderr
        library = consumers() / "kotlin-compiler" / "lib" / "kotlin-stdlib.jar"
        command = ["java", "-cp", f"{tmp_path}{os.pathsep}{library}", "TextsKt"]
        read = subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S).stdout
        assert read.decode().split("\0")[:-1] == [*LITERAL_TEXTS, str(len(LITERAL_TEXTS))]


class TestCSharp:
    VARIABLES: ClassVar = {
        "options": "SessionOptions",
        "runOptions": "RunOptions",
        "session": "InferenceSession",
        "cuda": "OrtCUDAProviderOptions",
        "tensorrt": "OrtTensorRTProviderOptions",
        "rocm": "OrtROCMProviderOptions",
    }

    def types(self) -> dict[str, str]:
        """Return the source of each public type of the API."""
        folder = consumers() / UNITY / "Runtime"
        if not folder.is_dir():
            pytest.skip(f"there are no C# sources in {folder}")
        found: dict[str, str] = {}
        kind = re.compile(r"^    public [\w ]*\b(?:class|struct|enum) (\w+)\b(.*?)^    \}", re.MULTILINE | re.DOTALL)
        for path in sorted(folder.glob("*.cs")):
            for name, body in kind.findall(path.read_text(encoding="utf-8-sig").replace("\r", "")):
                found[name] = found.get(name, "") + body
        return found

    @pytest.mark.parametrize("case", [*CODE, *NAMES])
    def test_its_names_are_those_of_the_sources(self, case: str) -> None:
        types = self.types()
        provider = Config(providers=((case, {"device_id": "0"}), ("CPUExecutionProvider", {})))
        text = of("csharp", CODE.get(case, provider)).text
        code = "\n".join(line.split("  // ")[0] for line in text.splitlines() if not line.startswith("//"))
        code = re.sub(r'"[^"]*"', '""', code)
        used = re.findall(r"^(?:var \w+ = )?(\w+)\.(\w+)", code, re.MULTILINE)
        for kind, body in re.findall(r"new (\w+) \{([^}]*)\}", code):
            used += [(kind, member) for member in re.findall(r"(\w+) = ", body)]
        for variable, member in used:
            kind = self.VARIABLES.get(variable, variable)
            assert re.search(rf"public [\w<>?, ]*\b{member}\b\s*[({{;]", types[kind]), (kind, member)
        for kind, value in re.findall(r"= (\w+)\.(\w+);", code):
            assert re.search(rf"\b{value}\b", types[kind]), (kind, value)
        made = set(re.findall(r"\bnew (\w+)", code)) | set(re.findall(r"\((\w+)\)\d", code))
        assert made >= {"SessionOptions", "InferenceSession"}
        assert made - {"Dictionary"} <= set(types)

    def test_plugins_are_added_by_their_devices(self) -> None:
        types = self.types()
        text = of("csharp", Config(providers=((PLUGIN, {}), ("CPUExecutionProvider", {})))).text
        assert "device.EpName == " in text and re.search(r"public string EpName\b", types["OrtEpDevice"])
        assert "GetEpDevices()" in text and re.search(
            r"public IReadOnlyList<OrtEpDevice> GetEpDevices\(", types["OrtEnv"]
        )
        overload = (
            r"AppendExecutionProvider\(OrtEnv env, IReadOnlyList<OrtEpDevice> epDevices,\s+IReadOnlyDictionary<string"
        )
        assert re.search(overload, types["SessionOptions"])


def test_the_folder_has_the_packages() -> None:
    """Without the packages, most of these tests would be skipped silently."""
    folder = consumers()
    assert {path.name for path in folder.iterdir()} >= {"kotlin-compiler", "node_modules", UNITY}
    modules = folder / "node_modules"
    for name in ("onnxruntime-node", "onnxruntime-web", TRANSFORMERS_JS):
        assert any((modules / name / "dist").iterdir())
    assert any((folder / UNITY / "headers").iterdir())
