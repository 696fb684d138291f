"""Tables, figures and the HTML report of a campaign."""

import logging

# It warns at its import where the home directory is read-only.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
