"""The order of measurements, and the table."""

import importlib
import importlib.util
import json

import jax
import pytest

from benchmarks.speed import (
  accelerator,
  accelerator_rows,
  accelerator_table,
  peaks,
)
from tests.support import workloads

LIMITS = accelerator.Limits(2**14, 0.5, (1, 16))


def test_a_batch_that_does_not_fit_ends_a_search_and_nothing_else(monkeypatch):
  monkeypatch.setattr(accelerator.gc, 'collect', lambda: 0)  # It takes seconds.

  def job(size):
    def run():
      if size > 4:
        raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory')
      return [{'ms': 1.0}]

    labels = {'section': 'steps', 'batch': size}
    return accelerator.Job(0, labels, run, lambda: job(2 * size))

  rows = []
  last = accelerator.Job(9, {'section': 'parts'}, lambda: [{'ms': 2.0}])
  accelerator.measure([last, job(2)], 60.0, rows.append)
  # Larger batches come after all other jobs.
  assert [row.get('batch') for row in rows] == [2, None, 4, 8]
  assert rows[-1]['not_measured'].startswith('out of memory')
  assert 'not measured: out of memory' in accelerator_table.line(rows[-1])


def test_a_row_that_is_not_reached_says_so():
  rows = []
  jobs = [
    *accelerator.step_jobs(workloads.WORKLOADS, LIMITS),
    *accelerator.other_jobs(workloads.WORKLOADS, LIMITS),
  ]
  accelerator.measure(jobs, 0.0, rows.append)
  assert {row['not_measured'] for row in rows} == {'no time left'}
  assert {row['section'] for row in rows} == {*accelerator.SECTIONS} - {'torch'}
  measured = {(row['name'], row['dtype']) for row in rows}
  for name in workloads.WORKLOADS:
    assert {(name, 'bfloat16'), (name, 'float32')} <= measured


def test_a_step_is_compared_with_pytorchs_of_the_same_batch(tmp_path, capsys):
  table = accelerator_table.Table(tmp_path / 'out.json')
  labels = {'name': 'ResNet-50', 'dtype': 'bfloat16', 'batch': 8}
  times = {'ms_quartiles': [1.0, 2.0], 'device': 'gpu'}
  table.add({'section': 'torch', **labels, 'ms': 30.0, **times})
  table.add({'section': 'steps', **labels, 'ms': 20.0, **times})
  table.add({'section': 'steps', **labels, 'batch': 16, 'ms': 20.0, **times})
  rows = json.loads((tmp_path / 'out.json').read_text())['rows']
  assert [row.get('of_torch') for row in rows] == [None, 1.5, None]
  assert 'of torch 1.500' in capsys.readouterr().out


@pytest.mark.parametrize(
  'name, module',
  [
    ('ResNet-101', 'cifar10_resnet101'),
    ('VGG-11', 'cifar100_vgg11'),
    ('AlexNet', 'imagenet_alexnet'),
    ('Transformer', 'wikitext103_transformer'),
  ],
)
def test_models_match_the_configs(name, module):
  config = importlib.import_module(f'selsync_jax.configs.{module}').get_config()
  workload = workloads.WORKLOADS[name]
  assert {k: config.model[k] for k in workload.model} == workload.model


@pytest.mark.slow
def test_operations_are_six_a_parameter_and_token_and_attention():
  size, tokens, vocabulary, width, hidden = 16, 64, 256, 64, 172
  sizes = dict(num_layers=2, embed_dim=width, num_heads=4, mlp_dim=hidden)
  decoder = workloads.Workload(
    dict(name='decoder', **sizes), vocabulary, (tokens,), workloads.ADAMW, size
  )
  program = accelerator_rows.compiled(decoder, 'float32', size, mapper='vmap')
  # See COUNTS in models_test.py.
  layer = width * 4 * width + 3 * width * hidden + 2 * width
  assert program.parameters == 2 * vocabulary * width + width + 2 * layer
  # The weights and AdamW's two moments are there throughout.
  assert program.bytes > 3 * 4 * program.parameters
  # Scores and sums: two products of all pairs of tokens in each layer.
  dense, attention = program.parameters - vocabulary * width, 4 * width * tokens
  expected = 6 * size * tokens * (dense + attention)
  assert program.flops == pytest.approx(expected, rel=0.15)


def test_peaks_are_known_by_device_and_dtype():
  assert peaks.peak('cpu', 'float32') is None
  assert peaks.peak('NVIDIA A100-SXM4-80GB', 'bfloat16') == 312e12
  assert peaks.peak('NVIDIA A100-SXM4-80GB', 'float32') == 156e12
