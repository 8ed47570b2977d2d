"""Times the sampler against `transformers.generate`, on the shapes that it is judged by.

    python bench/sampler.py                                     # SmolLM2-135M's shape, random weights
    python bench/sampler.py --model MODEL --dtype float32       # words for `rlvr-jax bench sampler`

That is `rlvr-jax bench sampler` once for each preset, in a process of its own so that peaks of memory are apart, and once
for groups of 1, 4 and 16. A line of JSON for each run, on standard output; progress on standard error.
"""

import subprocess
import sys
from collections.abc import Sequence

RUNS = (
    ("--preset", "batch-64"),
    ("--preset", "distinct-64"),
    ("--preset", "long-tail"),
    ("--preset", "long-tail", "--prompts", "4", "--new-tokens", "32", "--no-compare", "--scaling"),
)


def run_all(what: str, runs: Sequence[Sequence[str]], words: Sequence[str]) -> int:
    """`rlvr-jax bench WHAT` for each of the runs; the first exit status that is not 0."""
    for run in runs:
        command = [sys.executable, "-m", "rlvr_jax.cli", "bench", what, "--json", *run, *words]
        status = subprocess.run(command).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(run_all("sampler", RUNS, sys.argv[1:]))
