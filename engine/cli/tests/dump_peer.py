"""Reads a dump with h5py: usage dump_peer.py DUMP FOLDER

Writes the values of every dataset, as little-endian f64, to a file of its own in FOLDER, and prints a line of JSON for
each: its path below /prompts, shape, dtype and that file's name. Exit status 77 when h5py is not installed.
"""
import json
import os
import sys

try:
    import h5py
except ImportError as error:
    print(error)
    sys.exit(77)

with h5py.File(sys.argv[1]) as dump:
    assert dump.attrs["format"] in ("kalibri-dump", b"kalibri-dump") and dump.attrs["complete"] == 1

    def write(path, item):
        if isinstance(item, h5py.Dataset):
            file = path.replace("/", "-")
            item[()].astype("<f8").tofile(os.path.join(sys.argv[2], file))
            print(json.dumps({"path": path, "shape": item.shape, "dtype": str(item.dtype), "file": file}))

    dump["prompts"].visititems(write)
