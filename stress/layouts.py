"""Every method, with workers of several devices next to single-device workers.

  python -m stress.layouts
  python -m stress.layouts --methods bsp selsync --layouts 2x2x2

Trains a small network with batch norm, dropout, and batches that are not full,
on virtual CPU devices: once under pmap, and once with each layout (workers x
data x fsdp). For each method and layout it prints by how much parameters and
batch statistics differ after 12 steps, whether the workers synchronized at the
same steps, and the elements that one device sends to other workers in the
compiled step: in the branch of a synchronization, and outside it. Writes
layouts.json. The exit code is 1 if a flag differs, or a parameter by more than
5e-3.
"""

import argparse
import json
import pathlib
import sys
from typing import Any

import jax

from selsync_jax.devices.layout import Layout
from selsync_jax.devices.mappers import Pmap
from tests.support import layouts

LAYOUTS = ('4x1x1', '4x2x1', '4x1x2', '2x2x2', '2x1x4')
LIMIT = 5e-3  # A quantization step of int8; float32 stays far below.


def row(method: str, layout: Layout) -> dict[str, Any]:
  """The figures of a method and a layout."""
  pmap = layouts.train(method, Pmap(layout.workers))
  mesh = layouts.train(method, layout)
  sent = layouts.crossings(method, layout)
  return {
    'difference': layouts.difference(pmap, mesh),
    'flags': pmap.synced == mesh.synced,
    'synced': sum(mesh.synced),
    'inside': [m[:3] for m in sent if m.conditional],
    'outside': [m[:3] for m in sent if not m.conditional],
  }


def is_wrong(figures: dict[str, Any]) -> bool:
  """Returns whether a layout trains differently than `pmap`."""
  return not (figures['flags'] and figures['difference'] <= LIMIT)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--methods', nargs='+', default=[*layouts.METHODS])
  parser.add_argument('--layouts', nargs='+', default=LAYOUTS)
  parser.add_argument('--out', default='layouts.json')
  options = parser.parse_args()
  jax.config.update('jax_num_cpu_devices', 16)
  print(f'{"method":20}{"layout":>7}{"differ by":>11}{"flags":>7}  sends')
  rows = {}
  for method in options.methods:
    for name in options.layouts:
      figures = row(method, Layout(*map(int, name.split('x'))))
      rows[f'{method} {name}'] = figures
      sent = {
        where: ', '.join(f'{k} {n} {d}' for k, d, n in figures[where]) or '-'
        for where in ('inside', 'outside')
      }
      print(
        f'{method:20}{name:>7}{figures["difference"]:11.1e}'
        f'{"equal" if figures["flags"] else "differ":>7}'
        f'  {sent["inside"]}; outside: {sent["outside"]}',
        flush=True,
      )
    layouts.train.cache_clear()  # Memory for compiled code is limited.
    jax.clear_caches()
  pathlib.Path(options.out).write_text(json.dumps(rows, indent=2) + '\n')
  sys.exit(any(is_wrong(figures) for figures in rows.values()))


if __name__ == '__main__':
  main()
