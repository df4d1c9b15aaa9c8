"""The claims of the SelSync paper and of its rivals' papers, one by one.

  python -m benchmarks.quality.paper --only delta rivals --into=docs/paper.md

Trains scaled-down runs for the claims, with fresh seeds, unless an earlier call
has trained them, and judges each claim by the rule stated with it. Prints a
table for each group of claims: the paper's numbers, ours, and whether the claim
holds. Writes each table into a page between `<!-- claims_GROUP -->` and
`<!-- /claims_GROUP -->`, and all results into paper.json.
"""

from collections.abc import Mapping, Sequence

from benchmarks import marked
from benchmarks.quality import runs
from benchmarks.quality.paper import (
  changes,
  clock,
  cost,
  injection,
  table_one,
  workloads,
)
from benchmarks.quality.paper.claim import Claim, Finding
from benchmarks.table import markdown, report

GROUPS: dict[str, tuple[str, list[Claim]]] = {
  'table': ('Table I by its own numbers', table_one.CLAIMS),
  'workloads': ('Table I on smaller tasks', [*workloads.claims()]),
  'settings': (
    "FedAvg with the paper's steps, SSP with one slow worker",
    [*workloads.settings()],
  ),
  'delta': (
    'Delta, and the number of workers',
    [*changes.claims(), *changes.claims_of_workers()],
  ),
  'injection': ('Data injection', [*injection.claims()]),
  'rivals': (
    'eager-SGD, DSSP, MiCRO, and ExDyna',
    [*clock.eager(), *clock.dssp(), *clock.sparse()],
  ),
  'cost': ('The cost of measuring and selecting', [*cost.claims()]),
}
"""A heading and the claims, by name for the command line."""


def table(claims: Mapping[Claim, Finding]) -> list[list[str]]:
  """Returns the table of one group, its names first."""
  return [
    ['claim', 'the paper', 'ours', 'judged', 'verdict'],
    *(
      [c.text, c.theirs, f.ours, f.judged, f.verdict] for c, f in claims.items()
    ),
  ]


def text_of(*tables: Sequence[Sequence[str]]) -> str:
  """Returns tables in Markdown."""
  return '\n'.join(
    markdown([head, ['---'] * len(head), *rows]) for head, *rows in tables
  )


def main() -> None:
  marks = [f'claims_{name}' for name in GROUPS]
  parser = runs.parser(__doc__, 'paper', *marks)
  parser.add_argument('--only', nargs='+', default=list(GROUPS), choices=GROUPS)
  options = parser.parse_args()
  seeds, work = options.seeds, options.work.resolve()
  text, record = '', {}
  for name in options.only:
    heading, claims = GROUPS[name]
    trials = {
      trial.workdir: trial
      for claim in claims
      for arm in claim.arms
      for trial in arm.trials(seeds, work)
    }
    runs.train_all(trials.values(), options.jobs)
    found = {claim: claim.finding(seeds, work) for claim in claims}
    if name == 'workloads':
      tables = [
        workloads.score_lines(seeds, work),
        workloads.verdict_lines(found),
      ]
    else:
      of_table_one = [table_one.lines()] * (name == 'table')
      tables = [*of_table_one, table(found)]
    if options.into:
      marked.insert(text_of(*tables), options.into, f'claims_{name}')
    text += f'### {heading}\n\n{text_of(*tables)}\n'
    record[name] = [
      {
        **{'claim': claim.text, 'task': claim.task, 'paper': claim.theirs},
        **finding._asdict(),
      }
      for claim, finding in found.items()
    ]
  report(options.out, {'seeds': seeds, 'claims': record}, notes=[text])


if __name__ == '__main__':
  main()
