"""Python imports a module of this name when it starts: so ortune gets into a program that it does not own.

`ortune apply ... -- PROGRAM` puts this folder, which holds nothing else, in PYTHONPATH.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _start() -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    # Under its own name, so that there is one of it where the program's Python has ortune too.
    name = "ortune.apply.inside.finder"
    if name not in sys.modules:
        spec = spec_from_file_location(name, os.path.join(os.path.dirname(HERE), "finder.py"))
        if spec and spec.loader:
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
    sys.modules[name].start()
    # The program is not to see this folder; its child processes find it in PYTHONPATH.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]


def _go_on() -> None:
    """Import the module that this one hides, if there is one."""
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)


_start()
_go_on()
