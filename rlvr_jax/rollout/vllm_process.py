"""The other end of `rollout.vllm`: vLLM, in an environment of its own, where neither this package nor JAX has to be.

Run as `python -P vllm_process.py FD`. FD is a socket that brings one JSON message after another and takes one answer to
each: {"ok": ...} or {"error": ...}. Weights come as a Hugging Face directory. At its top this file imports the standard
library alone.
"""

import functools
import importlib.util
import json
import pkgutil
import sys
import zlib
from collections.abc import Iterable, Mapping
from multiprocessing.connection import Connection
from typing import Any


def fingerprint(values: Any) -> tuple[str, float]:
    """The checksum of every bit of an array in float32, and its sum, which a message can show."""
    import numpy as np

    bits = np.ascontiguousarray(values, np.float32)
    return f"{zlib.crc32(bits.data.cast('B')):08x}", float(bits.sum(dtype=np.float64))


def held(model: Any, shapes: Mapping[str, Iterable[int]]) -> dict[str, Any]:
    """vLLM's own parameters by the names of a checkpoint: fused ones cut apart, padding cut off, None for what is not there."""
    own = dict(model.named_parameters(remove_duplicate=False))
    packed = getattr(model, "packed_modules_mapping", {})
    whole_of = {part: (whole, parts) for whole, parts in packed.items() for part in parts}
    found = {}
    for name, shape in shapes.items():
        rows = list(shape)[0]
        layer, module, kind = ("", *name.rsplit(".", 2))[-3:]
        start = 0
        if name not in own and module in whole_of:
            whole, parts = whole_of[module]
            before = parts[: parts.index(module)]
            start = sum(list(shapes[f"{layer}.{part}.{kind}"])[0] for part in before)
            name_of_whole = f"{layer}.{whole}.{kind}"
        else:
            name_of_whole = name
        tensor = own.get(name_of_whole)
        found[name] = None if tensor is None else tensor[start : start + rows]
    return found


class Engine:
    """vLLM, started by the first push."""

    def __init__(self):
        self.llm: Any = None

    def push(self, directory: str, options: dict, scale: float, shapes: dict) -> dict[str, Any]:
        """Take the weights of a directory; the fingerprints of those that the model now computes with."""
        if self.llm is None:
            _keep_weights_plain()
            self.llm = pkgutil.resolve_name("vllm:LLM")(model=directory, **options)
            self.llm.apply_model(functools.partial(_scale_logits, scale=scale))
        else:
            self.llm.collective_rpc("reload_weights", kwargs={"weights_path": directory})
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept the prefixes that it computed with the weights before.")
        return self.llm.apply_model(functools.partial(_fingerprints, shapes=shapes))[0]

    def sample(self, prompts: list[list[int]], rows: list[dict]) -> list[dict[str, Any]]:
        """One response to each prompt; `rows` are the arguments of its `SamplingParams`."""
        params = [pkgutil.resolve_name("vllm:SamplingParams")(**row) for row in rows]
        found = self.llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [_response(request.outputs[0]) for request in found]


def _response(output: Any) -> dict[str, Any]:
    tokens = list(output.token_ids)
    return {
        "tokens": tokens,
        "logprob": [each[token].logprob for each, token in zip(output.logprobs, tokens, strict=True)],
        "truncated": output.finish_reason == "length",
    }


def _fingerprints(model: Any, shapes: dict) -> dict[str, Any]:
    tensors = held(model, shapes)
    return {
        n: None if t is None else fingerprint(t.detach().float().cpu().numpy()) for n, t in tensors.items()
    }


def _scale_logits(model: Any, scale: float) -> None:
    model.logits_processor.scale *= scale


def _keep_weights_plain() -> None:
    """On a CPU, vLLM multiplies with a repacked copy of each matrix and drops the matrix.

    The copy of an output matrix that is the embedding too is not renewed by `reload_weights` (vLLM 0.32: logits of the old
    weights from then on), and none of them can be read to see what arrived. So matrices stay as they are loaded.
    """
    if not pkgutil.resolve_name("vllm.platforms:current_platform").is_cpu():
        return
    import torch

    def plain(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    pkgutil.resolve_name("vllm.model_executor.layers.utils").dispatch_cpu_unquantized_gemm = plain


def serve(connection: Connection) -> None:
    """Answer until the other end is closed."""
    engine = Engine()
    jobs = {"push": engine.push, "sample": engine.sample}
    connection.send_bytes(json.dumps({"ok": importlib.util.find_spec("vllm") is not None}).encode())
    while True:
        try:
            message = json.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            answer = {"ok": jobs[message.pop("job")](**message)}
        except Exception as error:  # whatever it is, the other end raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        connection.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
