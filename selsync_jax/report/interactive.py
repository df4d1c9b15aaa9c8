"""Descriptions of figures for plotly.js, which the page's script draws.

A description is JSON: `{'data', 'wide', 'narrow'}`, the traces of plotly.js and
two layouts. A color is `$NAME` of the palette, which the script replaces in
light and in dark mode. A trace's `legendgroup` names its entry of the legend.

References:
  https://plotly.com/javascript/reference
"""

import html
import math
import re
from typing import Any

import numpy as np

from selsync_jax.report import figure

_MARKERS = {'o': 'circle', 's': 'square', '^': 'triangle-up', 'D': 'diamond'}
_MARKERS |= {'v': 'triangle-down', 'P': 'cross', 'X': 'x'}
_STEPS = {'': 'linear', 'mid': 'hvh', 'pre': 'vh'}
_SHADE = f'{round(255 * figure.OPACITY):02x}'  # The alpha digits of a color.
_AXIS = {
  'automargin': False,
  'color': '$muted',
  'gridcolor': '$rule',
  'linecolor': '$muted',
  'zeroline': False,
}
_TEMPLATE = {
  'annotationdefaults': {'font': {'color': '$ink', 'size': 13}},
  'barmode': 'overlay',
  'font': {'family': 'system-ui, sans-serif', 'size': 12},
  'hoverlabel': {
    'bgcolor': '$paper',
    'bordercolor': '$muted',
    'font': {'color': '$ink'},
  },
  'margin': dict.fromkeys('lrtb', 0),
  'paper_bgcolor': '#0000',
  'plot_bgcolor': '#0000',
  'showlegend': False,
  'xaxis': _AXIS
  | {'showline': True, 'tickangle': 0, 'ticks': 'outside', 'ticklen': 3},
  'yaxis': _AXIS | {'showline': True},
}
_ABOVE = {'xanchor': 'left', 'yanchor': 'bottom'}
_ABOVE |= {'xref': 'paper', 'yref': 'paper', 'showarrow': False}


def describe(plot: figure.Plot) -> dict[str, Any]:
  """Describes the figure as JSON."""
  traces = []
  for i, panel in enumerate(plot.panels, 1):
    # Stacked panels share the first x axis.
    axes = {'xaxis': f'x{i if plot.columns else 1}', 'yaxis': f'y{i}'}
    for mark in panel.drawn:
      traces += [
        {**trace, **axes, 'legendgroup': mark.name}
        for trace in _traces(mark, panel)
      ]
  layouts = {'wide': figure.WIDE, 'narrow': figure.NARROW}
  return {'data': traces} | {k: _layout(plot, v) for k, v in layouts.items()}


def _traces(mark: figure.Mark, panel: figure.Panel) -> list[dict[str, Any]]:
  hover = _hover(mark, panel)
  match mark:
    case figure.Line(_, x, y, look, steps):
      trace = {'x': _list(x), 'y': _list(y), **_style(look, steps), **hover}
      return [{'type': 'scatter', **trace}]
    case figure.Band(_, x, low, high, color):
      edge = {'type': 'scatter', 'mode': 'lines', 'line': {'width': 0}}
      edge |= {'x': _list(x)}
      fill = {'fill': 'tonexty', 'fillcolor': f'${color}{_SHADE}'}
      bounds = list(zip(_list(low), _list(high), strict=True))
      return [
        {**edge, 'y': _list(low), 'hoverinfo': 'skip'},
        {**edge, 'y': _list(high), 'customdata': bounds, **fill, **hover},
      ]
    case figure.Bars(_, x, y, widths, color):
      bars = {'x': _list(x), 'y': _list(y), 'width': _list(widths)}
      fill = {'marker': {'color': f'${color}'}}
      return [{'type': 'bar', **bars, **fill, **hover}]
    case figure.Spans(_, rows, starts, stops, color, texts):
      trace = {
        'type': 'bar',
        'orientation': 'h',
        'y': list(rows),
        'x': _list(np.subtract(stops, starts)),
        'base': _list(starts),
        'width': 0.72,
        'customdata': list(zip(_list(starts), _list(stops), strict=True)),
        'text': list(texts),
        'textposition': 'inside',
        'insidetextanchor': 'middle',
        'textangle': 0,
        'insidetextfont': {'color': '$paper'},
        'marker': {'color': f'${color}'},
      }
      return [trace | hover]


def _hover(mark: figure.Mark, panel: figure.Panel) -> dict[str, Any]:
  text = f'{mark.name}: {{y}}' if mark.hover is None else mark.hover
  if not text:
    return {'hoverinfo': 'skip'}
  of = panel.x if isinstance(mark, figure.Spans) else panel.y
  values = {
    'x': _value('x', panel.x),
    'y': _value('y', panel.y),
    'low': _value('customdata[0]', of),
    'high': _value('customdata[1]', of),
    'row': '%{y}',
    'text': '%{text}',
  }
  # A name may contain braces, which are not fields.
  parts = re.split(rf'\{{({"|".join(values)})\}}', text)
  literal = (html.escape(part).replace('%{', '%&#123;') for part in parts[::2])
  parts[::2], parts[1::2] = literal, [values[name] for name in parts[1::2]]
  return {'hovertemplate': ''.join(parts) + '<extra></extra>'}


