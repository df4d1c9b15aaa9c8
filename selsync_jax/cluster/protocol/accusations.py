"""Which island ends when islands accuse each other."""

import collections
from collections.abc import Container, Mapping


def judge(
  accused: Mapping[tuple[str, str], str],
  members: Mapping[str, int],
  strikes: Container[str],
) -> tuple[str, str]:
  """Returns the island that most others accuse, or that accuses most of them.

  If one island accuses another and is not accused itself, the accuser ends: it
  cannot reach an island that others can. If it reports a wrong message, it is
  believed once, and the accused island ends.

  Args:
    accused: what is wrong with a message, or nothing if an island cannot be
      reached, by accuser and accused. All of them are members.
    members: the number of each island's connection, by name.
    strikes: accusers that were believed once.

  Returns:
    The name of the island that ends, and its fate.
  """
  times = collections.Counter(name for pair in accused for name in pair)
  blamed = {name for _, name in accused}
  believed = {
    name
    for (accuser, name), why in accused.items()
    if why and accuser not in strikes
  }
  worst = max(
    times,
    key=lambda name: (
      times[name],
      name in believed,
      name not in blamed,
      members[name],
    ),
  )
  by = sorted(accuser for accuser, other in accused if other == worst)
  whys = [why for (_, other), why in accused.items() if other == worst]
  if any(whys):
    return worst, f'sends {", ".join(by)} {max(whys)}'
  if by:
    return worst, f'cannot be reached by {", ".join(by)}'
  others = ', '.join(
    sorted(other for accuser, other in accused if accuser == worst)
  )
  if any(accused.values()):
    return worst, f'finds wrong what {others} sends'
  return worst, f'cannot reach {others}'
