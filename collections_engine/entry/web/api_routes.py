"""The table of routes: the application serves it, and the OpenAPI document describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel

from collections_engine.entry.web import api_handlers as handlers
from collections_engine.entry.web import api_wallet
from collections_engine.entry.web.api_handlers import Call
from collections_engine.entry.web.api_models import (
    Accepted,
    Converted,
    Converting,
    Created,
    Instalment,
    Nothing,
    Page,
    Posted,
    Posting,
    RequestShown,
    Shown,
    Wallets,
)
from collections_engine.usecases.idempotency import Effect, Reply


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    scope: str
    answers: Mapping[int, type[BaseModel]]
    """What a success gives, by status."""
    refusals: tuple[int, ...] = ()
    """Statuses of its own beside those that every route has."""
    get: Callable[[Call], Reply] | None = None
    post: Callable[[Call], Effect] | None = None
    takes: type[BaseModel] | None = None
    takes_list: bool = False
    """One object or a list of them."""
    takes_nothing: bool = False
    """The body may be left out."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Parameters after the question mark, with what they mean."""
    wakes: bool = False
    """A success is work for whoever collects."""

    @property
    def summary(self) -> str:
        """What it does: the handler's own words."""
        return ((self.get or self.post).__doc__ or "").strip()


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/instalments",
        "instalments:write",
        {201: Created, 200: Created},
        post=handlers.create_instalments,
        takes=Instalment,
        takes_list=True,
    ),
    Route(
        "GET",
        "/v1/instalments",
        "instalments:read",
        {200: Page},
        get=handlers.list_instalments,
        query={"customer": "Whose instalments.", "cursor": "The next_cursor of the page before."},
    ),
    Route(
        "GET",
        "/v1/instalments/{ref}",
        "instalments:read",
        {200: Shown},
        refusals=(404,),
        get=handlers.show_instalment,
    ),
    Route(
        "POST",
        "/v1/instalments/{ref}/collect",
        "collect",
        {202: Accepted},
        refusals=(404,),
        post=handlers.collect,
        takes=Nothing,
        takes_nothing=True,
        wakes=True,
    ),
    Route(
        "GET",
        "/v1/requests/{id}",
        "instalments:read",
        {200: RequestShown},
        refusals=(404,),
        get=handlers.show_request,
    ),
    Route(
        "GET",
        "/v1/wallets/{customer}",
        "wallets:read",
        {200: Wallets},
        refusals=(404,),
        get=api_wallet.show,
    ),
    Route(
        "POST",
        "/v1/wallets/{customer}/credit",
        "wallets:write",
        {200: Posted},
        refusals=(404,),
        post=api_wallet.credit,
        takes=Posting,
    ),
    Route(
        "POST",
        "/v1/wallets/{customer}/debit",
        "wallets:write",
        {200: Posted},
        refusals=(402, 404),
        post=api_wallet.debit,
        takes=Posting,
    ),
    Route(
        "POST",
        "/v1/wallets/{customer}/convert",
        "wallets:write",
        {200: Converted},
        refusals=(402, 404),
        post=api_wallet.convert,
        takes=Converting,
    ),
)
