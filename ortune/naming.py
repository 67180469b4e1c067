"""The names under which this code is installed.

The distribution ortune-apply contains a copy of part of this code, under names of its own: see
`ortune/apply/distribution/`.
"""

PACKAGE = "ortune"
"""The package, as in `import ortune`."""

DISTRIBUTION = "ortune"
"""The distribution, as in `pip install ortune`."""

COMMAND = "ortune apply"
"""The command that runs programs with records."""

RUNTIME_HINT = (
    "pip install 'ortune[cpu]'; for other hardware ortune[gpu] (NVIDIA), ortune[openvino] (Intel), ortune[migraphx] "
    "(AMD) or ortune[directml] (GPUs on Windows) instead."
)
"""How to install onnxruntime."""
