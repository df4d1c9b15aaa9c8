"""Commands whose input and output are a terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios


def on_terminal(width, *command, code=0, cwd=None, **environment):
  """The output of a command on a terminal, without escape sequences."""
  ours, theirs = pty.openpty()
  fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 24, width, 0, 0))
  inherited = {k: v for k, v in os.environ.items() if k != 'COLUMNS'}
  with subprocess.Popen(
    [sys.executable, *command],
    stdin=theirs,
    stdout=theirs,
    stderr=theirs,
    cwd=cwd,
    env=inherited | {'TERM': 'xterm'} | environment,
  ) as process:
    os.close(theirs)
    text = b''
    try:
      while more := os.read(ours, 2**16):
        text += more
    except OSError:  # Linux raises it when the terminal is closed.
      pass
    os.close(ours)
  assert process.returncode == code, text
  return re.sub(r'\x1b\[[0-9;?]*[A-Za-z]', '', text.decode())
