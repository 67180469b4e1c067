"""`ortune profile`: the time of each operator and node in a run, from ONNX Runtime's profiler."""
