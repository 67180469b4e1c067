"""Code that runs inside other people's programs. It imports only the standard library and onnxruntime."""
