"""Exports for browsers, in a headless Chromium: the options are read back from ONNX Runtime's log in the page."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ortune import Config, Export
from ortune.export import render
from ortune.knobs import ThreadPool
from tests.browser import CHROMIUM, DRIVER, Browser
from tests.conftest import TINY_CNN
from tests.consumers.fetch import TRANSFORMERS_JS
from tests.consumers.running import consumers
from tests.consumers.test_targets import LEVELS, TUNED, unsupported, wanted
from tests.consumers.tiny import make_text_model
from tests.consumers.trace import read_sessions
from tests.records import make_record

pytestmark = pytest.mark.consumers

Run = Callable[..., tuple[dict[str, Any], Export]]

PAGE = """\
<!DOCTYPE html>
<meta charset="utf-8">
<script type="importmap">
{{"imports": {{
  "onnxruntime-web/wasm": "/node_modules/onnxruntime-web/dist/ort.wasm.min.mjs",
  "onnxruntime-web/webgpu": "/node_modules/onnxruntime-web/dist/ort.webgpu.min.mjs",
  "onnxruntime-common": "/node_modules/onnxruntime-common/dist/esm/index.js",
  "@huggingface/transformers": "/node_modules/@huggingface/transformers/dist/transformers.web.js"
}}}}
</script>
<script>
const lines = [];
let workers = 0;
window.Worker = class extends Worker {{
  constructor(...words) {{ super(...words); workers++; }}
}};
for (const name of ["log", "info", "warn", "error"]) console[name] = (...words) => lines.push(words.join(" "));
</script>
<script type="module">
const answer = {{isolated: self.crossOriginIsolated, error: ""}};
try {{
{script}
}} catch (error) {{
  answer.error = String(error);
}}
answer.workers = workers;
answer.log = lines.join("\\n");
window.answer = JSON.stringify(answer);
document.documentElement.dataset.ready = "1";
</script>
"""

WEB = """\
  const tuned = await import("./session.mjs");
  const session = await tuned.createSession();
  const ort = await import(tuned.build);
  const image = new ort.Tensor("float32", new Float32Array(3 * 32 * 32).fill(0.5), [1, 3, 32, 32]);
  const outputs = await session.run({image}, ...(tuned.runOptions ? [tuned.runOptions] : []));
  answer.threads = ort.env.wasm.numThreads;
  answer.outputs = Object.fromEntries(Object.entries(outputs).map(([name, each]) => [name, [...each.data]]));\
"""


def check(answer: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check that a page ran the model in one session, which has the expected options."""
    assert not answer["error"]
    (session,) = read_sessions(answer["log"])
    own = {name: value for name, value in expected.items() if name != "intra_op_num_threads"}
    assert {name: session.get(name) for name in own} == own
    image = np.full((1, 3, 32, 32), 0.5, dtype=np.float32)
    plain = onnxruntime.InferenceSession(str(TINY_CNN), providers=["CPUExecutionProvider"])
    for output, values in zip(plain.get_outputs(), plain.run(None, {"image": image}), strict=True):
        np.testing.assert_allclose(answer["outputs"][output.name], np.ravel(values), atol=1e-5)


TRANSFORMERS = """\
  const {env} = await import("@huggingface/transformers");
  env.allowRemoteModels = false;
  env.allowLocalModels = true;
  env.localModelPath = "/";
  env.useBrowserCache = false;
  env.useWasmCache = false;
  // By default, these files come from another host.
  env.backends.onnx.wasm.wasmPaths = location.origin + "/node_modules/onnxruntime-web/dist/";
  const tuned = await import("./session.mjs");
  const extract = await tuned.createPipeline();
  answer.dims = (await extract("hello world")).dims;
  answer.threads = env.backends.onnx.wasm.numThreads;\
"""


class Pages(http.server.SimpleHTTPRequestHandler):
    """Serves a folder. Its pages are isolated from other origins unless their path contains `shared`."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        if "shared" not in self.path:
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM or not DRIVER:
        pytest.skip("Chromium is not installed")
    started = Browser()
    yield started
    started.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the packages and the model."""
    modules = consumers() / "node_modules"
    if not (modules / "onnxruntime-web").is_dir():
        pytest.skip(f"onnxruntime-web is not in {modules}")
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(TINY_CNN, tmp_path / "model.onnx")
    return tmp_path


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Pages, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def open_page(browser: Browser, url: str, page: Path, script: str) -> dict[str, Any]:
    """Write and open a page, and return its answer."""
    page.write_text(PAGE.format(script=script))
    browser.open(f"{url}/{page.name}")
    answer: dict[str, Any] = json.loads(browser.run("return window.answer"))
    return answer


