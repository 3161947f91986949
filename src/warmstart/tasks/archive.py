"""Files of a publisher's archive, read from the zip or from the folder it unzips to."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

from warmstart.core import InputError

AGAIN = "download it again from the publisher"


def read_member(place: Path, name: str) -> bytes:
    """The content of file `name`, wherever in the zip or below the folder `place` it lies."""
    try:
        if place.is_dir():
            found = sorted(place.rglob(name))
            content = found[0].read_bytes() if found else None
        else:
            with ZipFile(place) as archive:
                inside = [member for member in archive.namelist() if member.rpartition("/")[2] == name]
                content = archive.read(inside[0]) if inside else None
    except Exception as error:  # damaged archives raise what zipfile and zlib happen to
        brief = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(f"a whole archive {place}", f"a truncated or damaged one ({brief})", AGAIN) from error
    if content is None:
        raise InputError(f"a file {name} in {place}", "none", AGAIN)
    return content
