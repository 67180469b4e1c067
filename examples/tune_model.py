"""Search the best settings of a model for two concurrent clients, and create a session with them.

python examples/tune_model.py MODEL [--budget 1m]
"""

import argparse

import ortune

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", help="path of the ONNX file")
parser.add_argument("--budget", default="1m", help="time to spend")
arguments = parser.parse_args()

record = ortune.search(arguments.model, clients=2, budget=arguments.budget, output="tuned.json")
evidence = record.evidence
print(f"{evidence.verdict}: {evidence.reason}")
if evidence.speedup:
    print(f"{evidence.speedup.estimate:.2f}x [{evidence.speedup.low:.2f}, {evidence.speedup.high:.2f}]")
print(f"session options: {dict(record.config.session_options)}")

# The session has ONNX Runtime's default settings unless a gain is proven.
session = ortune.create_session(arguments.model, record)
print(f"inputs: {[model_input.name for model_input in session.get_inputs()]}")