class TestOnnxruntimeWeb:
    @pytest.fixture
    def run(self, browser: Browser, folder: Path, url: str) -> Run:
        def run(
            config: Config, page: str = "page.html", change: Callable[[str], str] = str
        ) -> tuple[dict[str, Any], Export]:
            written = render("onnxruntime-web", make_record(TINY_CNN, config), "model.onnx")
            build = re.findall(r'"(onnxruntime-web/\w+)";', written.text)[0]
            (folder / "session.mjs").write_text(f'{change(written.text)}export const build = "{build}";\n')
            return open_page(browser, url, folder / page, WEB), written

        return run

    def test_the_live_session_has_it(self, run: Run) -> None:
        answer, written = run(TUNED)
        assert answer["isolated"]
        assert unsupported(written) == {
            "inter_op_num_threads",
            "execution_mode",
            "use_deterministic_compute",
            "session.intra_op.allow_spinning",
            "session.dynamic_block_base",
        }
        # The caller is one of the threads.
        assert (answer["threads"], answer["workers"]) == (2, 1)
        check(answer, {**wanted(TUNED, written), "use_per_session_threads": False})

    def test_the_default_has_the_memory_pattern(self, run: Run) -> None:
        """It is off by default in onnxruntime-web."""
        answer, written = run(Config(session_options={"log_severity_level": 0}))
        assert not written.unsupported
        check(answer, {"enable_mem_pattern": True})

    @pytest.mark.parametrize("level", LEVELS)
    def test_every_level(self, level: str, run: Run) -> None:
        config = Config(session_options={"graph_optimization_level": level, "log_severity_level": 0})
        answer, written = run(config)
        assert not written.unsupported
        check(answer, config.session_options)

    def test_webgpu(self, run: Run) -> None:
        """Without a GPU, onnxruntime-web runs the model on the CPU."""
        options = {"preferredLayout": "NHWC", "validationMode": "disabled"}
        config = Config(
            session_options={"log_severity_level": 0},
            providers=(("WebGpuExecutionProvider", options), ("CPUExecutionProvider", {})),
        )
        answer, written = run(config)
        assert not written.unsupported
        assert 'from "onnxruntime-web/webgpu"' in written.text
        check(answer, {})

    def test_a_global_pool(self, run: Run) -> None:
        config = Config(
            session_options={"log_severity_level": 0},
            global_thread_pool=ThreadPool(intra_op_num_threads=3, inter_op_num_threads=1),
        )
        answer, written = run(config)
        assert not written.unsupported
        assert (answer["threads"], answer["workers"]) == (3, 2)

    def test_a_page_that_is_not_isolated(self, run: Run) -> None:
        """It has one thread, as the comment of the export says."""
        answer, written = run(TUNED, page="shared.html")
        assert not answer["isolated"]
        assert (answer["threads"], answer["workers"]) == (1, 0)
        assert "Cross-Origin-Opener-Policy: same-origin" in written.text

    def test_run_options(self, run: Run) -> None:
        """The memory arena cannot be shrunk, because there is none: the entry would make each call fail."""
        entry = "memory.enable_memory_arena_shrinkage"
        config = Config(
            session_options={"log_severity_level": 0},
            run_config={entry: "cpu:0", "disable_synchronize_execution_providers": "1"},
        )
        answer, written = run(config)
        assert unsupported(written) == {entry}
        check(answer, {})
        # The other entry reaches ONNX Runtime, as that of the arena would.
        answer, _ = run(
            config,
            change=lambda text: text.replace(
                '"disable_synchronize_execution_providers": "1"',
                '"memory": {"enable_memory_arena_shrinkage": "cpu:0"}',
            ),
        )
        assert "Did not find an arena" in answer["error"]


class TestTransformersJs:
    """In Node.js, `test_targets.py` runs it."""

    def test_the_live_session_has_it(self, browser: Browser, folder: Path, url: str) -> None:
        if not (folder / "node_modules" / TRANSFORMERS_JS).is_dir():
            pytest.skip(f"{TRANSFORMERS_JS} is not installed")
        (folder / "tiny").mkdir()
        model = make_text_model(folder / "tiny")
        written = render("transformers-js", make_record(TINY_CNN, TUNED), str(model))
        (folder / "session.mjs").write_text(written.text.replace('"MODEL"', '"tiny"'))
        answer = open_page(browser, url, folder / "page.html", TRANSFORMERS)
        assert not answer["error"]
        assert answer["dims"] == [1, 4, 8]
        assert (answer["isolated"], answer["threads"], answer["workers"]) == (True, 2, 1)
        (session,) = read_sessions(answer["log"])
        # Threads of sessions are for Node.js.
        own = {name: value for name, value in wanted(TUNED, written).items() if not name.endswith("_op_num_threads")}
        assert {name: session[name] for name in own} == own