def _value(name: str, axis: figure.Axis) -> str:
  plain = ',.6~r' if max(axis.limits) >= 1000 else '.4~g'
  form = '.4~s' if axis.unit else plain
  return f'%{{{name}:{form}}}{axis.unit}'


def _style(look: figure.Look, steps: str) -> dict[str, Any]:
  color = f'${look.color}'
  lines = {'color': color, 'width': look.width, 'shape': _STEPS[steps]}
  if look.dash:
    lines['dash'] = ','.join(f'{part * look.width:g}px' for part in look.dash)
  if not look.marker:
    return {'mode': 'lines', 'line': lines}
  marker: dict[str, Any] = {
    'color': color,
    'symbol': _MARKERS[look.marker],
    'size': 1.4 * look.size,
    'opacity': look.opacity,
  }
  if not look.width:
    return {'mode': 'markers', 'marker': marker, 'cliponaxis': False}
  marker['maxdisplayed'] = 12
  return {'mode': 'lines+markers', 'line': lines, 'marker': marker}


def _layout(plot: figure.Plot, layout: figure.Layout) -> dict[str, Any]:
  height, places = plot.boxes(layout)
  on_phone = layout is figure.NARROW
  described: dict[str, Any] = {
    'height': height,
    'dragmode': False if on_phone else 'zoom',  # A phone scrolls.
    'template': {'layout': _TEMPLATE},
    'uirevision': 'kept',  # A change of colors keeps the zoom.
    'annotations': [],
  }
  for i, (panel, box) in enumerate(zip(plot.panels, places, strict=True), 1):
    across = [box.left / layout.width, (box.left + box.width) / layout.width]
    down = [1 - (box.top + box.height) / height, 1 - box.top / height]
    number = i if plot.columns else 1
    if number == i:
      below = i if plot.columns else len(places)
      x = plot.panels[below - 1].x
      title = {'text': html.escape(x.label), 'standoff': 4}
      hover = {'text': f'{title["text"]}: {_value("x", x)}'}
      place = {'anchor': f'y{below}', 'domain': across}
      more = {'title': title, 'unifiedhovertitle': hover}
      described[f'xaxis{i}'] = _axis(x) | place | more
    place = {'anchor': f'x{number}', 'domain': down}
    described[f'yaxis{i}'] = _axis(panel.y) | place
    heading = {'text': html.escape(panel.title), 'x': across[0], 'y': down[1]}
    described['annotations'].append(heading | _ABOVE)
    described['annotations'] += [
      _name(*placed, panel, i)
      for placed in figure.place(panel, box.width, box.height)
    ]
  joined = {'hovermode': 'x unified', 'hoversubplots': 'axis'}
  return described | (joined if plot.compares_x else {'hovermode': 'closest'})


def _name(
  name: figure.Name, right: int, up: int, panel: figure.Panel, number: int
) -> dict[str, Any]:
  """Describes a name as an annotation, which its legend entry hides."""
  return {
    'text': html.escape(name.text),
    'name': name.entry,
    'x': math.log10(name.x) if panel.x.log else name.x,
    'y': math.log10(name.y) if panel.y.log else name.y,
    'xref': f'x{number}',
    'yref': f'y{number}',
    'xanchor': figure.ACROSS[right],
    'yanchor': 'middle' if not up else figure.ALONG[up],
    'xshift': figure.GAP * right,
    'yshift': figure.GAP * up,
    'showarrow': False,
    'font': {'size': 11},
  }


def _axis(axis: figure.Axis) -> dict[str, Any]:
  limits = [math.log10(v) for v in axis.limits] if axis.log else axis.limits
  described: dict[str, Any] = {'range': _list(limits), 'nticks': axis.ticks + 1}
  if axis.log:
    described |= {'type': 'log', 'dtick': 'D2' if axis.is_short else 1}
  if axis.names:
    names, places = list(axis.names), list(range(len(axis.names)))
    described |= {'tickvals': places, 'ticktext': names, 'showgrid': False}
  elif axis.whole and np.ptp(axis.limits) <= axis.ticks:
    described |= {'tick0': 0, 'dtick': 1}
  elif not axis.ticks:
    described |= {'showticklabels': False, 'showgrid': False}
  if axis.has_prefixes:
    described |= {'tickformat': '~s', 'ticksuffix': axis.unit}
  elif axis.log:
    described |= {'tickformat': '~g'}
  return described


def _list(values: figure.Values) -> list[float | int | None]:
  """Returns numbers for JSON: six digits of fractions, null if not finite."""
  numbers = np.asarray(values, float).tolist()
  return [_short(each) if math.isfinite(each) else None for each in numbers]


def _short(number: float) -> float | int:
  return int(number) if number == int(number) else float(f'{number:.6g}')
