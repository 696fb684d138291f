"""Errors that a user can fix."""


class InputError(ValueError):
    """Error in something the user gave.

    The message is one sentence that names the file and the key, says what is wrong and how to fix
    it. The command line prints it and ends with exit code 2. Nearly all are raised before anything
    starts.
    """


class StoreError(InputError):
    """Store or HydraGNN `.bp` file that is damaged, incomplete, in use or cannot be written."""


class SelectionError(StoreError, IndexError):
    """Request for graphs that a split does not have."""


class NoWorkers(InputError):
    """Lack of workers that will not end; the input may be correct."""


class CampaignStopped(RuntimeError):
    """Outside cause that keeps a campaign from its work, such as a full disk or a broken node.

    Nothing is lost. Once the cause is removed, the same command continues.
    """


class JobLost(RuntimeError):
    """Failure of the node, batch job or disk of a job, for which the job is not to blame."""


class UncertaintyExceeded(RuntimeError):
    """Structure of a dynamics whose ensemble uncertainty is too large; the watch stops there."""
