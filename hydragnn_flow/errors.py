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
    """Error: graphs were requested whose positions a split of a store does not have."""


class NoWorkers(InputError):
    """Error: no worker can be had, and waiting would not help; the input may be correct."""


class CampaignStopped(RuntimeError):
    """Error: an outside cause, such as a full disk or a broken node, stops a campaign.

    Nothing is lost. Once the cause is removed, the same command continues the campaign.
    """


class JobLost(RuntimeError):
    """Error: a job ended because its node, batch job or disk failed, not by a fault of its own."""


class UncertaintyExceeded(RuntimeError):
    """Error that stops a molecular dynamics whose ensemble is too uncertain of a structure."""
