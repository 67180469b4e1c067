"""Archives that tests unpack."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path


def extract_files(archive: Path, folder: Path) -> None:
    """Write the files, folders and symbolic links of a tar archive below a folder.

    What is not below the folder, or leads elsewhere, is left out. `TarFile.extractall` can do that only since Python
    3.11.4.
    """
    with tarfile.open(archive) as tar:
        for member in tar:
            path = folder / member.name
            leads_to = path.parent / member.linkname if member.issym() else path
            if not all(Path(os.path.normpath(place)).is_relative_to(folder) for place in (path, leads_to)):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if member.isdir():
                path.mkdir(exist_ok=True)
            elif member.issym():
                path.symlink_to(member.linkname)
            elif member.isfile():
                content = tar.extractfile(member)
                assert content
                path.write_bytes(content.read())
