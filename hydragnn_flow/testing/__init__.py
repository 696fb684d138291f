"""Conformance suites for parts that users bring, such as networks, data sources and sites.

The suites test what the package relies on, so that a user's own network, message-passing type,
source, sampler or site fails in a test and not in a campaign. The suites need pytest, which the
package does not require; so the package imports nothing of this folder.
"""

import pytest

# Failed comparisons then show their values, as they do in a test's own module.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{suite}"
        for suite in ("engines", "message_passing", "networks", "samplers", "sites", "sources")
    )
)
