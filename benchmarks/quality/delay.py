"""Loss of quality from a delayed average, and remedies.

  python -m benchmarks.quality.delay --delays 3 8

Trains the small language model with every recipe below, without a delay and
with each of some delays. All averages are sent in int8. For every delay, a
recipe gets the learning rate with the lowest validation loss, chosen with a
separate seed, and is then trained with three other seeds. Prints one table: the
validation loss without the delay and with it, and the increase, seed by seed.
Writes delay.json and, with --into, the table into a page, between
`<!-- delays: ... -->` and `<!-- /delays -->`. With --picture, also draws the
loss over the delay.
"""

import argparse
from collections.abc import Iterable, Sequence
import itertools
import pathlib
import statistics
from typing import NamedTuple

from benchmarks import marked
from benchmarks.quality import runs
from benchmarks.table import markdown, report
from selsync_jax.commands import flags, trials
from selsync_jax.report import significance
from selsync_jax.runs.history import Trial

ROOT = pathlib.Path(__file__).parents[2]
TUNING_SEED = 50
SEEDS = 60  # The first seed of the final runs.
HEAD = 'loss without it', 'loss', 'above, %'


class Recipe(NamedTuple):
  """A method, and how it uses a mean that arrives late.

  Attributes:
    method: the method without a delay, as in `compare`.
    late: flags to add for a delay of k steps; without `{k}`, the recipe has its
      fixed delay.
  """

  method: str
  late: str


LOCAL = 'local_sgd+sync.period=10+sync.wire=int8'
SELSYNC = 'selsync+sync.wire=int8'
OUTER = 'diloco+sync.period=10+sync.wire=int8'
MUON = 'muloco+sync.period=10+sync.averager=mean+sync.wire=int8'
EAGER = (  # Without momentum, for the reason that `eager_outer` gives.
  'averager=eager_outer+sync.averager.optimizer.name=sgd'
  '+sync.averager.optimizer.learning_rate=0.5'
)
PLAIN = 'delay={k}'
HALF = 'delay={k}+sync.delay.keep=0.5+sync.delay.extrapolate=0.5'
MIXED = 'delay={k}+sync.delay.keep=0+sync.delay.mix=0.5'
RECIPES = {
  'mean, plain': Recipe(LOCAL, PLAIN),
  'mean, half and half': Recipe(LOCAL, HALF),
  'mean, half of own': Recipe(LOCAL, 'delay={k}+sync.delay.keep=0.5'),
  'mean, 0.7 of own, 0.3 ahead': Recipe(
    LOCAL, 'delay={k}+sync.delay.keep=0.7+sync.delay.extrapolate=0.3'
  ),
  'mean, mixed': Recipe(LOCAL, MIXED),
  'mean and moments, half and half': Recipe(
    LOCAL + '+sync.optimizer_state=mean', HALF
  ),
  'mean, half and half, period 7': Recipe(LOCAL, HALF + '+sync.trigger.k=7'),
  'Muon, plain': Recipe(MUON, PLAIN),
  'Muon, half and half': Recipe(MUON, HALF),
  'selsync, plain': Recipe(SELSYNC, PLAIN),
  'selsync, half and half': Recipe(SELSYNC, HALF),
  'outer, plain': Recipe(OUTER, PLAIN),
  'outer, half and half': Recipe(OUTER, HALF),
  'outer, mixed': Recipe(OUTER, MIXED),
  'outer, eager': Recipe(OUTER, EAGER),
  'fragments, mixed': Recipe(
    'streaming_diloco+sync.period=3+sync.wire=int8', MIXED
  ),
}


class Case(NamedTuple):
  """A recipe with a delay; delay 0 means none."""

  recipe: str
  delay: int

  @property
  def method(self) -> str:
    """The method, as in `compare`."""
    method, late = RECIPES[self.recipe]
    added = f'+sync.{late.format(k=self.delay)}' if self.delay else ''
    return method + added

  @property
  def name(self) -> str:
    """The delay, for a table."""
    fixed = '{k}' not in RECIPES[self.recipe].late
    return 'a round' if fixed and self.delay else str(self.delay)


class Outcome(NamedTuple):
  """The result of a case: its learning rate, and the loss of each seed."""

  rate: float
  losses: list[float]


def cases(recipes: Iterable[str], delays: Sequence[int]) -> list[Case]:
  """Every recipe without and with a delay; a fixed delay counts once."""
  return [
    Case(recipe, k)
    for recipe in recipes
    for k in (0, *(delays if '{k}' in RECIPES[recipe].late else delays[:1]))
  ]


