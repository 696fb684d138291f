"""Errors that a user can fix."""


class InputError(ValueError):
    """Error: something that the user gave, such as a file, a key or an option, is wrong.

    The message is one sentence that names the file and the key, says what is wrong and how to fix
    it. The command line prints it and ends with exit code 2. Nearly all are raised before anything
    starts.
    """


class StoreError(InputError):
    """Error: a GraphStore or HydraGNN `.bp` file is damaged, incomplete, in use or not writable."""


class SelectionError(StoreError, IndexError):
    """Error: graphs requested from a split are not there, or none was requested."""


class NoWorkers(InputError):
    """Error: a site can start no workers (one per GCD), although the input may be correct.

    Waiting for workers would not help.
    """


class CampaignStopped(RuntimeError):
    """Error: an outside cause, such as a full disk or a broken node, stops a campaign.

    Nothing is lost. Once the cause is removed, the same command continues the campaign.
    """


class JobLost(RuntimeError):
    """Error: a job ended because its node, batch job or disk failed, not by a fault of its own."""


def lacking(package: str, extra: str) -> str:
    """Return a sentence: a package is not installed, and the extra of this one that brings it."""
    return f"{package} is not installed; give `pip install 'hydragnn_flow[{extra}]'`"


class UncertaintyExceeded(RuntimeError):
    """Error: a molecular dynamics run stops, as the ensemble is too uncertain of a structure."""
