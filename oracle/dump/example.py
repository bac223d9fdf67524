# Writes a dump that `kalibri compare` takes, from any engine: python3 example.py OUT.h5
import sys
import h5py
import numpy as np

tokens = np.array([5, 0, 7], dtype="int32")
logits = np.random.default_rng(1).normal(size=(3, 100)).astype("float32")  # your engine's: [len(tokens), vocab_size]
with h5py.File(sys.argv[1], "w") as file:
    prompt = file.create_group("prompts/hello")
    prompt["tokens"], prompt["logits"] = tokens, logits
    file.attrs.update(format="kalibri-dump", version=1, producer="my engine", model_type="kolibri1", complete=1)
