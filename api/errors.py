"""What can go wrong in what surrounds planning.

::

    CodedError                  see placement.errors
     +-- ApiError               everything below comes from this package
          +-- RayMissing        --workers ray without Ray
          +-- RayUnreachable    no Ray cluster answers

``code`` is the class name in capitals, as everywhere.
"""

from __future__ import annotations

from placement.errors import CodedError


class ApiError(CodedError):
    """Something around planning failed."""


class RayMissing(ApiError):
    """Ray is not installed; the extra moeplan[ray] brings it."""


class RayUnreachable(ApiError):
    """No Ray cluster answers."""