def list_trials(
  method: str, rates: str, seed: int, seeds: int, options: argparse.Namespace
) -> list[Trial]:
  """The runs of one method."""
  return trials.list_trials(
    f'{ROOT}/configs/{options.config}',
    [
      *(f'--config.seed={seed}', '--config.data.backend=numpy'),
      # Several runs at a time are each faster on one device.
      *('--config.mapper=map', '--config.eval.every_epochs=1000.0'),
      *([f'--config.steps={options.steps}'] if options.steps else []),
    ],
    [method],
    options.work,
    learning_rates=flags.rates(rates),
    seeds=seeds,
  )


def loss(trial: Trial) -> float:
  """The validation loss of a run; infinite if it diverged."""
  from selsync_jax.runs import history

  if not trial.is_done:
    return float('inf')
  found = history.read(trial.workdir).outcome['validation_loss']
  return float('inf') if found is None else found


def measure(options: argparse.Namespace) -> dict[Case, Outcome]:
  """Tunes and trains every case; cases with the same run share it."""
  every = cases(options.recipes, options.delays)
  methods = dict.fromkeys(case.method for case in every)
  tried = {
    m: list_trials(m, options.rates, TUNING_SEED, 1, options) for m in methods
  }
  every_rate = [*itertools.chain(*tried.values())]
  if len(every_rate) > len(tried):  # A single rate needs no choice.
    runs.train_all(every_rate, options.jobs)
  best = {m: min(each, key=loss).learning_rate for m, each in tried.items()}
  chosen = {
    m: list_trials(m, repr(rate), SEEDS, options.seeds, options)
    for m, rate in best.items()
  }
  runs.train_all(itertools.chain(*chosen.values()), options.jobs)
  return {
    case: Outcome(best[case.method], [loss(t) for t in chosen[case.method]])
    for case in every
  }


def above(found: dict[Case, Outcome], case: Case) -> list[float]:
  """The increase of each seed's loss over no delay, in percent."""
  pairs = zip(
    found[case].losses, found[Case(case.recipe, 0)].losses, strict=True
  )
  return [100 * (late / prompt - 1) for late, prompt in pairs]


def table(found: dict[Case, Outcome]) -> str:
  """The table, in Markdown, with a row for each delayed case."""
  lines = [['recipe', 'delay', *HEAD], ['---', *['---:'] * 4]]
  for case, (_, losses) in found.items():
    if case.delay:
      lines.append(
        [
          *(case.recipe, case.name),
          significance.spread(found[Case(case.recipe, 0)].losses, '.4f').text,
          significance.spread(losses, '.4f').text,
          significance.spread(above(found, case), '+.2f').text,
        ]
      )
  return markdown(lines)


def draw(found: dict[Case, Outcome], folder: pathlib.Path) -> None:
  """Draws the increase of the loss over the delay."""
  from selsync_jax.report import figure, image_files

  points: dict[str, dict[int, float]] = {}
  for case in found:
    mean = statistics.fmean(above(found, case))
    points.setdefault(case.recipe, {})[case.delay] = mean
  marks = [
    figure.Line(recipe, [*curve], [*curve.values()], figure.series(index))
    for index, (recipe, curve) in enumerate(points.items())
  ]
  x = figure.Axis((0, max(case.delay for case in found)), 'delay (steps)')
  title = 'validation loss above that without a delay (%)'
  panel = figure.Panel(title, x, figure.Axis(), marks, 280)
  image_files.write([figure.Plot('delays', title, '', [panel])], folder)


def main() -> None:
  parser = runs.parser(__doc__, 'delay', 'delays')
  add = parser.add_argument
  add('--config', default='stdlib_gpt.py:smoke', help='a file in configs/')
  add('--recipes', nargs='+', default=list(RECIPES), choices=RECIPES)
  add('--delays', nargs='+', type=int, default=[3], help='steps')
  add('--rates', default='1x,2x,4x', help='learning rates, as for compare')
  add('--steps', type=int, help="default: the config's")
  add('--picture', action='store_true', help='draw WORK/plots/delays.png')
  options = parser.parse_args()
  found = measure(options)
  text = table(found)
  if options.picture:
    draw(found, options.work)
  if options.into:
    marked.insert(text, options.into, 'delays')
  record = {
    'config': options.config,
    'outcomes': [
      {**case._asdict(), 'method': case.method, **outcome._asdict()}
      for case, outcome in found.items()
    ],
  }
  report(options.out, record, notes=[text])


if __name__ == '__main__':
  main()
