"""Public reports of other projects, each with our test against it.

A report describes a situation that users of this field meet. Before each
release, ten more are collected, tried here, and added: with the repository, the
number of the issue or pull request, the test, and the situation in our own
words. No code or sentence of a report is copied.
"""

import re

from tests.support.session import ROOT

REPORTS = """
jax-ml/jax 30073 tests/cluster/join_test.py
  test_a_process_joins_or_ends_in_one_line
  A shell on a node of Slurm has some of the variables of its job.
kubernetes-client/python 1331 tests/cluster/join_test.py
  test_a_process_joins_or_ends_in_one_line
  A scheduler's client raises an error of its own while it is detected.
jax-ml/jax 28160 tests/cluster/processes_test.py
  test_a_host_name_that_does_not_resolve_is_told_in_one_line
  Processes on a CPU cannot start where the name of the host is unknown.
jax-ml/jax 28194 tests/recipes_test.py
  test_a_task_has_the_gpus_of_its_workers
  Slurm binds each task to a GPU, and each takes the one of its rank.
moby/moby 2606 tests/data/grain_test.py
  test_little_shared_memory_is_no_full_disk
  A container has little shared memory, which reads as a full disk.
google-deepmind/optax 1185 tests/data/ids_test.py
  test_an_id_outside_the_vocabulary_is_refused_before_training
  A label that is not below the number of classes gives a loss of NaN.
tensorflow/tensorflow 8484 tests/training/warnings_test.py
  test_a_loss_that_is_not_finite_is_reported_once
  A loss of NaN is noticed when the whole model is NaN.
tensorflow/tensorflow 1234 tests/data/ids_test.py
  test_padding_that_a_mask_leaves_out_changes_no_score
  Padding is marked by a label of -1, and should not count in the loss.
jeertmans/DiffeRT 280 tests/conformance_test.py
  test_steps_can_be_scanned_under_shard_map_that_checks_types
  A scan under shard_map fails, because the carry varies in one place only.
pytorch/pytorch 74894 tests/sync/consensus_test.py
  test_equal_workers_in_half_precision_keep_their_bits
  Parameters of several types are averaged in one buffer, and converted.
meta-pytorch/torchft 171 tests/training/mesh_test.py
  test_a_worker_of_four_devices_is_a_worker_of_one
  A worker of local SGD should be several devices that share its batch.
OptimalFoundation/nadir 61 tests/sync/copies_test.py
  test_parameters_that_an_optimizer_holds_are_named
  A schedule-free optimizer holds other parameters than those it trains.
"""
REPORT = re.compile(r'^([\w.-]+/[\w.-]+ \d+) (\S+)\n  (\w+)\n  .*\.$', re.M)


def test_each_report_is_named_once_and_has_its_test():
  found = REPORT.findall(REPORTS)
  assert 3 * len(found) == REPORTS.strip().count('\n') + 1
  assert len({report for report, *_ in found}) == len(found) > 10
  for report, file, name in found:
    assert f'\ndef {name}(' in (ROOT / file).read_text(), report
