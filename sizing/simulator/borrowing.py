"""Arrays whose references numba does not count, for the loops of the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba.extending import intrinsic
from numpy.typing import NDArray

Borrow = Callable[[NDArray[Any]], NDArray[Any]]


def _borrow(typing_context: Any, array: Any) -> Any:
    """The same array without its owner."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        view = context.make_array(signature.return_type)(context, builder, values[0])
        view.meminfo = view.meminfo.type(None)
        return view._getvalue()

    return array(array), generate


borrowed = cast(Borrow, intrinsic(_borrow))
"""In compiled code: the same array, whose owner must live on.

numba counts references by atomic operations, for each array that a function is given: two thirds of the time of a
simulation. Nothing is counted for a borrowed array.
"""
