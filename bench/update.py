"""Times the update against torch's, on the batches that it is judged by, and by size of group and shares.

    python bench/update.py                                      # SmolLM2-135M's shape, random weights
    python bench/update.py --model MODEL --dtype float32        # words for `rlvr-jax bench update`

That is `rlvr-jax bench update` once for each preset, and once for the scaling table, each in a process of its own so that peaks
of memory are apart. A line of JSON for each run, on standard output; progress on standard
error. On two cores torch takes minutes for a step on the realistic batch, padded, so 32 of its rows are timed.
"""

import sys

from sampler import run_all

RUNS = (
    ("--preset", "equal", "--parts"),
    ("--preset", "realistic", "--peer-rows", "32"),
    ("--preset", "equal", "--no-compare", "--scaling", "--repeats", "1"),
)

if __name__ == "__main__":
    sys.exit(run_all("update", RUNS, sys.argv[1:]))
