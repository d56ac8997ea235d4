"""Something that arrives piece by piece: iterate over it, or leave early and let go of the connection."""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

from belljar.sdk.errors import InvalidArgument

T = TypeVar("T")


class AsyncStream(Generic[T]):
    """An iterator that can be left at any time: `async with stream:`, or `await stream.aclose()`."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._reading = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._reading:
            raise InvalidArgument("this stream is being read already; one reader at a time")
        self._reading = True
        try:
            item: T = await anext(self._source)
        except BaseException:
            self._reading = False
            await self.aclose()
            raise
        self._reading = False
        return item

    async def aclose(self) -> None:
        if self._reading:
            raise InvalidArgument("this stream is being read; whoever reads it must leave it")
        await self._source.aclose()
