"""A search over recipes: a method, its parts, and their settings.

`space` has the choices, `search` the list of trials, and `objective` the goal.
`curves` reads the scores and costs of runs, and `page` shows the result.
"""
