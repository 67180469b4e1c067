"""The names under which this code is installed as ortune-apply. They replace those of `ortune.naming`."""

PACKAGE = "ortune_apply"
DISTRIBUTION = "ortune-apply"
COMMAND = "ortune-apply"
RUNTIME_HINT = "pip install onnxruntime; for other hardware onnxruntime-gpu, onnxruntime-openvino or another instead."
