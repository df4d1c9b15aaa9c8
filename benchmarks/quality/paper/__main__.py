"""The claims of the SelSync paper and of its rivals' papers, one by one.

  python -m benchmarks.quality.paper --only digits eager --into=docs/paper.md

Trains scaled-down runs for the claims, with fresh seeds, unless an earlier call
has trained them, and judges each claim by the rule stated with it. Prints a
table for each group of claims: the paper's numbers, ours, and whether the claim
holds. Writes each table into a page between `<!-- claims_GROUP -->` and
`<!-- /claims_GROUP -->`, and all results into paper.json.
"""

from collections.abc import Mapping

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
from selsync_jax.report import marked

GROUPS: dict[str, tuple[str, list[Claim]]] = {
  'table': ('Table I by its own numbers', table_one.CLAIMS),
  **{
    name: (f'{name}, for {workload}', [*workloads.claims(task, workload)])
    for name, (task, workload) in workloads.TASKS.items()
  },
  'rounds': ("FedAvg with the paper's steps", [*workloads.rounds()]),
  'far': ('SSP with one slow worker', [*workloads.far()]),
  'changes': ('Delta, and when gradients change', [*changes.claims()]),
  'workers': ('The number of workers', [*changes.claims_of_workers()]),
  'injection': ('Data injection', [*injection.claims()]),
  'eager': ('eager-SGD', [*clock.eager()]),
  'dssp': ('DSSP', [*clock.dssp()]),
  'sparse': ('MiCRO and ExDyna', [*clock.sparse()]),
  'cost': ('The cost of measuring and selecting', [*cost.claims()]),
}
"""A heading and the claims, by name for the command line."""


def table(claims: Mapping[Claim, Finding]) -> str:
  """Returns the table of one group, in Markdown."""
  lines = [
    ['claim', 'the paper', 'ours', 'judged', 'verdict'],
    ['---'] * 5,
    *(
      [c.text, c.theirs, f.ours, f.judged, f.verdict] for c, f in claims.items()
    ),
  ]
  return markdown(lines)


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
    if options.into:
      marked.insert(table(found), options.into, f'claims_{name}')
    text += f'### {heading}\n\n{table(found)}\n'
    record[name] = [
      {'claim': claim.text, 'paper': claim.theirs, **finding._asdict()}
      for claim, finding in found.items()
    ]
  report(options.out, {'seeds': seeds, 'claims': record}, notes=[text])


if __name__ == '__main__':
  main()
