"""Reads a report page: its sections, its tables, the lines of its figures."""

import html
import json
import re

import numpy as np


def section(text, name):
  return re.search(rf'<section id="{name}">.*?</section>', text, re.S)[0]


def table(text, name):
  """The first column of a table, and the exact numbers of the second."""
  rows = re.findall(r'<tr><th scope="row">.*?</tr>', section(text, name))
  return {
    html.unescape(re.search('<th[^>]*>(.*?)</th>', row)[1]): float(value[1])
    for row in rows
    if (value := re.search('<data value="(.*?)">', row))
  }


def figure(text, name):
  """The drawing commands of the page's script."""
  part = section(text, name)
  script = r'<script type="application/json">(.*?)</script>'
  return json.loads(re.search(script, part, re.S)[1])


def marks(text, name, panel, entry):
  """The marks of a legend entry in a panel; panels count from 1."""
  return [
    mark
    for mark in figure(text, name)['data']
    if mark['yaxis'] == f'y{panel}' and mark['legendgroup'] == entry
  ]


def line(text, name, panel, entry):
  """The points of the only line of that name in a panel."""
  (mark,) = marks(text, name, panel, entry)
  return np.array(mark['x'], float), np.array(mark['y'], float)
