"""Public reports of other projects, each with the test that keeps us from it.

A report tells of a situation that users of this field come into. Before each
release, ten more are looked for, tried here, and added: with the repository,
the number of the issue or pull request, the situation in our own words, and the
test. No code or sentence of a report is copied.
"""

from typing import NamedTuple


class Report(NamedTuple):
  """A situation that a public report describes."""

  repository: str
  number: int
  situation: str
  case: str  # The file and the name of a test.


REPORTS = [
  Report(
    *('jax-ml/jax', 30073),
    'A shell on a node of Slurm has a part of the variables of its job.',
    'tests/cluster/join_test.py::test_a_process_joins_or_ends_in_one_line',
  ),
  Report(
    *('kubernetes-client/python', 1331),
    "A scheduler's client raises an error of its own while it is detected.",
    'tests/cluster/join_test.py::test_a_process_joins_or_ends_in_one_line',
  ),
  Report(
    *('jax-ml/jax', 28160),
    'Processes on a CPU cannot start where the name of the host is unknown.',
    'tests/cluster/processes_test.py::'
    'test_a_host_name_that_does_not_resolve_is_told_in_one_line',
  ),
  Report(
    *('jax-ml/jax', 28194),
    'Slurm binds each task to a GPU, and each takes the one of its rank.',
    'tests/recipes_test.py::test_a_task_has_the_gpus_of_its_workers',
  ),
  Report(
    *('moby/moby', 2606),
    'A container has little shared memory, which reads as a full disk.',
    'tests/data/grain_test.py::test_little_shared_memory_is_no_full_disk',
  ),
  Report(
    *('google-deepmind/optax', 1185),
    'A label that is not below the number of classes gives a loss of NaN.',
    'tests/data/ids_test.py::'
    'test_an_id_outside_the_vocabulary_is_refused_before_training',
  ),
  Report(
    *('tensorflow/tensorflow', 8484),
    'A loss of NaN is noticed when the whole model is NaN.',
    'tests/training/warnings_test.py::'
    'test_a_loss_that_is_not_finite_is_told_once',
  ),
  Report(
    *('tensorflow/tensorflow', 1234),
    'Padding is marked by a label of -1, and should not count in the loss.',
    'tests/data/ids_test.py::'
    'test_padding_that_a_mask_leaves_out_changes_no_score',
  ),
  Report(
    *('jeertmans/DiffeRT', 280),
    'A scan under shard_map fails, because the carry varies in one place only.',
    'tests/conformance_test.py::'
    'test_steps_can_be_scanned_under_shard_map_that_checks_types',
  ),
  Report(
    *('pytorch/pytorch', 74894),
    'Parameters of several types are averaged in one buffer, and converted.',
    'tests/sync/consensus_test.py::'
    'test_equal_workers_in_half_precision_keep_their_bits',
  ),
  Report(
    *('meta-pytorch/torchft', 171),
    'A worker of local SGD should be several devices that share its batch.',
    'tests/training/mesh_test.py::'
    'test_a_worker_of_four_devices_is_a_worker_of_one',
  ),
  Report(
    *('OptimalFoundation/nadir', 61),
    'A schedule-free optimizer holds other parameters than those it trains.',
    'tests/sync/copies_test.py::test_what_an_optimizer_holds_is_named',
  ),
]
