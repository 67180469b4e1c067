"""Build hook of ortune-apply: adds the package, which consists of modules of ortune."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Copies the modules into wheels and source distributions. A source distribution contains them already."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the package to the files of a build."""
        if version == "editable":
            raise ValueError("ortune-apply cannot be installed as editable: its modules are copied when it is built")
        spec = importlib.util.spec_from_file_location("modules", Path(self.root) / "modules.py")
        assert spec
        assert spec.loader
        modules = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules)
        package = Path(self.root) / modules.TARGET_PACKAGE
        if not modules.is_sdist():
            self._folder = tempfile.TemporaryDirectory(prefix="ortune-apply-")
            package = Path(self._folder.name) / modules.TARGET_PACKAGE
            modules.copy_package(package)
        build_data["force_include"][str(package)] = modules.TARGET_PACKAGE
