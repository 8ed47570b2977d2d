"""In which order records are asked about: an endless sequence of their indices, each epoch in an order of its own."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlvr_jax.tasks.mixture import MixedRecords


def draw(index: int, weights: Sequence[int]) -> tuple[int, int]:
    """Which of several sequences gives element `index` of their mixture, and how many it gave before.

    After any n elements, a sequence of weight w has given n w / sum to within one for each sequence before it, and after
    each sum(weights) elements exactly w. The first sequence gives an element whenever the whole part of what is left to
    the others stays as it is; and so on among those.
    """
    before, after, left = index, index + 1, sum(weights)
    for which, weight in enumerate(weights):
        others_before = before * (left - weight) // left
        others_after = after * (left - weight) // left
        if others_before == others_after:
            return which, before - others_before
        before, after, left = others_before, others_after, left - weight
    raise AssertionError(f"weights {weights} are positive, so one sequence gave element {index}")


def endless_indices(records: Sequence[dict], seed: int, shuffle: bool) -> Any:
    """A grain iterator over the indices of records; of a mixture, over those of its parts by weight.

    Nothing is read ahead, so its state is exact.

    Raises: ValueError for a seed that has no 32 bits, and for a mixture with a part that is empty.
    """
    import grain

    if not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed}: the shuffle takes a seed of 32 bits; use 0 to {2**32 - 1}.")
    if isinstance(records, MixedRecords):
        for label, part in records.parts:
            if not len(part):
                raise ValueError(f"task {label!r} of the mixture has no records; leave it out.")

        class ByWeight(grain.transforms.DatasetSelectionMap):
            def __len__(self) -> int:
                return sys.maxsize

            def __getitem__(self, index: int) -> tuple[int, int]:
                return draw(index, records.weights)

        parts = [
            _epochs(grain.MapDataset.source(records.places(k).tolist()), part_seed(seed, k), shuffle)
            for k in range(len(records.parts))
        ]
        indices = grain.MapDataset.select_from_datasets(parts, ByWeight())
    else:
        indices = _epochs(grain.MapDataset.range(len(records)), seed, shuffle)
    return iter(indices.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))


def part_seed(seed: int, part: int) -> int:
    """The seed of one part of a mixture: equally long parts are not in the same order."""
    return int(np.random.SeedSequence([seed, part]).generate_state(1)[0])


def _epochs(indices: Any, seed: int, shuffle: bool) -> Any:
    indices = indices.seed(seed)
    return (indices.shuffle() if shuffle else indices).repeat()


def rows_of(process_index: int, process_count: int, batch: int) -> slice:
    """The rows of a batch that belong to one process: consecutive ones, as many for each.

    Raises: ValueError for a process that is not one of them, and for a batch that does not divide.
    """
    if not 0 <= process_index < process_count:
        raise ValueError(
            f"process_index={process_index}: there are {process_count} processes, the first is 0."
        )
    if batch % process_count:
        raise ValueError(f"batch={batch} does not spread over {process_count} processes: make it a multiple.")
    share = batch // process_count
    return slice(process_index * share, (process_index + 1) * share)
