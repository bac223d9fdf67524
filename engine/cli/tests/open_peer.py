"""Opens a converted directory with the libraries of others: usage open_peer.py LAYOUT CONVERTED SOURCE

LAYOUT is what `kalibri convert --dry-run --json` says that CONVERTED will hold. mlx and safetensors must both find
these tensors in these files, with these dtypes and shapes and the same bytes; where SOURCE has a tensor of that name
and dtype, with that one's bytes. The index must say the same. Prints how many tensors there were, and how many of the
source's. Exit status 77 when a library is not installed.
"""
import glob
import json
import os
import sys

try:
    import mlx.core as mx
    import numpy as np
    import safetensors
except ImportError as error:
    print(error)
    sys.exit(77)

MLX_DTYPES = {"BF16": mx.bfloat16, "F32": mx.float32, "U32": mx.uint32, "F8_E4M3": mx.uint8, "I64": mx.int64}


def read(directory):
    """By name: file, dtype, shape and bytes, as safetensors reads them."""
    tensors = {}
    for path in sorted(glob.glob(os.path.join(directory, "model*.safetensors"))):
        with open(path, "rb") as file:
            for name, view in safetensors.deserialize(file.read()):
                assert name not in tensors, f"{name}: in two shards"
                tensors[name] = (os.path.basename(path), view["dtype"], view["shape"], bytes(view["data"]))
    return tensors


def check(layout, directory, source):
    ours = {n: (t["file"], t["dtype"], t["shape"]) for n, t in layout["tensors"].items()}
    opened = read(directory)
    assert {n: t[:3] for n, t in opened.items()} == ours, "safetensors finds another layout"
    index = json.load(open(os.path.join(directory, "model.safetensors.index.json")))
    assert index["weight_map"] == {n: t[0] for n, t in ours.items()}, "the index has another layout"
    assert index["metadata"]["total_size"] == sum(len(t[3]) for t in opened.values()), "total_size"
    assert index["metadata"]["total_parameters"] == layout["n_parameters"], "total_parameters"
    for path in glob.glob(os.path.join(directory, "model*.safetensors")):
        for name, array in mx.load(path).items():
            file, dtype, shape, data = opened.pop(name)
            assert os.path.basename(path) == file and list(array.shape) == shape, name
            assert array.dtype == MLX_DTYPES[dtype], f"{name}: mlx finds {array.dtype}, the file has {dtype}"
            assert np.array(array.view(mx.uint8)).tobytes() == data, f"{name}: mlx finds other bytes"
    assert not opened, f"mlx does not find {sorted(opened)}"
    originals = read(source)
    n_kept = 0
    for name, (_, dtype, _, data) in read(directory).items():
        if name in originals and originals[name][1] == dtype:
            assert originals[name][3] == data, f"{name}: not the source's bytes"
            n_kept += 1
    return len(ours), n_kept


if __name__ == "__main__":
    print(*check(json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3]))
