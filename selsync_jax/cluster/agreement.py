"""Agreement on the last step, after which all programs of a run stop."""


class Agreement:
  """A program's part in the agreement; here of a program that is alone.

  It stops after its next step. `link.LinkAgreement` is for several programs.

  Attributes:
    is_asked: whether this program was asked to stop.
  """

  def __init__(self):
    self.is_asked = False

  def ask(self) -> None:
    """Asks all programs to stop, or to continue without this one."""
    self.is_asked = True

  def stops_after(self, step: int) -> bool:
    """Returns whether to stop after this step; equal in all programs.

    Call it after every step. It waits while the programs agree.
    """
    del step
    return self.is_asked
