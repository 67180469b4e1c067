"""`ortune doctor`: checks a model for what slows it down in ONNX Runtime, and suggests fixes."""
