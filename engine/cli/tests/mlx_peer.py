"""Holds converted directories against the real mlx library: usage mlx_peer.py SOURCE CONVERTED...

SOURCE is a bf16 checkpoint with one shard, CONVERTED what `kalibri convert` made of it. mlx loads both, quantises the
source's matrices itself, and must get the converted tensors, bit for bit; prints how many matrices that were. Exit
status 77 when mlx is not installed.
"""
import glob
import json
import os
import sys

try:
    import mlx.core as mx
except ImportError as error:
    print(f"mlx: {error}")
    sys.exit(77)

mx.set_default_device(mx.cpu)


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


def check(source, directory):
    config = json.load(open(os.path.join(directory, "config.json")))["quantization"]
    index = json.load(open(os.path.join(directory, "model.safetensors.index.json")))
    converted = load(directory)
    assert set(index["weight_map"]) == set(converted), "the index does not list the tensors"
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


if __name__ == "__main__":
    source_tensors = load(sys.argv[1])
    print(sum(check(source_tensors, directory) for directory in sys.argv[2:]))
