"""Fail if the second model is more than 3 % slower than the first.

python examples/compare_models.py BASE HEAD
"""

import argparse
import sys

import ortune

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("base", help="path of the ONNX file that is deployed")
parser.add_argument("head", help="path of the ONNX file that must not be slower")
arguments = parser.parse_args()

result = ortune.gate(arguments.base, arguments.head, max_slowdown="3%", also="memory")
print(f"{result.decision}: {result.reason}")
sys.exit({"pass": 0, "fail": 1, "inconclusive": 3}[result.decision])
