"""Our own writers: where rows go besides `metrics.jsonl`, one file each.

Each is imported when `config.log.to` names it; `writers` has the table.
"""
