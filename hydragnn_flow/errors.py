"""The errors a user can cure."""


class InputError(ValueError):
    """Something the user gave is wrong.

    The message is one sentence that names the file and the key, says what is wrong and what to do
    about it. The command line prints it and ends with exit code 2. Nearly all are found before
    anything is started.
    """


class StoreError(InputError):
    """A store or a HydraGNN `.bp` file that is damaged, incomplete, in use or cannot be written."""


class SelectionError(StoreError, IndexError):
    """Graphs were asked for that a split does not have."""


class NoWorkers(InputError):
    """No worker will come; the input may be in order."""


class CampaignStopped(RuntimeError):
    """Something around the campaign keeps its work from being done: a full disk, a broken node.

    Nothing is lost. When it is cured, the same command continues.
    """


class JobLost(RuntimeError):
    """The node, batch job or disk of a job failed, which says nothing of the job."""


class UncertaintyExceeded(RuntimeError):
    """A structure of a dynamics is one the ensemble is too unsure of; the watch stops it there."""
