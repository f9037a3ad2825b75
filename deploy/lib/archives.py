"""Prepares the static libraries of the Swift toolchain for build_release: archives.py DIRECTORY

The compiler has marked their public functions as used, by a flag of the section. The copies in DIRECTORY lack the flag, so that
the linker leaves out functions that nothing calls; what the runtime finds by its tables is kept. DIRECTORY also gets an ld.lld
that looks for libraries there first.
"""

import glob
import json
import os
import struct
import subprocess
import sys

ARCHIVE, MEMBER = 8, 60
EXECUTABLE, RETAIN = 0x4, 0x200000


def unmark(data, start):
    """Clears the flag in the 64-bit ELF file at an offset, and returns the number of sections that had it."""
    if data[start : start + 4] != b"\x7fELF":
        return 0
    (table,) = struct.unpack_from("<Q", data, start + 0x28)
    size, count = struct.unpack_from("<HH", data, start + 0x3A)
    # A number that is too large for its field is in the first section.
    count = count or struct.unpack_from("<Q", data, start + table + 0x20)[0]
    changed = 0
    for place in range(start + table + 8, start + table + count * size, size):
        (flags,) = struct.unpack_from("<Q", data, place)
        if flags & RETAIN and flags & EXECUTABLE:
            struct.pack_into("<Q", data, place, flags & ~RETAIN)
            changed += 1
    return changed


def main(directory):
    target = json.loads(subprocess.run(["swiftc", "-print-target-info"], check=True, capture_output=True).stdout)
    toolchain = target["paths"]["runtimeResourcePath"]
    for path in glob.glob(f"{toolchain}_static/linux/*.a"):
        with open(path, "rb") as file:
            data = bytearray(file.read())
        place, changed = ARCHIVE, 0
        while place < len(data):
            changed += unmark(data, place + MEMBER)
            length = int(data[place + 48 : place + 58])
            place += MEMBER + length + length % 2
        if changed:
            with open(os.path.join(directory, os.path.basename(path)), "wb") as file:
                file.write(data)
    linker = os.path.join(directory, "ld.lld")
    with open(linker, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nexec "{toolchain}/../../bin/ld.lld" "-L{directory}" "$@"\n')
    os.chmod(linker, 0o755)


if __name__ == "__main__":
    main(*sys.argv[1:])
