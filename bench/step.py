"""Times whole steps of training, by phase: 8 prompts x 8 answers, 64 + 128 tokens each.

    python bench/step.py                                        # SmolLM2-135M's shape, random weights
    python bench/step.py --model MODEL --dtype float32          # words for `rlvr-jax bench step`

Only ours: what other trainers take for the same step, their own scripts have to say. A line
of JSON on standard output; progress on standard error.
"""

import sys

from sampler import run_all

if __name__ == "__main__":
    sys.exit(run_all("step", ((),), sys.argv[1:]))
