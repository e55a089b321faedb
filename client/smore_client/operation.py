"""How one definition of an operation becomes a method of both clients."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_args, overload

from smore_client.transport import Flow

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")


class Carrier:
    """Performs flows and blocks until they end."""

    def carry(self, flow: Flow[T]) -> T:
        """Perform a flow, such as one of :mod:`smore_client.admin`, and return its result."""
        raise NotImplementedError


class AsyncCarrier:
    """Performs flows on the running event loop."""

    async def carry(self, flow: Flow[T]) -> T:
        """Perform a flow, such as one of :mod:`smore_client.admin`, and return its result."""
        raise NotImplementedError


class operation(Generic[S, P, T]):  # noqa: N801 - a decorator
    """
    A method that is written once, as a generator of :data:`~smore_client.transport.Flow`, and performed by the client.

    On a :class:`Carrier` the call returns the result, on an :class:`AsyncCarrier` a coroutine of it. Read from the
    class it is the generator itself. An operation must not call another one: on a client that would perform it. Steps
    that operations share are plain generators.
    """

    def __init__(self, function: Callable[Concatenate[S, P], Flow[T]]) -> None:
        self.function = function
        # What `help` shows: callers get the result of the flow.
        function.__annotations__["return"] = get_args(function.__annotations__["return"])[2]

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[S, P], Flow[T]]: ...
    @overload
    def __get__(self, instance: Carrier, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: AsyncCarrier, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        if instance is None:
            return self.function

        @wraps(self.function)
        def perform(*args: Any, **options: Any) -> Any:
            return instance.carry(self.function(instance, *args, **options))

        return perform
