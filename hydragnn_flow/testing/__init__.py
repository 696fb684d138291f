"""Conformance suites for parts that users bring. They need pytest, which the package does not.

Nothing here is imported by the rest of the package.
"""

import pytest

# So that a failed comparison shows its values, as in a test's own module.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{suite}"
        for suite in ("engines", "message_passing", "samplers", "sites", "sources")
    )
)
