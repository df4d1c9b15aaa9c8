"""The built-in writers, each imported when `config.log.to` names it."""
