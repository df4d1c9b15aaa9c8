"""Describes an error in one line, with the line of user code that raised it.

An error may come from a user's file: through JAX, through Flax, or as the text
of an error in a callback. Then the line in that file helps most.
"""

from collections.abc import Iterator
import os
import pathlib
import re
import sysconfig
import tempfile
import traceback
from typing import Any

# The folders of this package, of Python, and of packages installed by pip.
_HERE = pathlib.Path(__file__).parent
_INSTALLED = ('stdlib', 'platstdlib', 'purelib', 'platlib', 'scripts')
_LIBRARIES = (
  *(f'{sysconfig.get_path(name)}{os.sep}' for name in _INSTALLED),
  f'{_HERE}{os.sep}',
  # The scripts at the top of a checkout.
  *(f'{_HERE.parent / name}.py' for name in ('train', 'compare')),
)
# A traceback inside the text of an error, which callbacks raise.
_FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)
RAISED = (Exception, SystemExit, GeneratorExit)
"""Exceptions that a user's code may raise, without Ctrl-C."""

_LONGEST = 300  # Characters of an error's text.


def one_line(error: BaseException, file: str = '') -> str:
  """Describes a caught error in one line: `FILE:LINE: TYPE: TEXT`.

  Names `file` if no line of a user's file was running.
  """
  place = next(_places(error), file)
  return ': '.join(filter(None, [place, _text(error)]))


def is_users(error: BaseException) -> bool:
  """Whether a line of a user's file was running."""
  return any(_places(error))


def is_own(file: str | None) -> bool:
  """Whether a file is neither this package's nor a library's."""
  if not file or file.startswith(('<', *_LIBRARIES)):
    return False
  if file.endswith(('.pyx', '.pxi')):  # Compiled, and named without a folder.
    return False
  # A library may be in another environment, or in the user's home.
  return not {'site-packages', 'dist-packages'} & {*pathlib.Path(file).parts}


def keep(error: BaseException, folder: pathlib.Path, name: str) -> pathlib.Path:
  """Writes the full traceback of an error to a file, and returns the file.

  If `folder` is not writable, the file is in the folder for temporary files.
  """
  text = ''.join(traceback.format_exception(error))
  content = text.encode(errors='backslashreplace')
  path = folder / name
  try:
    path.write_bytes(content)
  except OSError:
    path = pathlib.Path(tempfile.mkdtemp(prefix='selsync-'), name)
    path.write_bytes(content)
  return path


def reason(error: BaseException) -> str:
  """Returns why a system call failed, or the text of any other error."""
  text = ' '.join(str(error).split())
  if code := re.search(r"os_error_code='(\d+)'", text):  # From tensorstore.
    return os.strerror(int(code[1]))
  return getattr(error, 'strerror', None) or text


def of_file(error: OSError) -> str:
  """Returns the error's file name, if it has one, and its `reason`."""
  named = error.strerror and error.filename is not None
  line = f'{error.filename}: ' * bool(named) + reason(error)
  return line or type(error).__name__


def _places(error: BaseException) -> Iterator[str]:
  """Yields the innermost user line of the error and of each cause."""
  cause: BaseException | None = error
  seen: set[int] = set()  # Some libraries raise an error from itself.
  while cause is not None and id(cause) not in seen:
    seen.add(id(cause))
    lines: list[tuple[str | None, Any]] = [
      (frame.filename, frame.lineno)
      for frame in traceback.extract_tb(cause.__traceback__)
    ]
    if isinstance(cause, SyntaxError):
      lines.append((cause.filename, cause.lineno or 1))
    lines += _FRAME.findall(str(cause))
    own = [f'{file}:{line}' for file, line in lines if is_own(file)]
    yield from own[-1:]
    cause = cause.__cause__ or cause.__context__


def _text(error: BaseException) -> str:
  """Returns the type and the text of an error, without line breaks."""
  text = str(getattr(error, 'msg', error))
  if frames := list(_FRAME.finditer(text)):
    after = text[frames[-1].end() :].splitlines()[1:]
    return next((line for line in after if line[:1].strip()), '')[:_LONGEST]
  text = ' '.join(text.split())[:_LONGEST]
  return f'{type(error).__name__}: {text}'
