"""Python imports a module of this name when it starts. This one activates ortune's plan in a program.

`ortune apply ... -- PROGRAM` adds this folder to PYTHONPATH. The folder must hold no other module. Programs start other
programs, whose Python may be of any version. This file is valid in all of them, and activates nothing in those that are
too old.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _start():  # type: () -> None
    from importlib.util import module_from_spec, spec_from_file_location

    # Under its full name, so that a program whose Python has ortune does not load it a second time.
    name = "ortune.apply.inside.finder"
    if name not in sys.modules:
        spec = spec_from_file_location(name, os.path.join(os.path.dirname(HERE), "finder.py"))
        if spec and spec.loader:
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
    sys.modules[name].start()


def _import_hidden():  # type: () -> None
    """Import the `sitecustomize` that this one hides, if there is one."""
    # Hide this folder from the program. Its child processes find it in PYTHONPATH.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        # Errors of Python 2 have no name.
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)


try:
    # The oldest Python that the other modules are written for.
    if sys.version_info >= (3, 10):  # noqa: UP036
        _start()
finally:
    # Also if the plan cannot be activated.
    _import_hidden()
