"""Every folder in a tree of the swarm's. No link is followed."""

import os
import stat
from contextlib import suppress

from storage.errors import Rejection
from storage.swarm.folders import opened
from storage.swarm.layout import Folder, Roots


def folders_below(roots: Roots, place: Folder, depth_max: int) -> list[Folder]:
    """A folder and those in it to a depth, each before what lies in it; those that are closed to us are left out."""
    places = [place]
    for above in places:
        with suppress(Rejection):
            folder = opened(roots, above) if len(above.parts) < len(place.parts) + depth_max else None
            if folder is not None:
                with folder:
                    below = [name for name in folder.names() if _is_folder(folder.fd, name)]
                places += [Folder(place.root, (*above.parts, name)) for name in below]
    return places


def _is_folder(fd: int, name: str) -> bool:
    with suppress(OSError):
        return stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    return False
