"""The figures of benchmarks/speed/step.py, against arithmetic."""

import importlib
import json

import pytest

from benchmarks.speed import peaks, step


@pytest.fixture(scope='module')
def decoder():
  return step.measure('stdlib_gpt', tiny=True, dtype=None, steps=1)


@pytest.mark.slow
def test_parameters_and_memory_match_the_step(decoder):
  # Width 64, 256 bytes in and out, two layers: see COUNTS in models_test.py.
  layer = 64 * 256 + 3 * 64 * 172 + 2 * 64
  assert decoder['parameters'] == 2 * 256 * 64 + 64 + 2 * layer
  # The weights and AdamW's two moments are there throughout.
  assert decoder['bytes'] > 3 * 4 * decoder['parameters']
  assert decoder['seconds'] > 0


@pytest.mark.slow
def test_operations_are_six_a_parameter_and_token_and_attention(decoder):
  tokens, dense = 64, decoder['parameters'] - 256 * 64
  # Scores and sums: two products of all pairs of tokens in each layer.
  attention = 2 * 2 * 64 * tokens
  expected = 6 * tokens * (dense + attention)
  assert decoder['flops_per_sample'] == pytest.approx(expected, rel=0.15)


def test_the_share_of_peak_is_known_for_known_devices(decoder):
  assert decoder['share_of_peak'] is None  # A CPU has no known peak.
  assert peaks.peak('NVIDIA A100-SXM4-80GB', 'bfloat16') == 312e12
  assert peaks.peak('NVIDIA A100-SXM4-80GB', 'float32') == 156e12


def test_the_command_prints_a_table_and_writes_a_json(tmp_path, capsys):
  path = tmp_path / 'step.json'
  step.main(['digits', '--tiny', '--steps=1', f'--out={path}'])
  row = json.loads(path.read_text())['digits']
  printed = capsys.readouterr().out
  assert row['parameters'] == 151_306
  assert '151,306' in printed
  assert 'of peak' in printed


@pytest.mark.parametrize('workload', step.WORKLOADS)
def test_every_workloads_data_have_a_shape_here(workload):
  module = importlib.import_module(f'selsync_jax.configs.{workload}')
  config = module.get_config('bsp')
  config.batch_size = 2
  classes, batch = step.random_batch(config)
  assert classes > 1
  assert {len(array) for array in batch.values()} == {2}
