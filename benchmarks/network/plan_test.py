"""The planner's benchmark against separate arithmetic."""

import pytest

from benchmarks import variants
from benchmarks.network import plan as benchmark
from benchmarks.network import steps as measuring


def test_the_benchmark_predicts_what_the_network_benchmark_measures():
  assert set(benchmark.ROWS) <= set(variants.FIRST)
  measured = {measuring.SLOWEST: 5.0, measuring.SCALAR: 2.0, 'bytes': 4_000_000}
  predicted = benchmark.predict(measured, 2, '200mbit')
  wire = 1e3 * 4e6 * 8 / (2e8 * 1448 / 1514)  # Two workers send every byte.
  assert predicted['BSP'] == pytest.approx(5 + wire + 2)
  assert predicted['SelSync, no synchronization'] == pytest.approx(7, abs=1e-3)
