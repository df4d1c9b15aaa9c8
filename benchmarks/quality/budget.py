"""Which steps does a budget choose, and does SelSync keep to the budget?

  python -m benchmarks.quality.budget --seeds=3

Runs SelSync's trigger over random gradients whose squared norms have a light
tail (lognormal, sigma 0.3) or a heavy one (Pareto, index 1.5). The budget pays
for a number of synchronizations. Prints, for each rule of the budget, the share
of these that fall on the steps with the largest changes, and by how much the
LSSR is off; writes budget.json. For comparison, local SGD synchronizes equally
often, at steps that do not depend on the gradient.
"""

import statistics

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.table import parser, report, Table
import selsync_jax as ss

RULES = {'gain that falls': None, 'gain 1': 1.0, 'gain 0.1': 0.1}
TAILS = {
  'light': lambda rng, shape: rng.lognormal(0, 0.3, shape),
  'heavy': lambda rng, shape: rng.pareto(1.5, shape) + 0.05,
}
WORKERS = 4, 64
LSSRS = (0.9,)


def gradients(tail: str, steps: int, workers: int, seed: int) -> jax.Array:
  """Random gradients of one element, [workers, steps]."""
  squares = TAILS[tail](np.random.default_rng(seed), (workers, steps))
  return jnp.sqrt(jnp.asarray(squares, jnp.float32))


def chosen(
  trigger: ss.Trigger, grads: jax.Array, lssr: float
) -> tuple[float, float]:
  """Returns the share of synchronizations at large changes, and the LSSR error.

  The first tenth of the run, in which the budget settles, counts only for the
  error.
  """
  meter = ss.measure()

  def worker(grads):
    def step(states, grad):
      measured = meter.update(grad, states[0])[1]
      decided = trigger.update(grad, states[1])[1]
      change = jax.lax.pmax(measured.change, ss.AXIS)
      return (measured, decided), (change, decided.sync)

    first = meter.init(grads[0]), trigger.init(grads[0])
    return jax.lax.scan(step, first, grads)[1]

  changes, syncs = jax.jit(jax.vmap(worker, axis_name=ss.AXIS))(grads)
  change, sync = np.asarray(changes)[0], np.asarray(syncs)[0]
  settled = slice(len(sync) // 10, None)
  largest = change[settled] >= np.quantile(change[settled], lssr)
  return float(largest[sync[settled]].mean()), float(1 - sync.mean() - lssr)


def main() -> None:
  options = parser(__doc__, 'budget.json', seeds=3, steps=3000).parse_args()
  rows = []
  for lssr in LSSRS:
    triggers = {
      rule: ss.budgeted(ss.selsync(1.0), lssr=lssr, gain=gain)
      for rule, gain in RULES.items()
    }
    triggers['local SGD'] = ss.every(round(1 / (1 - lssr)))
    for rule, trigger in triggers.items():
      cells = []
      for tail in TAILS:
        for workers in WORKERS:
          found = [
            chosen(trigger, gradients(tail, options.steps, workers, s), lssr)
            for s in range(options.seeds)
          ]
          shares, errors = zip(*found, strict=True)
          worst = max(errors, key=abs)
          cells.append(dict(share=statistics.fmean(shares), error=worst))
      rows.append(dict(lssr=lssr, rule=rule, cells=cells))
  columns = [f'{tail}, N={n}' for tail in TAILS for n in WORKERS]
  table = Table(
    ('LSSR', 'rule', *columns),
    [
      [
        f'{row["lssr"]}',
        row['rule'],
        *(f'{c["share"]:.0%} {c["error"]:+.3f}' for c in row['cells']),
      ]
      for row in rows
    ],
  )
  report(options.out, rows, table)


if __name__ == '__main__':
  main()
