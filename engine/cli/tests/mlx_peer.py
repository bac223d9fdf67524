"""Holds converted directories against the real mlx library: usage mlx_peer.py SOURCE (CONVERTED DUMP)...

SOURCE is a bf16 checkpoint with one shard, CONVERTED what `kalibri convert` made of it, and DUMP what `kalibri dump`
computed with that. mlx loads both checkpoints, quantises the source's matrices itself, and must get the converted
tensors; the rows of the embedding that it dequantises must be the dump's; both bit for bit. Prints how many matrices
and rows that were. Exit status 77 when a library is not installed.
"""
import glob
import json
import os
import sys

try:
    import h5py
    import mlx.core as mx
    import numpy as np
except ImportError as error:
    print(error)
    sys.exit(77)

mx.set_default_device(mx.cpu)
EMBEDDING = "model.embed_tokens"


def load(directory):
    tensors = {}
    for file in sorted(glob.glob(os.path.join(directory, "model*.safetensors"))):
        tensors.update(mx.load(file))
    return tensors


def source_of(tensors, module):
    """The source's matrix of a module, experts stacked by number."""
    if ".switch_mlp." not in module:
        return tensors[module + ".weight"]
    prefix, part = module.split("switch_mlp.")
    stack = []
    while f"{prefix}experts.{len(stack)}.{part}.weight" in tensors:
        stack.append(tensors[f"{prefix}experts.{len(stack)}.{part}.weight"])
    return mx.stack(stack)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bool(mx.array_equal(a.view(mx.uint8), b.view(mx.uint8)))


def check_quantised(source, converted, config):
    n_modules = 0
    for name in converted:
        if not name.endswith(".scales"):
            continue
        module = name[: -len(".scales")]
        form = config.get(module, config)
        arguments = {"group_size": form["group_size"], "bits": form["bits"]}
        parts = [converted[f"{module}.{part}"] for part in ("weight", "scales", "biases")]
        for ours, theirs in zip(parts, mx.quantize(source_of(source, module), **arguments)):
            assert same_bits(ours, theirs), f"{module}: {arguments}: mlx gives other bits"
        n_modules += 1
    return n_modules


def check_dequantised(converted, config, dump):
    """In f32, as the engine computes: the grid, stored in bf16, is widened before."""
    form = config.get(EMBEDDING, config)
    grid = [converted[f"{EMBEDDING}.{part}"].astype(mx.float32) for part in ("scales", "biases")]
    rows = mx.dequantize(converted[EMBEDDING + ".weight"], *grid, group_size=form["group_size"], bits=form["bits"])
    prompt = h5py.File(dump)["prompts/p"]
    theirs = np.array(rows)[prompt["tokens"][:]]
    ours = prompt["embedding"][:]
    assert ours.dtype == theirs.dtype == np.float32, (ours.dtype, theirs.dtype)
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32)), f"{dump}: mlx dequantises to other bits"
    return len(ours)


if __name__ == "__main__":
    source_tensors = load(sys.argv[1])
    n_matrices = n_rows = 0
    for directory, dump_file in zip(sys.argv[2::2], sys.argv[3::2]):
        quantization = json.load(open(os.path.join(directory, "config.json")))["quantization"]
        tensors = load(directory)
        n_matrices += check_quantised(source_tensors, tensors, quantization)
        n_rows += check_dequantised(tensors, quantization, dump_file)
    print(n_matrices, n_rows)
